"""Reverie's Python API, available through `import reverie` and described in docs/api.md."""
