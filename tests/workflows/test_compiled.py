"""Compiled steps match eager steps, are compiled once, and fall back to eager mode."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch._dynamo.config as dynamo
import torch._inductor.async_compile as async_compile
import torch._inductor.config as inductor

from reverie.utils.compilation import Compilations, compiled, why_not_compiled

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")


def test_compiled_steps_do_as_the_written_ones_and_what_cannot_be_compiled_runs_as_written() -> None:
    compilable = ["discrete", "continuous"] if shutil.which("g++") else []
    command = [sys.executable, "-m", "tests.workflows.compiled_against_written", *compilable, "uncompiled"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    steps = ("RSSM.observe_step", "RSSM.imagine_step", "WorldModel.predict", "Actor.choose", "Actor.forward")
    for name in (*steps, "DreamerWorkflow.policy_on_tensors"):
        assert ended.stderr.count(f"torch.compile failed for {name}, falling back to eager: ") == 1


@needs_compiler
def test_a_function_of_too_many_shapes_runs_as_written(caplog: pytest.LogCaptureFixture) -> None:
    double = compiled(lambda x: 2 * x)
    # The default is 8.
    with dynamo.patch(recompile_limit=2):
        assert all(float(double(torch.ones(size)).sum()) == 2 * size for size in range(1, 6))
    assert caplog.text.count("falling back to eager: ") == 1


@needs_compiler
def test_what_is_compiled_late_is_counted_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    compilations = Compilations(lambda _: None)
    double = torch.compile(lambda x: 2 * x, dynamic=False)
    double(torch.ones(2))
    compilations.settle()
    double(torch.ones(2))
    assert (compilations.count, compilations.late_count) == (1, 0)
    double(torch.ones(3))
    compilations.close()
    double(torch.ones(4))
    assert (compilations.count, compilations.late_count) == (2, 1)
    assert "(did shapes change?)" in caplog.text
    assert compilations.tags()["debug/compile/recompilations"] == 1.0


@needs_compiler
def test_every_settling_ends_the_processes_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[None] = []
    monkeypatch.setattr(async_compile, "shutdown_compile_workers", lambda: ended.append(None))
    compilations = Compilations(lambda _: None)
    # A recompilation between two updates starts new processes.
    for count in (1, 2):
        compilations.settle()
        assert len(ended) == count
    compilations.close()


def test_what_is_missing_for_compiling_is_told() -> None:
    torch._dynamo.reset()
    # monkeypatch would treat these as missing attributes and delete them at the end.
    with inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
        reason = why_not_compiled.__wrapped__()
    assert reason and "compiler" in reason
