"""Independent named random streams, derived from a run's seed."""

import os
import random
import zlib
from typing import Any

import numpy as np
import torch

_NUMPY_STATE = ("kind", "keys", "position", "has_gauss", "cached")


def named_seed(run_seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for the stream `path` of a run. Different paths give independent streams."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    # SeedSequence pads short entropy with zeros, so the length distinguishes ("a",) from ("a", 0).
    state = np.random.SeedSequence([run_seed, len(words), *words]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def episode_seed(run_seed: int, env_index: int, episode_index: int) -> int:
    """Return an episode's seed. It is a non-negative 31-bit integer, the most that some emulators accept."""
    return named_seed(run_seed, "episode", env_index, episode_index) & 0x7FFFFFFF


def numpy_generator(run_seed: int, name: str) -> np.random.Generator:
    """Return NumPy's generator for the stream `name`."""
    return np.random.default_rng(named_seed(run_seed, name))


def torch_generator(run_seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return torch's generator for the stream `name` on `device`, or on the CPU for `meta`."""
    where = "cpu" if torch.device(device).type == "meta" else device
    return torch.Generator(device=where).manual_seed(named_seed(run_seed, name))


def seed_global(run_seed: int) -> None:
    """Seed the global generators, for initial parameters and libraries without their own generators."""
    random.seed(named_seed(run_seed, "python"))
    np.random.seed(named_seed(run_seed, "numpy") & 0xFFFFFFFF)
    torch.manual_seed(named_seed(run_seed, "torch"))


def choose_deterministic_kernels() -> None:
    """Use deterministic kernels in this process. Torch warns about operators that have none.

    Call this before the first matrix product on a GPU, because cuBLAS reads its variable only when it starts.

    Source: "Reproducibility" in torch's notes.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every new tensor would take time, and only matters if a tensor is read before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    # Benchmarks may choose a different kernel in each run.
    torch.backends.cudnn.benchmark = False


def global_state() -> dict[str, Any]:
    """Return the state of all global generators: Python's, NumPy's, and torch's on every device."""
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": dict(zip(_NUMPY_STATE, np.random.get_state(legacy=True), strict=True)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Restore a result of `global_state`. GPUs that this machine lacks are skipped."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    np.random.set_state(tuple(numpy[name] for name in _NUMPY_STATE))
    torch.set_rng_state(state["torch"])
    for index, generator_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(generator_state, index)
