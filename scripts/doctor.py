"""Check whether this machine can train: `python scripts/doctor.py`."""

import sys

try:
    from reverie.orchestration.doctor import main
except ImportError as error:  # the commonest finding of all, so it gets its repair like the others
    sys.exit(
        f"FAIL  {error}, in {sys.executable}\n"
        "      Install Reverie with all it needs into this Python (pip install -c constraints.txt -e .),\n"
        "      or run `make doctor`, which uses a .venv of its own."
    )

if __name__ == "__main__":
    sys.exit(main())
