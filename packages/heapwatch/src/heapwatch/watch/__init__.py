"""Watch the memory of a running program."""
