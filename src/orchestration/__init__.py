"""A run's life: from its settings to its last checkpoint, and the evaluation of what it learned.

Nothing is imported here, so that `reverie-doctor` starts where other packages of Reverie are missing.
"""
