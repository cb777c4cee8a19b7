"""Sample memory counters, test their trends, and find the holder of growth while a run lasts."""
