"""`heapwatch report` prints a saved report, and `heapwatch diff` compares two."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from heapwatch.watch import command
from heapwatch.watch.report import write_report

from .watching import KB, watched

DIARY: list[np.ndarray] = []
ROWS: list[np.ndarray] = []


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["heapwatch", *map(str, arguments)])
    command.main()
    return capsys.readouterr().out


def test_a_saved_report_reads_as_the_one_at_the_end_and_a_fix_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def both(step: int) -> None:
        DIARY.append(np.empty(200 * KB, np.uint8))
        ROWS.append(np.empty(100 * KB, np.uint8))

    before = watched(both, 60).report()
    after = watched(lambda step: ROWS.append(np.empty(200 * KB, np.uint8)), 60).report()
    DIARY.clear()
    ROWS.clear()
    for name, report in (("before", before), ("after", after)):
        write_report(report, tmp_path / name)
    for flags in ((), ("--verbose",)):
        text = shown(monkeypatch, capsys, "report", tmp_path / "before", *flags)
        # The first line has times, which the file rounds.
        assert text.startswith("Memory leaks. 60 samples in 59 steps and ")
        assert text.splitlines()[1:] == before.lines(verbose=bool(flags))[1:]
    lines = shown(monkeypatch, capsys, "diff", tmp_path / "before", tmp_path / "after").splitlines()
    assert lines[0].startswith("before: Memory leaks.") and lines[1].startswith("after: Memory leaks.")
    assert [line.partition(" (")[0] for line in lines[2:]] == [
        f"gone: {__name__}.DIARY",
        f"still there: {__name__}.ROWS",
    ]
    write_report(watched(lambda step: None, 5).report(), tmp_path / "short")
    lines = shown(monkeypatch, capsys, "diff", tmp_path / "before", tmp_path / "short").splitlines()
    assert [line.partition(":")[0] for line in lines[2:]] == ["not judged yet"] * 2


def test_growth_that_returns_keeps_the_step_of_its_first_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(step: int) -> None:
        if step % 100 == 0:
            DIARY.clear()
        DIARY.append(np.empty(200 * KB, np.uint8))

    report = watched(fill, 400).report()
    DIARY.clear()
    write_report(report, tmp_path)
    lines = report.lines()
    [(at, end)] = re.findall(r" at step (\d+),[^\0]*ended by step (\d+)", "\n".join(lines))
    assert int(at) < int(end)
    assert shown(monkeypatch, capsys, "report", tmp_path).splitlines()[1:] == lines[1:]


def test_a_report_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(watched(lambda step: None, 5).report(), tmp_path)
    saved = json.loads((tmp_path / "watch.json").read_text())
    (tmp_path / "watch.json").write_text(json.dumps(saved | {"version": 9}))
    for asked in (("report", tmp_path), ("diff", tmp_path, tmp_path)):
        with pytest.raises(SystemExit) as ended:
            shown(monkeypatch, capsys, *asked)
        error = capsys.readouterr().err
        assert ended.value.code == 2 and error.count("\n") == 1
        assert "it has version 9, but this heapwatch reads version 1). Pass a folder" in error


@pytest.mark.parametrize("text", [None, "{", "[]", '{"verdict": "leak"}'])
def test_a_folder_without_a_report_is_refused(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "watch.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        shown(monkeypatch, capsys, "report", tmp_path)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "has no readable watch.json" in error and error.count("\n") == 1
    with pytest.raises(SystemExit):
        shown(monkeypatch, capsys, "report", tmp_path / "missing")
    assert "missing is not a folder. Pass the folder of a watch" in capsys.readouterr().err
