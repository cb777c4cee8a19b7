"""Shared utilities that import no other package of Reverie."""
