"""Python API of Reverie, available by `import reverie` and described in docs/api.md."""
