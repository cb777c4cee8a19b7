"""Check whether this machine can train: `python scripts/doctor.py`."""

import sys

try:
    from reverie.commands.entry import doctor
except ImportError as error:
    sys.exit(
        f"FAIL  {error}, in {sys.executable}\n"
        "      Install Reverie with all it needs into this Python (pip install -c constraints.txt -e .),\n"
        "      or run `make doctor`, which makes its own .venv."
    )

if __name__ == "__main__":
    sys.exit(doctor())
