"""Leaves: nothing here imports another part of Reverie."""
