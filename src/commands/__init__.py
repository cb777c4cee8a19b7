"""One file for each command line."""
