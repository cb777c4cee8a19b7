"""Networks that come with the package, each a folder: configuration, weights, and a card with their score."""
