"""The on-track instrument, imported only by runs whose task may have a reference."""
