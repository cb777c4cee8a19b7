"""Certify that memory is flat: `python scripts/certify_memory.py experiment=dreamer_incident`."""

from reverie.orchestration.certificate import main

if __name__ == "__main__":
    main()
