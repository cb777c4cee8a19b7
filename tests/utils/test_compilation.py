"""Compilation with a failing compiler, with Ctrl-C, and with an unusable cache folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

from reverie.utils.compilation import compiled

ROOT = Path(__file__).parents[2]
LOAD = """
from reverie.utils.compilation import load_compiler
from reverie.utils.errors import exit_on_user_error
with exit_on_user_error():
    load_compiler()
"""
FAILS = "echo broken >&2; exit 1"
IS_STOPPED = 'case "$*" in *--version*) echo "g++ (GCC) 12.2.0"; exit;; esac; kill -{} $$'


@contextmanager
def compiler_that(line: str, folder: Path) -> Iterator[None]:
    """Give torch a compiler that runs a line of shell, and an empty cache."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    # A background job ignores SIGINT, and the compiler would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with inductor.patch({"cpp.cxx": (None, str(script))}):
            torch.compiler.reset()
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        torch.compiler.reset()


@pytest.mark.parametrize(
    ("line", "warnings"), [(FAILS, 1), (IS_STOPPED.format("INT"), 0), (IS_STOPPED.format("TERM"), 0)]
)
def test_a_compiler_that_a_signal_ended_is_no_error_of_the_compiler(
    line: str,
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with compiler_that(line, tmp_path):
        assert compiled(lambda x: x + 2)(torch.zeros(3)).tolist() == [2, 2, 2]
    assert len([record for record in caplog.records if "torch.compile failed" in record.message]) == warnings


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TMPDIR"])
def test_a_file_where_the_compiler_wants_its_folder_is_one_sentence(variable: str, tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {variable: str(tmp_path), "USER": "me", "LOGNAME": "me"}
    taken = tmp_path / "torchinductor_me"
    taken.touch()
    if variable == "TORCHINDUCTOR_CACHE_DIR":
        environment[variable] = str(taken)
    command = ["scripts/plan_memory.py", "experiment=dreamer_catch", "device=cpu"]
    if variable == "TMPDIR":
        command = ["-c", LOAD]
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: torch's compiler cannot create its folder {taken}: File exists. Set TORCHINDUCTOR_CACHE_DIR "
        "(or TMPDIR, its default location) to a writable folder.\n"
    )


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * gradients[0]


def test_an_autograd_function_is_compiled_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(3, requires_grad=True)
    compiled(lambda x: Doubled.apply(x) + 1)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
    assert "torch.compile failed" not in caplog.text
