"""Tools that verify a run's guarantees: injected faults, memory certificates and fingerprints."""
