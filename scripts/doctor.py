"""Check whether this machine can train: `python scripts/doctor.py`."""

import sys

try:
    from reverie.commands.entry import doctor
except ImportError as error:
    sys.exit(
        f"FAIL  {error}, in {sys.executable}\n"
        "      Install Reverie: pip install -c constraints.txt -e packages/heapwatch -e .\n"
        "      Or run `make doctor`, which creates .venv."
    )

if __name__ == "__main__":
    sys.exit(doctor())
