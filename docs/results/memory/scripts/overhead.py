"""Print the share of a run's time spent on memory instruments: overhead.py <run folder> [...]."""

import sys
from pathlib import Path

from reverie.testing.judged import instruments_fraction

for folder in sys.argv[1:]:
    print(f"{instruments_fraction(Path(folder)):.2%}  {folder}")
