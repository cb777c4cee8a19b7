"""The on-track instrument, imported only by runs on tasks that may have a reference."""
