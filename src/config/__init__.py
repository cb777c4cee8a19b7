"""Configuration of a run: dataclasses, and their composition from user input."""
