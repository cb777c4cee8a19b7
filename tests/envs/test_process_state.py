"""Process settings are unchanged after an environment is imported, created, reset or stepped."""

import gc
import locale
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie import check_env
from reverie.envs import EnvConfig, Suite, Vectorization, make_environment, make_single, spec_of
from reverie.envs.process_state import collected_changes
from tests.envs.meddling import CHANGES, RESEEDS

# The first call imports packages that add warning filters.
torch.use_deterministic_algorithms(False)

SYNC, ASYNC = Vectorization["sync"], Vectorization["async"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
WHEN = {
    "imported": "when it was imported",
    "made": "when it was created",
    "reset": "in reset()",
    "step": "in step()",
}
TORCH_AT_EACH_STEP = ("dtype", "grad", "device", "anomaly")
LOGGING_AT_EACH_STEP = ("disabled", "own loggers", "levels of handlers")
AT_EACH_STEP = ("signals", "streams", "folder", "filters", *TORCH_AT_EACH_STEP, *LOGGING_AT_EACH_STEP)
"""Settings that are restored before the next update. The others are restored within 20 steps."""

ACTION = np.array([[1, 0]], np.float32)


def settings() -> dict[str, Any]:
    """Return all process settings that an environment must not change."""
    os.umask(umask := os.umask(0))
    root, *own = map(logging.getLogger, ("root", "reverie", "reverie.envs.backend"))
    return {
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "streams": (sys.stdout, sys.stderr),
        "disabled": logging.root.manager.disable,
        "root logger": (root.level, [*root.handlers]),
        "own loggers": [(each.level, each.disabled, each.propagate, [*each.handlers]) for each in own],
        "levels of handlers": [each.level for each in logging.getLogger("reverie").handlers],
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "device": torch.zeros(()).device,
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "errors": np.geterr(),
        "filters": [*warnings.filters],
        "gc": (gc.isenabled(), gc.get_threshold()),
        "umask": umask,
        "locale": locale.setlocale(locale.LC_ALL),
    }


def config_of(changes: list[str], moment: str, vectorization: Vectorization, pids: Path) -> EnvConfig:
    """Return an environment that changes settings. The moment `imported` needs a fresh module."""
    module = "meddling"
    if moment == "imported":
        module = f"meddles_{pids.parent.name}"
        lines = ("import meddling", f"meddling.change({changes})", "class Meddler(meddling.Meddler): ...")
        pids.with_name(f"{module}.py").write_text("\n".join(lines))
    kwargs = {"changes": changes, "moment": moment, "pids": str(pids)}
    env_id = f"python/{module}.Meddler-v0"
    return EnvConfig(
        suite=Suite.gymnasium, id=env_id, kwargs=kwargs, action_repeat=1, vectorization=vectorization
    )


def play(config: EnvConfig) -> list[str]:
    """Return the reports after all moments of an environment. None of them may leave a trace."""
    before = settings()
    with collected_changes() as reported:
        spec_of(config)
        assert settings() == before
        environment = make_environment(config, 0)
        assert settings() == before
        try:
            environment.reset()
            assert settings() == before
            for _ in range(3):
                environment.step(ACTION)
                assert [settings()[key] for key in AT_EACH_STEP] == [before[key] for key in AT_EACH_STEP]
            # This step starts the next episode.
            environment.step(ACTION)
            assert settings() == before
        finally:
            environment.close()
        assert settings() == before
    return reported


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    handler = logging.NullHandler()
    logging.getLogger("reverie").addHandler(handler)
    yield
    logging.getLogger("reverie").removeHandler(handler)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "pids"


@pytest.mark.parametrize("moment", WHEN)
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_an_environment_changes_is_restored_and_reported_once(
    name: str, moment: str, pids: Path
) -> None:
    (sentence,) = play(config_of([name], moment, SYNC, pids))
    assert "Reverie restored it." in sentence
    assert moment in ("reset", "step") or WHEN[moment] in sentence


def test_all_settings_are_restored_during_a_long_episode(pids: Path) -> None:
    config = config_of([*CHANGES], "step", SYNC, pids)
    config.kwargs["steps"] = 1000
    before = settings()
    environment = make_environment(config, 0)
    try:
        environment.reset()
        for _ in range(2):
            for _ in range(20):
                environment.step(ACTION)
                if settings() == before:
                    break
            assert settings() == before
    finally:
        environment.close()


@pytest.mark.parametrize("moment", ["imported", "always"])
def test_no_environment_with_a_process_of_its_own_touches_this_one(moment: str, pids: Path) -> None:
    reported = play(config_of([*CHANGES], moment, ASYNC, pids))
    assert all("when it was imported" in sentence for sentence in reported)
    assert str(os.getpid()) not in pids.read_text().split()


def test_a_log_message_of_an_environment_is_no_change(
    pids: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # pytest's own handlers would hide that such a message adds one.
    monkeypatch.setattr(logging.root, "handlers", [])
    assert play(config_of(["message"], "reset", SYNC, pids)) == []
    assert "a message" in capsys.readouterr().err


@pytest.mark.parametrize("moment", WHEN)
@pytest.mark.parametrize("library", RESEEDS)
def test_a_reseed_is_reported_and_not_undone(library: str, moment: str, pids: Path) -> None:
    (sentence,) = play(config_of([library], moment, SYNC, pids))
    assert f"the seed of {library}'s global random generator {WHEN[moment]}. Reverie did not" in sentence


@pytest.mark.parametrize("is_made_first", [True, False])
def test_checking_or_making_a_single_one_restores_settings_too(is_made_first: bool, pids: Path) -> None:
    config, before = config_of([*CHANGES], "always", SYNC, pids), settings()
    with collected_changes():
        made = make_single(config)
    assert settings() == before
    report = check_env(made if is_made_first else lambda: make_single(config), steps=9)
    assert settings() == before
    assert any("changed the working directory" in sentence for sentence in report.notices)


def test_a_handler_that_a_library_installs_without_python_is_replaced(pids: Path) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        (sentence,) = play(config_of(["C handler"], "reset", SYNC, pids))
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1]
    assert "changed the handlers of SIGINT, SIGTERM or SIGUSR1 in reset()" in sentence
