"""The footprint agrees with files, processes and memory that the tests create."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.utils.footprint import folder_disk_bytes, footprint_stats, process_tree_pss_bytes

MB = 1_000_000
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
CHILD_BYTES = 512 * MB
WAITING_CHILD = (
    f"import sys; held = bytearray(b'1') * {CHILD_BYTES}; print('ready', flush=True); sys.stdin.read()"
)


@linux_only
def test_the_tree_counts_a_childs_memory_while_it_runs() -> None:
    before = process_tree_pss_bytes()
    assert before is not None
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        during = process_tree_pss_bytes()
        # Processes that map the same libraries come and go, and change this process's share of them.
        assert during is not None and during - before > CHILD_BYTES / 2
        child.kill()
    assert process_tree_pss_bytes() == pytest.approx(before, abs=CHILD_BYTES / 2)


def test_a_folder_counts_each_files_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(b"1" * 4 * MB)
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "model").write_bytes(b"1" * MB)
    os.link(folder / "checkpoints" / "model", folder / "second_name")
    (folder / "link").symlink_to(elsewhere / "large")
    (folder / "linked_folder").symlink_to(elsewhere)
    with open(folder / "sparse", "wb") as sparse:
        sparse.truncate(8 * MB)
    assert folder_disk_bytes(folder) == pytest.approx(MB, abs=64_000)
    assert folder_disk_bytes(tmp_path / "missing") == 0


@linux_only
def test_a_report_has_the_memory_of_the_tree_and_the_disk_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(2_000_000))
    stats = footprint_stats(tmp_path)
    assert stats["disk_mb"] == pytest.approx(2, rel=0.01)
    assert stats["tree_pss_mb"] > 1
    assert set(stats) == {"disk_mb", "tree_pss_mb"}
