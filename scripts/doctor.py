"""Check whether this machine can train: `python scripts/doctor.py`."""

import sys

try:
    from reverie.commands.entry import doctor
except ImportError as error:
    sys.exit(
        f"FAIL  {error}, in {sys.executable}\n"
        "      Install Reverie with all it needs: pip install -c constraints.txt -e packages/heapwatch -e .\n"
        "      Or run `make doctor`, which makes its own .venv."
    )

if __name__ == "__main__":
    sys.exit(doctor())
