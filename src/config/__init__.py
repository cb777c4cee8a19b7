"""Configuration of a run: the dataclasses and how they are composed from user input."""
