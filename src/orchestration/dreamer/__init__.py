"""Dreamer runs: recipe, components and dry run."""
