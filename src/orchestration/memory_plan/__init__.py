"""What a run will need, known before step 0."""
