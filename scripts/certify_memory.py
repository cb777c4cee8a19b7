"""Certify that memory is flat: `python scripts/certify_memory.py experiment=dreamer_incident`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import certify

    certify()
