"""Networks included in the package. Each folder has a configuration, weights and a card with the score."""
