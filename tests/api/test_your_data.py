"""Saving and reading episodes from Python, and each block of "Train from your own data"."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import reverie
from reverie.envs.spaces import convert_action, convert_observation

PAGE = (Path(__file__).parents[2] / "docs" / "your_data.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

SPACES: list[tuple[spaces.Space, spaces.Space]] = [
    (spaces.Box(-5, 5, (3,), np.float32), spaces.Discrete(4, start=2)),
    (spaces.Box(0, 1, (64, 64, 3), np.float32), spaces.MultiDiscrete([3, 2], start=[1, 0])),
    (
        spaces.Dict(camera=spaces.Box(0, 255, (3, 48, 48), np.uint8), mode=spaces.Discrete(3)),
        spaces.Box(np.array([-2, 0, -np.inf]), np.array([2, 10, np.inf]), dtype=np.float64),
    ),
    (spaces.Dict(joints=spaces.Box(-1, 1, (2, 2), np.float64)), spaces.MultiBinary(3)),
]


def played(space: spaces.Space, acting: spaces.Space, steps: int) -> tuple[list[Any], list[Any]]:
    """Return steps + 1 observations and `steps` actions."""
    space.seed(0)
    acting.seed(0)
    actions = [acting.sample() for _ in range(steps)]
    if isinstance(acting, spaces.Box):
        # Numbers without bounds are the model's own.
        actions = [np.where(acting.bounded_above, action, np.tanh(action)) for action in actions]
    return [space.sample() for _ in range(steps + 1)], actions


def stacked(observations: list[Any]) -> Any:
    if isinstance(observations[0], Mapping):
        return {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return np.stack(observations)


@pytest.mark.parametrize(("space", "acting"), SPACES)
def test_records_equal_those_of_an_environment_with_the_same_spaces(
    space: spaces.Space, acting: spaces.Space, tmp_path: Path
) -> None:
    observations, actions = played(space, acting, 5)
    rewards = [0.5, 0, -1, 2, 3]
    for terminated in (False, True):
        reverie.save_episode(
            tmp_path / "log",
            observations=stacked(observations),
            actions=np.array(actions),
            rewards=rewards,
            terminated=terminated,
            observation_space=space,
            action_space=acting,
        )
    first, second = reverie.open_episodes(tmp_path / "log")
    assert (first.is_terminal, second.is_terminal) == (False, True)
    for row, observation in enumerate(observations):
        converted = convert_observation(space, observation, 64)
        assert converted.keys() == first.observation.keys()
        for key, values in converted.items():
            assert values.dtype == first.observation[key].dtype
            np.testing.assert_array_equal(values, first.observation[key][row])
    assert first.reward.tolist() == [0, *rewards]
    for row, action in zip(first.action, actions, strict=False):
        np.testing.assert_allclose(convert_action(acting, row), action, rtol=1e-6, atol=1e-6)
    assert not first.action[-1].any()


def test_arrays_without_spaces_are_images_vectors_and_actions_within_one(tmp_path: Path) -> None:
    seen: dict[str, NDArray] = {"camera": np.zeros((3, 80, 80, 3), np.uint8), "speed": np.arange(3)}
    reverie.save_episode(tmp_path / "a", observations=seen, actions=[[0.5], [-1]], rewards=[1, 2])
    [episode] = reverie.open_episodes(tmp_path / "a")
    assert {key: (values.shape, values.dtype.name) for key, values in episode.observation.items()} == {
        "camera": ((3, 64, 64, 3), "uint8"),
        "speed": ((3, 1), "float32"),
    }
    assert episode.action.tolist() == [[0.5], [-1], [0]]
    assert not episode.is_terminal


LOG: dict[str, Any] = {
    "observations": np.zeros((4, 2), np.float32),
    "actions": np.zeros((3, 1), np.float32),
    "rewards": np.zeros(3),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": []}, r"rewards must have the shape \(steps,\), with at least one step \(got \(0,\)\)"),
        ({"terminated": [False] * 3}, r"terminated must be True or False for the whole episode, got \[False"),
        ({"rewards": "abc"}, r"rewards must be an array of numbers \(got str\)"),
        ({"rewards": [[1, 2], [3]]}, r"rewards must be an array of numbers \(got list\)"),
        ({"rewards": [0, np.nan, 0]}, r"`reward` has numbers that are not finite"),
        ({"actions": np.zeros((2, 1))}, r"actions must have 3 rows, like rewards \(got \(2, 1\)\)"),
        ({"actions": [0, 1, 2]}, r"their number of choices is unknown. Pass action_space, e.g. gymn"),
        ({"actions": [[0], [2.5], [0]]}, r"the action of step 1 is \[2.5\], which is not in Box\(-1.0, 1.0"),
        ({"actions": [[0], [np.nan], [0]]}, r"the action of step 1 is \[nan\]"),
        (
            {"actions": [0, 4, 1], "action_space": spaces.Discrete(4)},
            r"the action of step 1 is 4, which is not in Discrete\(4\)",
        ),
        (
            {"action_space": spaces.Discrete(4)},
            r"one action has the shape \(1,\), but Discrete\(4\) has \(\)",
        ),
        ({"action_space": spaces.Text(3)}, r"The episode has actions in Text\(.*Declare one of them"),
        (
            {"observations": np.zeros((3, 2))},
            r"observations must have 4 rows, one more than actions \(got \(3, 2\)\). Include the observ",
        ),
        ({"observations": {"a": np.zeros((3, 2))}}, r"observations\['a'\] must have 4 rows"),
        (
            {"observation_space": spaces.Dict(a=spaces.Box(-1, 1, (2,)))},
            r"observations are one array, but observation_space=Dict\('a'.*Use the same keys in both",
        ),
        ({"observation_space": spaces.Box(-1, 1, (3,))}, r"has the shape \(2,\), but its space has \(3,\)"),
        (
            {"observation_space": spaces.Tuple([spaces.Box(-1, 1, (2,))])},
            r"The episode has an observation `vector` in Tuple\(",
        ),
        ({"observations": np.full((4, 2), np.inf)}, r"`vector` has values that are not finite"),
    ],
)
def test_an_invalid_episode_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(reverie.UserError, match=message):
        reverie.save_episode(tmp_path / "log", **{**LOG, **changes})
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_contents_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(reverie.UserError, match=r"has mine.txt, but no episodes.json. Choose a new folder"):
        reverie.save_episode(tmp_path, **LOG)
    reverie.save_episode(tmp_path / "log", **LOG)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    for changes, message in [
        (
            {"observations": np.zeros((4, 3))},
            r"observation `vector` is float32 \(3,\) instead of float32 \(2,\)",
        ),
        ({"actions": np.zeros((3, 2))}, r"its actions are 1 number in \[-1, 1\], not 2 numbers"),
    ]:
        with pytest.raises(reverie.UserError, match=message):
            reverie.save_episode(tmp_path / "log", **{**LOG, **changes})
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}


def test_a_folder_whose_first_episode_was_killed_is_used(tmp_path: Path) -> None:
    (tmp_path / ".episodes.json.0123abcd.unfinished").mkdir()
    reverie.save_episode(tmp_path, **LOG)
    assert len(list(reverie.open_episodes(tmp_path))) == 1


def save_many(folder: Path, count: int) -> None:
    for _ in range(count):
        reverie.save_episode(folder, **LOG)


def test_processes_can_save_to_the_same_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    saving = [spawn.Process(target=save_many, args=(tmp_path / "log", 10)) for _ in range(3)]
    for process in saving:
        process.start()
    for process in saving:
        process.join()
    assert [process.exitcode for process in saving] == [0, 0, 0]
    assert len(list(reverie.open_episodes(tmp_path / "log"))) == 30


def test_a_kill_leaves_all_saved_episodes_and_the_folder_can_be_continued(tmp_path: Path) -> None:
    program = (
        "import itertools, sys; from tests.api.test_your_data import LOG; import reverie\n"
        "for _ in itertools.count(): reverie.save_episode(sys.argv[1], **LOG); print('saved', flush=True)"
    )
    saved = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "log")],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as saving:
            assert saving.stdout is not None
            for _ in range(3):
                saving.stdout.readline()
            os.kill(saving.pid, signal.SIGKILL)
            saved += 3 + len(saving.stdout.readlines())
        found = len(list(reverie.open_episodes(tmp_path / "log")))
        # The last episode may be saved but not printed.
        assert saved <= found <= saved + 1
        saved = found


def test_a_file_that_a_killed_program_left_is_replaced(tmp_path: Path) -> None:
    reverie.save_episode(tmp_path / "log", **LOG)
    torn = tmp_path / "log" / "episode_000002-9.npz"
    torn.write_bytes(b"PK")
    assert len(list(reverie.open_episodes(tmp_path / "log"))) == 1
    reverie.save_episode(tmp_path / "log", **LOG)
    assert len(list(reverie.open_episodes(tmp_path / "log"))) == 2
    assert not torn.exists()


def test_the_blocks_of_the_page_run_one_after_the_other(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, check, train = BLOCKS
    assert len([line for line in module.splitlines() if line]) <= 40
    Path("robot.py").write_text(module)
    subprocess.run([sys.executable, "robot.py"], check=True)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    space: dict[str, Any] = {}
    exec(check, space)
    assert len(list(space["episodes"])) == 20
    exec(train.replace("total_timesteps=2000", "total_timesteps=16"), space)
    assert space["run"].metrics()[-1]["step"] == 16
    assert space["agent"].act(np.zeros(3, np.float32)).shape == (1,)
    del sys.modules["robot"]
    assert isinstance(space["Arm"](), gymnasium.Env)
