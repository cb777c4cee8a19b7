"""Files of other projects, with values that identify each record. Minari's are written by its library.

Each file contains the same episode. Observations are 10, 11, 12 and 13. Actions are 2 (in 10), 0 (in 11) and
1 (in 12). Rewards are 0.5, 0 and 1 on arriving at 11, 12 and 13, where the episode terminates.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.serialization import serialize_space

from reverie.buffers import EpisodeRecords
from reverie.commands import episodes as commands
from reverie.episodes import CONVERTER, Format, find_action, find_episodes
from reverie.utils.errors import UserError
from reverie.utils.timestep import ActionSpec

CHOICES = ActionSpec(3, True)
SEEN = np.array([[10], [11], [12], [13]], np.float32)
REWARD = np.array([0, 0.5, 0, 1], np.float32)
AFTER = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
LAST = np.array([False, False, False, True])
BOX = spaces.Box(-99, 99, (1,))
CHOICE = spaces.Discrete(3)


def only(path: Path, form: Format, action: ActionSpec = CHOICES) -> EpisodeRecords:
    found = find_episodes(path)
    assert found.format is form
    [episode] = found.read(action)
    return episode


def assert_is_the_episode(episode: EpisodeRecords, key: str = "vector") -> None:
    assert episode.observation.keys() == {key}
    assert episode.observation[key].tolist() == SEEN.tolist()
    assert episode.action.tolist() == AFTER
    assert episode.reward.tolist() == REWARD.tolist()
    assert episode.is_terminal


@pytest.mark.parametrize("names", [["a-4.npz"], ["a-4.npz", f"20240711T091409F123-{1:022d}-{2:022d}-4.npz"]])
def test_files_of_another_layout_are_refused_with_the_way_to_convert_them(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        np.savez_compressed(tmp_path / name, vector=SEEN, reward=REWARD)
    for path in (tmp_path, tmp_path / "a-4.npz"):
        with pytest.raises(UserError, match=r"Convert files of dreamerv3-torch with \S+\.py\.$") as refused:
            find_episodes(path)
        assert str(refused.value).startswith(f"path={path} has npz files")
    assert (Path(__file__).parents[2] / CONVERTER).is_file()


# An episode without its beginning, the episode, one that is abandoned, and one that is still open.
STREAM = {
    "vector": np.array([[8], [9], *SEEN.tolist(), [20], [21], [30]], np.float32),
    "reward": np.array([0, 1, *REWARD.tolist(), 0, 0, 0], np.float32),
    "is_first": np.array([0, 0, 1, 0, 0, 0, 1, 0, 1], np.bool_),
    "is_last": np.array([0, 1, 0, 0, 0, 1, 0, 0, 0], np.bool_),
    "is_terminal": np.array([0, 0, 0, 0, 0, 1, 0, 0, 0], np.bool_),
    "action": np.array([1, 0, 2, 0, 1, 0, 1, 1, 1], np.int32),
    "dyn/deter": np.ones((9, 8), np.float16),
    "stepid": np.ones((9, 20), np.uint8),
    "consec": np.zeros(9, np.int32),
}


def chunks(folder: Path, cuts: list[int], arrays: dict[str, Any] | None = None) -> None:
    """Write chunks as `Chunk.save` of danijar/dreamerv3 does, split into files."""
    folder.mkdir(exist_ok=True)
    arrays = STREAM if arrays is None else arrays
    for index, (start, stop) in enumerate(pairwise(cuts)):
        name = f"20240711T09140{9 - index}F123-{index + 1:022d}-{index + 2:022d}-{stop - start}.npz"
        np.savez_compressed(folder / name, **{key: values[start:stop] for key, values in arrays.items()})


@pytest.mark.parametrize("cuts", [[0, 9], [0, 3, 9], [0, 2, 4, 6, 9], list(range(10))])
def test_dreamerv3_with_chunks_that_cut_episodes(tmp_path: Path, cuts: list[int]) -> None:
    chunks(tmp_path / "replay", cuts)
    assert_is_the_episode(only(tmp_path / "replay", Format.dreamerv3))
    assert find_action(find_episodes(tmp_path / "replay")) == CHOICES


def test_dreamerv3_keeps_observations_with_a_slash_and_reports_all_that_it_skips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = {"robot/pose": np.ones((9, 3), np.float32), "dynamics/mass": np.ones((9, 1), np.float32)}
    latents = {"enc/tokens": np.ones((9, 2), np.float32), "dec/features": np.ones((9, 2), np.float32)}
    chunks(tmp_path / "replay", [0, 3, 9], STREAM | nested | latents)
    found = find_episodes(tmp_path / "replay")
    [episode] = found.read(CHOICES)
    assert episode.observation.keys() == {"vector", *nested}
    skipped = "consec, dec/features, dyn/deter, enc/tokens, stepid, 5 records of unfinished episodes"
    assert found.skipped_text == skipped
    commands.main(["import", f"path={tmp_path / 'replay'}", f"to={tmp_path / 'mine'}"])
    assert capsys.readouterr().out.endswith(f"skipped: {skipped}\n")
    commands.main(["show", f"path={tmp_path / 'replay'}"])
    assert skipped in capsys.readouterr().out
    commands.main(["show", f"path={tmp_path / 'mine'}"])
    shown = capsys.readouterr().out
    assert "robot/pose" in shown and "skipped" not in shown


def test_minari_reports_what_it_skips(tmp_path: Path) -> None:
    found = find_episodes(minari(tmp_path, SEEN, np.array([2, 0, 1])))
    assert len(list(found.read(CHOICES))) == 1
    assert found.skipped_text == "infos"


def test_dreamerv3_of_2023_with_one_hot_actions(tmp_path: Path) -> None:
    old = STREAM | {"action": np.eye(3, dtype=np.float32)[STREAM["action"]], "id": STREAM["stepid"][:, :16]}
    del old["stepid"]
    chunks(tmp_path, [0, 4, 9], old)
    assert_is_the_episode(only(tmp_path, Format.dreamerv3))


def test_dreamerv3_with_a_chunk_missing_keeps_what_is_whole(tmp_path: Path) -> None:
    chunks(tmp_path, [0, 2, 6, 9])
    min(tmp_path.glob("*-2.npz")).unlink()
    assert_is_the_episode(only(tmp_path, Format.dreamerv3))
    min(tmp_path.glob("*-4.npz")).unlink()
    with pytest.raises(UserError, match="has no complete episode"):
        list(find_episodes(tmp_path).read(CHOICES))


def test_dreamerv3_with_chunks_in_a_circle_is_refused(tmp_path: Path) -> None:
    chunks(tmp_path, [0, 9])
    [file] = tmp_path.glob("*.npz")
    file.rename(tmp_path / f"20240711T091409F123-{1:022d}-{1:022d}-9.npz")
    with pytest.raises(UserError, match="the chunks after it lead back to it"):
        list(find_episodes(tmp_path).read(CHOICES))


def minari(
    folder: Path,
    observations: Any,
    actions: Any,
    acting: spaces.Space = CHOICE,
    seen: spaces.Space = BOX,
    **options: Any,
) -> Path:
    """Write a dataset with Minari."""
    folder.mkdir(exist_ok=True)
    storage = MinariStorage.new(folder / "data", seen, acting, **options)
    arrays = {
        "observations": observations,
        "actions": actions,
        "rewards": REWARD[1:].astype(np.float64),
        "terminations": LAST[1:],
        "truncations": np.zeros(3, np.bool_),
        "infos": {"success": np.zeros(4, np.bool_), "name": list("abcd")},
    }
    storage.update_episodes([EpisodeBuffer(seed=42, **arrays)])
    return folder


def changed(folder: Path) -> Any:
    """Open the file of a dataset for writing."""
    return h5py.File(folder / "data" / "main_data.hdf5", "r+")


def test_minari(tmp_path: Path) -> None:
    minari(tmp_path, SEEN, np.array([7, 5, 6]), spaces.Discrete(3, start=5))
    for path in (tmp_path, tmp_path / "data", tmp_path / "data" / "main_data.hdf5"):
        assert_is_the_episode(only(path, Format.minari))
    assert find_episodes(tmp_path).action == CHOICES


def test_minari_with_a_dict_of_observations(tmp_path: Path) -> None:
    minari(tmp_path, {"position": SEEN}, np.array([2, 0, 1]), seen=spaces.Dict({"position": BOX}))
    assert_is_the_episode(only(tmp_path, Format.minari), "position")


def test_minari_with_continuous_actions_is_scaled_to_the_models(tmp_path: Path) -> None:
    bounds = np.array([[-2, 0, -np.inf], [2, 10, np.inf]], np.float32)
    actions = np.array([[-2, 10, 7], [0, 5, -3], [1, 0, 0]], np.float32)
    minari(tmp_path, SEEN, actions, spaces.Box(*bounds))
    assert find_episodes(tmp_path).action == ActionSpec(3, False)
    chosen = only(tmp_path, Format.minari, ActionSpec(3, False)).action
    assert chosen.tolist() == [[-1, 1, 7], [0, 0, -3], [0.5, -1, 0], [0, 0, 0]]


@pytest.mark.parametrize("acting", [spaces.MultiDiscrete([3, 2], start=[0, 4]), spaces.MultiBinary(2)])
def test_minari_with_several_choices(tmp_path: Path, acting: spaces.Space) -> None:
    parts = (3, 2) if isinstance(acting, spaces.MultiDiscrete) else (2, 2)
    minari(tmp_path, SEEN, np.array([[0, 0], [1, 1], [1, 0]]) + np.array([0, 4 * (parts[0] == 3)]), acting)
    action = find_action(find_episodes(tmp_path))
    assert action == ActionSpec(sum(parts), True, parts)
    blocks = np.split(only(tmp_path, Format.minari, action).action[:-1], [parts[0]], axis=1)
    assert [block.argmax(1).tolist() for block in blocks] == [[0, 1, 1], [0, 1, 0]]


def test_minari_with_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    space = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    minari(tmp_path / "raw", images, np.array([2, 0, 1]), seen=space, jpeg_encoding=False)
    assert (only(tmp_path / "raw", Format.minari).observation["image"] == images).all()
    minari(tmp_path / "jpeg", images, np.array([2, 0, 1]), seen=space)
    with pytest.raises(UserError, match=r"`image` consists of lossy JPEG .* with jpeg_encoding=False"):
        find_episodes(tmp_path / "jpeg")


def test_minari_truncated(tmp_path: Path) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    with changed(tmp_path) as file:
        file["episode_0/terminations"][-1] = False
        file["episode_0/truncations"][-1] = True
    assert not only(tmp_path, Format.minari).is_terminal


def test_minari_in_the_order_of_numbers(tmp_path: Path) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    with changed(tmp_path) as file:
        for number in (10, *range(1, 10)):
            file.copy("episode_0", f"episode_{number}")
            file[f"episode_{number}/rewards"][0] = number
    rewards = [episode.reward[1] for episode in find_episodes(tmp_path).read(CHOICES)]
    assert rewards == [0.5, *range(1, 11)]


TEXT = spaces.Text(9)
PAIR = spaces.Tuple([BOX, BOX])


@pytest.mark.parametrize(
    ("seen", "acting", "message"),
    [
        (TEXT, CHOICE, "its `vector` is a Text, but only Box, Discrete"),
        (PAIR, CHOICE, "its `vector` is a Tuple, but only Box, Discrete"),
        (spaces.Dict({"a": BOX, "mission": TEXT}), CHOICE, "its `mission` is a Text, but only Box"),
        (spaces.Dict({"a": PAIR}), CHOICE, "its `a` is a Tuple, but only Box"),
        (spaces.Dict({"a": spaces.Dict({})}), CHOICE, "its `a` is a Dict, but only Box"),
        (BOX, TEXT, "its `actions` is a Text, but only Box, Discrete"),
        (BOX, PAIR, "its `actions` is a Tuple, but only Box, Discrete"),
        (BOX, spaces.Dict({"a": CHOICE}), "its `actions` is a Dict, but only Box"),
        (BOX, spaces.Box(0, 1, (0,)), "its action is invalid"),
        (BOX, spaces.Discrete(10**6), "its action is invalid"),
        (BOX, spaces.MultiBinary(2**40), "its action is invalid"),
        (spaces.Box(-9, 9, (2,)), CHOICE, r"`vector` has the shape \(4, 1\), unlike its space \(2,\)"),
        (BOX, spaces.Box(-1, 1, (2,)), r"one action has the shape \(\)"),
    ],
)
def test_minari_names_the_space_that_it_cannot_read(
    tmp_path: Path, seen: spaces.Space, acting: spaces.Space, message: str
) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    metadata = tmp_path / "data" / "metadata.json"
    changes = {"observation_space": serialize_space(seen), "action_space": serialize_space(acting)}
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        found = find_episodes(tmp_path)
        list(found.read(found.action or CHOICES))
