"""An environment that is broken in its first steps is refused before any file of a run is created."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from reverie.envs import EnvConfig, Suite, Vectorization, spec_of
from reverie.utils.errors import UserError

from ..commands.test_command_line import error_of

# Gymnasium's own checks issue the same warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


class Broken(gymnasium.Env[Any, Any]):
    """Broken in the way given by its arguments."""

    observation_space, action_space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)

    def __init__(self, part: str = "") -> None:
        self.part = part

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.part == "reset":
            raise FileNotFoundError("no level.bin")
        return np.zeros(3 if self.part == "shape" else 4, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.part == "step":
            raise KeyError("speed")
        reward = {"reward": "1.0", "nan": np.nan}.get(self.part, 1.0)
        return np.zeros(4, np.float32), reward, False, False, {}


@pytest.fixture(autouse=True)
def is_registered() -> None:
    maker: Any = Broken
    gymnasium.register("tests/Broken-v0", entry_point=maker)


def config_of(part: str, **options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.gymnasium, id="tests/Broken-v0", kwargs={"part": part}, **options)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("reset", r"reset\(\): FileNotFoundError: no level.bin \(test_first_steps.py, line \d+\)"),
        ("step", r"step\(\): KeyError: 'speed' \(test_first_steps.py, line \d+\)"),
        ("shape", r"reset\(\): its observation `vector` has the shape \(3,\), but its space has \(4,\)"),
        ("nan", r"step\(\): its reward is nan, which is not a single finite float32 number"),
        ("reward", r"step\(\): its reward is '1.0', which is not a single finite float32 number"),
    ],
)
@pytest.mark.parametrize("repeat", [1, 2])
def test_what_is_broken_is_named_with_its_place(part: str, text: str, repeat: int) -> None:
    with pytest.raises(
        UserError,
        match=rf"^env.id=tests/Broken-v0 fails in its first {text}. Check it with reverie.check_env.$",
    ):
        spec_of(config_of(part, action_repeat=repeat))


def test_one_that_is_whole_or_has_a_process_of_its_own_is_not_refused_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The child process finds this module there.
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    assert spec_of(config_of("")).action.size == 2
    assert spec_of(config_of("step", vectorization=Vectorization["async"])).action.size == 2


def test_a_run_of_a_broken_environment_creates_nothing(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("experiment=dreamer_cartpole", "device=cpu", "env.id=tests/Broken-v0", "env.kwargs.part=reset")
    assert "fails in its first reset(): FileNotFoundError" in error_of(capsys, *asked)
    assert not list(empty_folder.iterdir())
