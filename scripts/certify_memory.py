"""Certify that memory is flat: `python scripts/certify_memory.py experiment=dreamer_incident`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import certify

    certify()
