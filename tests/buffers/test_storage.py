"""All kinds of storage have the same contents."""

import os
from pathlib import Path

import pytest
import torch

from reverie.buffers import EpisodeReplayBuffer, ReplayStorage

from .reference import fill, held_values, make_buffer


def test_mapped_files_hold_what_memory_holds(tmp_path: Path) -> None:
    buffers = [
        make_buffer(num_envs=2, storage=storage, directory=tmp_path)
        for storage in (ReplayStorage.ram, ReplayStorage.mmap)
    ]
    for buffer in buffers:
        fill(buffer, num_envs=2, steps=120)
    assert buffers[0].nbytes() == buffers[1].nbytes()
    for name in buffers[0].plan.fields:
        assert torch.equal(held_values(buffers[0], name), held_values(buffers[1], name))
    first, second = (buffer.sample(16) for buffer in buffers)
    assert torch.equal(first.observation["image"], second.observation["image"])


@pytest.mark.parametrize("system_reserves", [True, False])
def test_mapped_files_take_their_disk_space_at_once_and_leave_nothing_behind(
    system_reserves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # macOS cannot reserve.
    if not system_reserves:
        monkeypatch.delattr(os, "posix_fallocate")
    before = os.statvfs(tmp_path)
    buffer = make_buffer(capacity=200_000, storage=ReplayStorage.mmap, directory=tmp_path / "replay")
    after = os.statvfs(tmp_path)
    assert (before.f_bavail - after.f_bavail) * before.f_frsize > 0.9 * buffer.plan.arena_bytes
    assert list((tmp_path / "replay").iterdir()) == []
    fill(buffer, num_envs=1, steps=20)
    assert buffer.total_steps == 20


@pytest.mark.gpu
def test_gpu_memory_holds_what_memory_holds() -> None:
    def build(storage: ReplayStorage) -> EpisodeReplayBuffer:
        return make_buffer(num_envs=2, storage=storage, device="cuda")

    host, device = build(ReplayStorage.ram), build(ReplayStorage.cuda)
    for buffer in (host, device):
        fill(buffer, num_envs=2, steps=120)
        batch = buffer.sample(8)
        latents = torch.ones(8, 3, 2, device="cuda"), torch.ones(8, 3, 3, dtype=torch.int64, device="cuda")
        buffer.write_back(batch.positions, *latents)
    assert device.sample(1).action.is_cuda and not host.sample(1).action.is_cuda
    for name in host.plan.fields:
        assert torch.equal(held_values(device, name).cpu(), held_values(host, name))


@pytest.mark.parametrize(
    ("storage", "device"),
    [(ReplayStorage.ram, "cpu"), pytest.param(ReplayStorage.cuda, "cuda", marks=pytest.mark.gpu)],
)
def test_latents_of_an_update_that_was_not_finite_are_not_written_back(
    storage: ReplayStorage, device: str
) -> None:
    buffer = make_buffer(storage=storage, device=device)
    fill(buffer, num_envs=1, steps=30)
    batch = buffer.sample(8)
    before = {name: held_values(buffer, name) for name in ("deter", "stoch")}
    latents = torch.full((8, 3, 2), torch.nan, device=device), torch.full((8, 3, 3), 9, device=device)
    buffer.write_back(batch.positions, *latents, torch.tensor(False, device=device))
    assert all(torch.equal(held_values(buffer, name), value) for name, value in before.items())
    buffer.write_back(batch.positions, *latents, torch.tensor(True, device=device))
    assert bool(held_values(buffer, "deter").isnan().any())
