"""Common setup of all tests: one thread, and files that several tests share."""

import os
from pathlib import Path

import pytest
import torch
from reverie_export import export_onnx

import reverie

torch.set_num_threads(1)
# This also applies to the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def cartpole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the bundled agent for CartPole."""
    path = tmp_path_factory.mktemp("cartpole") / "agent.onnx"
    export_onnx(reverie.load("pretrained:cartpole", device="cpu"), path)
    return path
