"""Sample memory counters, test their trends, and find what holds growing memory during a run."""
