"""Tools that try the promises of a run: faults, certificate, fingerprint."""
