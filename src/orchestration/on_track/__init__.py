"""The instrument `on track`, imported only by runs of tasks that may have a reference."""
