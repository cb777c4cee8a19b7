"""A Dreamer run: its recipe, its parts, its dry run."""
