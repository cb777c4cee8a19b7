"""Where a population plays and learns."""
