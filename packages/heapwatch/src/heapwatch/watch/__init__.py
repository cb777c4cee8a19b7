"""Watch the memory of a program while it runs."""
