"""Tools that verify a run's guarantees: injected faults, memory certificate and fingerprint."""
