"""Reverie from Python: what `import reverie` offers, described in docs/api.md."""
