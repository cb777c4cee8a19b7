"""Samples, trends and names of what grows while a run lasts."""
