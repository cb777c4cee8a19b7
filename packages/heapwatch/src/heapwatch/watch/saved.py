"""Print the saved report of a watch, which may still be running, and compare two of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import FlagParser, UsageError
from ..leaks.table import Finding
from ..leaks.verdict import TrendClass
from ..objects.growth import Message
from .report import SAVED, VERSION, WATCH_JSON, Series, TimedFinding, WatchReport

COMMANDS = {
    "report": "Print the report of a watch. The program may still be running.",
    "diff": "Compare two reports: which causes of growth are gone, new, or in both.",
}
# The name of the holder at the beginning of a message or of a path.
_HOLDER = re.compile(r".*?(?= \(| holds | grows| -> |: |$)")
# The PID of a child process, which differs from run to run.
_PID = re.compile(r"(?<=^child process )\d+ \(|\)(?= grows: )")


def read_report(folder: Path) -> WatchReport:
    """Return the report in a folder of a watch, without the tests of the counters.

    Raises:
        UsageError: If the folder has no report that this version can read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Pass the folder of a watch, such as watch_train.")
    try:
        saved = json.loads((folder / WATCH_JSON).read_text())
        if saved["version"] != VERSION:
            raise ValueError(f"it has version {saved['version']}, but this heapwatch reads version {VERSION}")
        return WatchReport(
            verdict=TrendClass(saved["verdict"]).value,
            findings=tuple(map(_finding, saved["findings"])),
            newest_allocations=tuple(saved["newest_allocations"]),
            trends={},
            series=Series(),
            holders={},
            **{name: saved[name] for name in SAVED},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{folder} has no readable {WATCH_JSON} ({type(error).__name__}: {error})"
        repair = "Pass a folder written by this version of heapwatch, such as watch_train."
        raise UsageError(f"{what}. {repair}") from error


def differences(before: WatchReport, after: WatchReport) -> Iterator[str]:
    """Yield both verdicts, and the causes that are gone (or not judged yet), new, or in both reports."""
    yield f"before: {before.lines()[0]}"
    yield f"after: {after.lines()[0]}"
    causes, now = _causes(before), _causes(after)
    lost = "not judged yet" if after.verdict == TrendClass.undecided.value else "gone"
    yield from (f"{lost}: {text}" for name, text in causes.items() if name not in now)
    yield from (f"new: {text}" for name, text in now.items() if name not in causes)
    yield from (f"still there: {text}" for name, text in now.items() if name in causes)


def show(command: str, arguments: list[str]) -> None:
    """Run `heapwatch report` or `heapwatch diff`."""
    parser = FlagParser(prog=f"heapwatch {command}", description=COMMANDS[command])
    if command == "report":
        parser.add_argument("folder", type=Path, help="folder of a watch")
        parser.add_argument("--verbose", action="store_true", help="add the path from a root to each holder")
        asked = parser.parse_args(arguments)
        lines = read_report(asked.folder).lines(asked.verbose)
    else:
        parser.add_argument("before", type=Path, help="folder of a watch")
        parser.add_argument("after", type=Path, help="folder of a later watch, e.g. with a fix")
        asked = parser.parse_args(arguments)
        lines = differences(read_report(asked.before), read_report(asked.after))
    print("\n".join(lines))


def _finding(saved: dict[str, Any]) -> TimedFinding:
    growth = f", {saved['growth']}" if saved["growth"] else ""
    texts = tuple(saved["sources"]), growth, tuple(Message(**each) for each in saved["messages"])
    finding = Finding(saved["step"], saved["resource"], TrendClass(saved["verdict"]), *texts)
    return TimedFinding(finding, saved["seconds"], saved["ended"])


def _causes(report: WatchReport) -> dict[str, str]:
    """Return the causes of lasting growth by the name of the holder."""
    lasting = (each.finding for each in report.findings if each.ended is None)
    texts = (str(text) for each in lasting for text in each.messages or each.sources or (each.resource,))
    return {_HOLDER.match(_PID.sub("", text))[0]: text for text in texts}  # pyright: ignore[reportOptionalSubscript]
