"""The recorder writes complete files on CUDA, and no files elsewhere."""

from pathlib import Path

import pytest
import torch
from heapwatch.snapshots.reader import load, read_summary
from heapwatch.snapshots.series import find_snapshots, measure_growth, site_label

from reverie.memory.snapshots import SnapshotRecorder


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_without_cuda_nothing_is_recorded_and_no_folder_is_made(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(tmp_path / "memory_snapshots")
    recorder.start()
    assert recorder.save(1_000) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
def test_a_leak_on_the_gpu_is_measured_and_its_line_is_named(tmp_path: Path) -> None:
    recorder = SnapshotRecorder(tmp_path / "memory_snapshots")
    recorder.start()
    kept = []
    try:
        for step in range(30):
            # 8,000 bytes are rounded up to 8,192.
            kept += [torch.zeros(2_000, device="cuda") for _ in range(4)]
            path = recorder.save(step)
            assert path == tmp_path / "memory_snapshots" / f"snapshot_step_{step}.pickle"
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    files = find_snapshots(tmp_path / "memory_snapshots")
    series = [read_summary(path, step) for step, path in files.items()]
    growth = measure_growth(series, tolerance_bytes=1e5)
    assert growth.verdict.value == "growing"
    assert growth.bytes_per_step == 4 * 8_192
    assert growth.blocks_per_step == 4
    assert site_label(growth.sites[0].stack).startswith(Path(__file__).name)
    assert series[-1].allocated_bytes == torch.cuda.memory_allocated()
    (last,) = (tmp_path / "memory_snapshots").glob("snapshot_step_29.pickle")
    data = load(last)
    # The snapshot has no history.
    assert isinstance(data, dict) and all(len(trace) <= 1 for trace in data["device_traces"])
    assert not list((tmp_path / "memory_snapshots").glob("*.part"))
