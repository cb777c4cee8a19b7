"""Run an unmodified program, and report whether its memory grows and which object retains it."""

import argparse
import builtins
import logging
import os
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from ..errors import FlagParser, UsageError, exit_on_usage_error
from ..leaks.verdict import TrendClass
from .phase import find_module
from .report import WATCH_HTML, write_report
from .saved import COMMANDS, show
from .watch import LEAST_SECONDS, Watch

LEAK_EXIT_CODE = 1
_DESCRIPTION = """\
Run a program and judge its memory: flat, filling, leak, or undecided. All later arguments go to the script.

  heapwatch train.py --epochs 3
  heapwatch --fail-on-leak -m package.train --epochs 3
  torchrun --no-python --nproc-per-node 2 heapwatch train.py
  heapwatch report watch_train          print the report, even while the program runs
  heapwatch diff watch_before watch_after
"""


class _Program:
    """A script or a module to run as `__main__` in this process, with the arguments that `python` would set.

    Raises:
        UsageError: If the script or module does not exist.
    """

    def __init__(self, name: str, arguments: Sequence[str], is_module: bool) -> None:
        self.name = name.rpartition(".")[2] if is_module else Path(name).stem
        self._name, self._is_module = name, is_module
        if not is_module and not Path(name).is_file():
            raise UsageError(f"The script {name} does not exist. Pass a file, or a module with -m.")
        sys.argv = [name, *arguments]
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd() if is_module else str(Path(name).resolve().parent)
        if is_module and _is_missing(name):
            raise UsageError(f"-m {name} is not a runnable module. Pass a runnable module or a script.")

    def run(self) -> None:
        """Run the program as `python` would.

        It stays `__main__` after its end, because threads and callbacks of `atexit` use its classes.
        """
        if self._is_module:
            spec = _find(self._name)
            module, code, sys.argv[0] = module_from_spec(spec), spec.loader.get_code(spec.name), spec.origin
        else:
            file = str(Path(self._name).absolute())
            module, code = types.ModuleType("__main__"), compile(Path(file).read_bytes(), file, "exec")
            module.__file__ = file
        # All other modules contain the dictionary of `builtins` instead.
        module.__dict__.update(__name__="__main__", __builtins__=builtins)
        sys.modules["__main__"] = module
        exec(code, module.__dict__)


def _find(module: str) -> Any:
    """Return the spec of the code that `python -m` runs: the module, or `__main__` of a package."""
    found = find_module(module)
    is_package = found is not None and found.submodule_search_locations is not None
    return find_module(f"{module}.__main__") if is_package else found


def _is_missing(module: str) -> bool:
    """Return whether `python -m` would not find the module or could not run it (C code, bare package)."""
    try:
        found = _find(module)
        code_of = getattr(found and found.loader, "get_code", None)
        return found is None or code_of is None or code_of(found.name) is None
    except ValueError:
        # The name is empty, or the module has no file.
        return True
    except Exception:
        # The package's own code fails, and the program will show that error.
        return False


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = FlagParser(
        prog="heapwatch", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--report", metavar="FOLDER", help="folder of watch.json and watch.html (default: watch_<program>)")
    add("--fail-on-leak", action="store_true", help=f"exit with {LEAK_EXIT_CODE} on a leak or a failed watch")
    add("--at", metavar="MODULE:FUNCTION", help="count calls of this function, not optimizer steps")
    add("--trace", action="store_true", help="after a leak, list the lines that allocate (slower)")
    add("--verbose", action="store_true", help="add the path from a root to each holder")
    add("--seconds", type=float, default=LEAST_SECONDS, help="minimum seconds between two samples")
    add("--share", type=float, default=0.01, help="maximum fraction of the time spent on samples")
    add("--threshold-mb", type=float, default=1.0, help="growth in MB that still counts as flat")
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE ...", help="run a module")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="the program and its own arguments")
    return parser


def main() -> None:
    """Command `heapwatch`."""
    with exit_on_usage_error():
        if sys.argv[1:2] and sys.argv[1] in COMMANDS:
            show(sys.argv[1], sys.argv[2:])
            return
        asked = options().parse_args()
        is_module = asked.module is not None
        # argparse puts a module's arguments from "--" on into `script`.
        named = [*(asked.module or ()), *asked.script]
        if not is_module and named[:1] == ["--"]:
            del named[0]
        if not named:
            raise UsageError("No program given. Pass a script and its arguments, or a module with -m.")
        for name, value in (("--seconds", asked.seconds), ("--threshold-mb", asked.threshold_mb)):
            if not value > 0:
                raise UsageError(f"{name} must be > 0, got {value}.")
        if not 0 < asked.share <= 1:
            raise UsageError(f"--share must be > 0 and at most 1, got {asked.share}.")
        program = _Program(named[0], named[1:], is_module)
        # The path is absolute, because the program may change its working directory.
        folder = Path(asked.report or f"watch_{program.name}").absolute()
        # torchrun sets RANK.
        if "RANK" in os.environ:
            folder /= f"rank_{os.environ['RANK']}"
        _log_to_stderr()
        try:
            same = ("seconds", "share", "threshold_mb", "trace", "at")
            settings = {name: getattr(asked, name) for name in same}
            watch = Watch(folder=folder, automatic=True, **settings)
            watch.progress = _say
            write_report(watch.report(), folder)
        except UsageError as error:
            # The numbers are already checked, so the error is about `at`.
            raise UsageError(f"--{error}") from error
        except OSError as error:
            repair = "Choose another folder with --report."
            raise UsageError(f"The report cannot be written: {error}. {repair}") from error
    _run(program, watch, folder, asked)


def _run(program: _Program, watch: Watch, folder: Path, asked: argparse.Namespace) -> None:
    """Run the program to its end, however it ends, and print the report."""
    process = os.getpid()
    _say(f"watching {program.name}; the report is written to {folder}")
    error = shown = None
    try:
        with watch:
            program.run()
    except BaseException as raised:
        error, shown = raised, raised.__traceback__
        own = (str(Path(__file__).parent), "<frozen importlib")
        while shown and shown.tb_frame.f_code.co_filename.startswith(own):
            shown = shown.tb_next
    if os.getpid() == process:
        for line in (*watch.report().lines(asked.verbose), str(folder / WATCH_HTML)):
            _say(line)
        is_leak = watch.verdict == TrendClass.leak.value
        if asked.fail_on_leak and (is_leak or watch.has_failed) and isinstance(error, SystemExit | None):
            if watch.has_failed:
                _say("failing because of --fail-on-leak: an internal error ended the watch (see above)")
            sys.exit(LEAK_EXIT_CODE)
    if error is not None:
        # The hook shows the error as Python would without heapwatch, also in a forked child.
        hook = sys.excepthook
        sys.excepthook = lambda kind, error, _: hook(kind, error.with_traceback(shown), shown)
        raise error


def _say(line: str) -> None:
    # A closed stderr must not change how the program ends.
    with suppress(OSError, ValueError):
        print(f"heapwatch: {line}", file=sys.stderr)


def _log_to_stderr() -> None:
    """Keep the lines of heapwatch out of the handlers that the program installs."""
    log = logging.getLogger(__name__.partition(".")[0])
    handler = logging.StreamHandler(sys.stderr)
    # A closed stderr must not cause output.
    handler.handleError = lambda record: None
    handler.setFormatter(logging.Formatter("heapwatch: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
