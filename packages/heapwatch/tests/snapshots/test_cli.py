"""The snapshot command: output, files and exit codes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from heapwatch.snapshots.command import COLUMNS, main
from heapwatch.snapshots.series import ALLOCATED_TAG, RESERVED_TAG

from . import writer

# The scale of the incident's small pool.
QUICK = 0.002


def series(folder: Path, *, flat: bool = False, steps: range = writer.INCIDENT_STEPS) -> Path:
    """Write a small series that grows like the incident, or a flat one."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        writer.write(folder, step, writer.incident(1_000 if flat else step, scale=QUICK))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Call the command in this process. Return exit code, stdout and stderr."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of the growth table in printed output."""
    lines = [line.split() for line in text.splitlines()]
    return [line for line in lines if len(line) == len(COLUMNS) and line[0].replace(",", "").isdigit()]


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """Yield a folder of an unprivileged user, without root's right to read everything."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65_534)
    try:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
    finally:
        if was_root:
            os.seteuid(0)


def test_snapshots_are_analyzed_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise ImportError("this machine has no PyTorch")')
    folder = series(tmp_path / "snapshots")
    command = "from heapwatch.snapshots.command import main; raise SystemExit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", command, "--snapshots-dir", folder],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "")
    assert len(rows_of(ended.stdout)) == len(writer.INCIDENT_STEPS)


def test_the_incident_is_shown_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1_000, 23_000, 45_000):
        writer.write(tmp_path, step, writer.incident(step))
    code, printed, errors = run(capsys, "--snapshots-dir", tmp_path)
    assert (code, errors) == (0, "")
    first, middle, last = rows_of(printed)
    assert first[:6] == ["1,000", "0.56", "0.39", "0.17", "8,695", "64.4"]
    assert middle[:6] == ["23,000", "5.02", "4.85", "0.17", "195,719", "25.6"]
    assert last[:6] == ["45,000", "9.48", "9.31", "0.17", "382,744", "24.8"]
    assert "new  +5,352.0   5,352.0     224,429             0  rssm.py:142 observe < dreamer.py:88" in printed
    assert printed.strip().splitlines()[-1] == (
        "undecided: active memory changes by 202.7 KB and 8.5 blocks per step over 3 snapshots from step "
        "1,000 to 45,000; a verdict needs 24."
    )


def test_a_growing_series_is_exit_code_1_and_its_line_is_named(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("heapwatch-snapshots")),
        "--snapshots-dir",
        str(series(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert [row[0] for row in rows_of(done.stdout)] == [f"{step:,}" for step in writer.INCIDENT_STEPS]
    verdict = done.stdout.strip().splitlines()[-1]
    assert verdict.startswith(
        "growing: active memory changes by 0.4 KB and 0.0 blocks per step, over 45 snapsh"
    )
    assert verdict.endswith(
        "growth comes from rssm.py:142 observe < dreamer.py:88 collect_step < train.py:31 main."
    )


def test_a_flat_series_is_flat_and_the_exit_code_is_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, errors = run(capsys, "--snapshots-dir", series(tmp_path, flat=True))
    assert (code, errors) == (0, "")
    assert "no call-site\n" in printed
    assert printed.strip().splitlines()[-1].startswith("flat: active memory changes by 0.0 KB and 0.0 blocks")


def test_a_short_series_is_undecided_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = run(capsys, "--snapshots-dir", series(tmp_path, steps=range(1_000, 4_000, 1_000)))
    assert code == 0
    assert printed.strip().splitlines()[-1].startswith("undecided: ")
    assert printed.strip().endswith("over 3 snapshots from step 1,000 to 3,000; a verdict needs 24.")


def test_snapshots_without_stacks_are_judged_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in writer.INCIDENT_STEPS:
        writer.write(tmp_path, step, writer.incident(step, scale=QUICK, frames=False))
    code, printed, _ = run(capsys, "--snapshots-dir", tmp_path)
    assert code == 1
    assert "100% of the growth comes from (no stack recorded)." in printed


def test_json_holds_what_the_table_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--snapshots-dir", series(tmp_path), "--compare", 1_000, 45_000)
    code, table, _ = run(capsys, *arguments)
    json_code, text, _ = run(capsys, *arguments, "--format", "json")
    assert code == json_code == 1
    document = json.loads(text)
    shown = [[column.text(entry[column.key]) for column in COLUMNS] for entry in document["snapshots"]]
    assert len(shown) == 45
    assert rows_of(table) == shown
    assert document["sentence"] in table
    assert document["verdict"] == document["active"]["verdict"] == "growing"
    assert document["slope_bytes_per_step"] == pytest.approx(202_727 * QUICK, rel=0.01)
    assert [site["call_site"] for site in document["call_sites"]] == [
        line.split(maxsplit=5)[5].strip() for line in table.split("Growth by call-site")[1].splitlines()[2:5]
    ]
    # Both compare the first snapshot with the last.
    assert document["call_sites"] == document["compare"]["call_sites"]
    held = [(site["bytes_after"], site["blocks_after"]) for site in document["holders"]]
    last = document["snapshots"][-1]
    assert tuple(map(sum, zip(*held, strict=True))) == (last["active_bytes"], last["active_blocks"])
    assert held == sorted(held, reverse=True)


def test_json_of_too_few_snapshots_has_no_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    arguments = ("--snapshots-dir", series(tmp_path, steps=range(1_000, 2_000, 1_000)), "--format", "json")
    document = json.loads(run(capsys, *arguments)[1], parse_constant=refuse)
    assert document["active"]["slope_bytes_per_sample"] is None
    assert document["compare"] is None and document["correlations"] == []


def test_the_run_and_its_snapshots_are_correlated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshots = series(tmp_path / "snapshots")
    document = json.loads(run(capsys, "--snapshots-dir", snapshots, "--format", "json")[1])
    scalars = {
        entry["step"] + 50: {
            ALLOCATED_TAG: entry["active_bytes"] / 1e9,
            RESERVED_TAG: entry["reserved_bytes"] / 1e9 + 0.002,
        }
        for entry in document["snapshots"]
    }
    writer.log(tmp_path / "tensorboard", scalars)
    arguments = ("--snapshots-dir", snapshots, "--events-dir", tmp_path / "tensorboard")
    _, printed, _ = run(capsys, *arguments)
    joined = "joined within 50 steps"
    assert f"{ALLOCATED_TAG}: Pearson r 1.0000, largest difference 0.000 GB, {joined}" in printed
    assert f"{RESERVED_TAG}: Pearson r 1.0000, largest difference 0.002 GB, {joined}" in printed


def test_the_out_dir_gets_the_json_and_the_snapshots_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshots, out = series(tmp_path / "snapshots"), tmp_path / "new" / "out"
    before = {path.name: path.read_bytes() for path in snapshots.iterdir()}
    # The second time overwrites the first.
    for _ in range(2):
        code, printed, _ = run(capsys, "--snapshots-dir", snapshots, "--out-dir", out)
        assert code == 1
        assert f"wrote {out / 'analysis.json'}" in printed
    (file,) = out.iterdir()
    assert file.read_text() == run(capsys, "--snapshots-dir", snapshots, "--format", "json")[1].rstrip()
    assert {path.name: path.read_bytes() for path in snapshots.iterdir()} == before


@pytest.mark.parametrize("form", ["path", "name", "step"])
def test_two_snapshots_are_compared_by_path_name_or_step(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = series(tmp_path, steps=range(1_000, 4_000, 1_000))
    file = "snapshot_step_{}.pickle"
    pattern = {"path": str(folder / file), "name": file, "step": "{}"}[form]
    compared = [pattern.format(3_000), pattern.format(2_000)]
    code, text, _ = run(capsys, "--snapshots-dir", folder, "--compare", *compared, "--format", "json")
    document = json.loads(text)["compare"]
    assert code == 0
    assert Path(document["before"]).name == file.format(3_000)
    assert [site["change"] for site in document["call_sites"]] == ["shrunk"] * 3
    blocks = [site["new_blocks"] - site["freed_blocks"] for site in document["call_sites"]]
    assert sum(blocks) == pytest.approx(-8_501 * QUICK, abs=1)


def test_a_snapshot_outside_the_folder_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = series(tmp_path / "run", steps=range(1_000, 2_000, 1_000))
    other = writer.write(tmp_path, 7, writer.incident(9_000, scale=QUICK))
    _, printed, _ = run(capsys, "--snapshots-dir", folder, "--compare", 1_000, other)
    assert f"Growth from {folder / 'snapshot_step_1000.pickle'} to {other}" in printed
    assert "rssm.py:142 observe" in printed


def bad_inputs(folder: Path) -> dict[str, tuple[list[object], str]]:
    """Invalid command lines, each with part of its message."""
    good = series(folder / "good", steps=range(1_000, 2_000, 1_000))
    for name in ("empty", "other", "cut", "foreign", "evil"):
        (folder / name).mkdir()
    (folder / "other" / "notes.txt").write_text("hello")
    whole = (good / "snapshot_step_1000.pickle").read_bytes()
    (folder / "cut" / "snapshot_step_1.pickle").write_bytes(whole[:-100])
    writer.write(folder / "foreign", 1, {"weights": [1.0]})
    (folder / "evil" / "snapshot_step_1.pickle").write_bytes(b"\x80\x04cos\nsystem\n\x8c\x04true\x85R.")
    (folder / "late").mkdir()
    (folder / "late" / f"snapshot_step_1{'0' * 200}.pickle").write_bytes(whole)
    (folder / "file").write_text("")
    of = "--snapshots-dir"
    return {
        "no folder": ([of, folder / "missing"], "--snapshots-dir"),
        "a file": ([of, folder / "file"], "cannot be read: Not a directory"),
        "empty": ([of, folder / "empty"], "contains no snapshot_step_<N>.pickle. On CUDA"),
        "other files": ([of, folder / "other"], "contains no snapshot_step_<N>.pickle. On CUDA"),
        "cut off": ([of, folder / "cut"], "is damaged or not a snapshot: pickle data was truncated"),
        "foreign": ([of, folder / "foreign"], "is a pickle, but not a memory snapshot"),
        "malicious": ([of, folder / "evil"], "is damaged or not a snapshot: it contains os.system"),
        "no such step": ([of, good, "--compare", "1000", "9" * 5_000], "or a step of a snapshot there."),
        "a step of 200 digits": ([of, folder / "late"], "contains no snapshot_step_<N>.pickle. On CUDA"),
        "compare": ([of, good, "--compare", 1_000, 2_000], "--compare 2000 is not a file"),
        "events": ([of, good, "--events-dir", folder / "empty"], "has no TensorBoard events with"),
        "out": ([of, good, "--out-dir", folder / "file" / "out"], "cannot be written: Not a directory"),
        "out is a file": ([of, good, "--out-dir", folder / "file"], "cannot be written: File exists"),
        "format": ([of, good, "--format", "xml"], "invalid choice"),
        "nothing": ([], "--snapshots-dir"),
    }


def test_bad_input_gives_one_line_exit_code_2_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (arguments, message) in bad_inputs(tmp_path / "in").items():
        before = sorted(tmp_path.rglob("*"))
        out = [] if "--out-dir" in arguments else ["--out-dir", tmp_path / "out"]
        code, printed, errors = run(capsys, *arguments, *out)
        assert (code, printed) == (2, ""), name
        assert errors.startswith("error: ") and errors.count("\n") == 1, name
        assert message in errors, name
        assert sorted(tmp_path.rglob("*")) == before, name


def test_unreadable_or_unwritable_files_give_one_error(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = series(own_folder, steps=range(1_000, 2_000, 1_000)).iterdir()
    path.chmod(0)
    code, _, errors = run(capsys, "--snapshots-dir", own_folder)
    assert (code, errors) == (2, f"error: {path} cannot be read: Permission denied.\n")
    path.chmod(0o600)
    own_folder.chmod(0o500)
    code, _, errors = run(capsys, "--snapshots-dir", own_folder, "--out-dir", own_folder / "out")
    assert (code, errors) == (2, f"error: --out-dir {own_folder}/out cannot be written: Permission denied.\n")
    own_folder.chmod(0)
    code, _, errors = run(capsys, "--snapshots-dir", own_folder)
    own_folder.chmod(0o700)
    assert (code, errors) == (2, f"error: --snapshots-dir {own_folder} cannot be read: Permission denied.\n")
