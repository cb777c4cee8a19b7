"""Run a script as make's recipe: `python scripts/for_make.py scripts/train.py experiment=dreamer_catch`.

Make shows every exit code but 0 as an error, also that of a run which Ctrl-C ended with a checkpoint. Here
such an end is none: make, which gets the Ctrl-C too, ends by it. All other exit codes are passed on.
"""

import argparse
import os
import signal
import subprocess
import sys

from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.parent import PARENT_VARIABLE

RESUME_ME_EXIT_CODE = 75
CALM = (RESUME_ME_EXIT_CODE, -signal.SIGINT)


def main() -> int:
    """Return the exit code for make."""
    parser = FlagParser(description="Run a script as a recipe of make; Ctrl-C is no error then.")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    with exit_on_user_error():
        flags = parser.parse_args()
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    child = subprocess.Popen([sys.executable, flags.script, *flags.arguments], env=environment)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # make sends it to this process alone
    code = child.wait()
    if interrupts and code in CALM:
        return 0
    return code if code >= 0 else 128 - code  # as a shell has it


if __name__ == "__main__":
    sys.exit(main())
