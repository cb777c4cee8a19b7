"""Files of other projects, built by hand from their sources, with values that identify each record.

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


def minari(folder: Path, observations: Any, actions: Any, **spaces: Any) -> Path:
    """Write a dataset as `HDF5Storage.update_episodes` of Minari does."""
    (folder / "data").mkdir()
    with h5py.File(folder / "data" / "main_data.hdf5", "w", track_order=True) as file:
        group = file.create_group("episode_0")
        group.attrs.update({"id": 0, "total_steps": 3, "seed": 42})
        shown = observations.items() if isinstance(observations, dict) else [("", observations)]
        for key, values in shown:
            name = f"observations/{key}" if key else "observations"
            group.create_dataset(name, data=values, chunks=True, maxshape=(None, *values.shape[1:]))
        group.create_dataset("actions", data=actions, chunks=True)
        group.create_dataset("rewards", data=REWARD[1:].astype(np.float64), chunks=True)
        group.create_dataset("terminations", data=LAST[1:], chunks=True)
        group.create_dataset("truncations", data=np.zeros(3, np.bool_), chunks=True)
        group.create_dataset("infos/success", data=np.zeros(4, np.bool_))
    if spaces:
        metadata = {"data_format": "hdf5", **{name: json.dumps(space) for name, space in spaces.items()}}
        (folder / "data" / "metadata.json").write_text(json.dumps(metadata))
    return folder


def changed(folder: Path) -> Any:
    """Open the file of a dataset for writing."""
    return h5py.File(folder / "data" / "main_data.hdf5", "r+")


def test_minari(tmp_path: Path) -> None:
    space = {"type": "Discrete", "dtype": "int64", "start": 5, "n": 3}
    minari(tmp_path, SEEN, np.array([7, 5, 6]), action_space=space)
    for path in (tmp_path, tmp_path / "data", tmp_path / "data" / "main_data.hdf5"):
        assert_is_the_episode(only(path, Format.minari))
    assert find_episodes(tmp_path).action == CHOICES


def test_minari_with_a_dict_of_observations_and_without_metadata(tmp_path: Path) -> None:
    minari(tmp_path, {"position": SEEN}, np.array([2, 0, 1]))
    assert find_action(find_episodes(tmp_path)) == CHOICES
    assert_is_the_episode(only(tmp_path, Format.minari), "position")


def test_minari_with_continuous_actions_is_scaled_to_the_models(tmp_path: Path) -> None:
    space = {"type": "Box", "dtype": "float32", "shape": [3]}
    space |= {"low": [-2, 0, -np.inf], "high": [2, 10, np.inf]}
    actions = np.array([[-2, 10, 7], [0, 5, -3], [1, 0, 0]], np.float32)
    minari(tmp_path, SEEN, actions, action_space=space)
    chosen = only(tmp_path, Format.minari, ActionSpec(3, False)).action
    assert chosen.tolist() == [[-1, 1, 7], [0, 0, -3], [0.5, -1, 0], [0, 0, 0]]


def test_minari_truncated(tmp_path: Path) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    with changed(tmp_path) as file:
        file["episode_0/terminations"][-1] = False
        file["episode_0/truncations"][-1] = True
    assert not only(tmp_path, Format.minari).is_terminal


def test_minari_in_the_order_of_numbers(tmp_path: Path) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    with changed(tmp_path) as file:
        for number in (1, 10, 2):
            file.copy("episode_0", f"episode_{number}")
            file[f"episode_{number}/rewards"][0] = number
    rewards = [episode.reward[1] for episode in find_episodes(tmp_path).read(CHOICES)]
    assert rewards == [0.5, 1, 2, 10]


BOX = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-9], "high": [9]}
TEXT = {"type": "Text", "max_length": 9, "min_length": 1, "charset": "abc"}
PAIR = {"type": "Tuple", "subspaces": [BOX, BOX]}
CHOICE = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (TEXT, CHOICE, "its observations are a Text, but only Box, Discrete"),
        (PAIR, CHOICE, "its observations are a Tuple, but only Box, Discrete"),
        (
            {"type": "Dict", "subspaces": {"a": BOX, "mission": TEXT}},
            CHOICE,
            "its observation `mission` is a Text, but only Box",
        ),
        ({"type": "Dict", "subspaces": {"a": PAIR}}, CHOICE, "its observation `a` is a Tuple, but only Box"),
        (
            {"type": "Dict", "subspaces": {"a": {"type": "Dict", "subspaces": {}}}},
            CHOICE,
            "its observation `a` is a Dict, but only Box",
        ),
        (BOX, TEXT, "its actions are a Text, not a Discrete, MultiDiscrete or Box"),
        (BOX, PAIR, "its actions are a Tuple, not a Discrete"),
        (BOX, BOX | {"shape": [0], "low": [], "high": []}, "its actions are empty"),
    ],
)
def test_minari_names_the_space_that_it_cannot_read(
    tmp_path: Path, observation: Any, action: Any, message: str
) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]), observation_space=observation, action_space=action)
    with pytest.raises(UserError, match=message):
        list(find_episodes(tmp_path).read(CHOICES))


@pytest.mark.parametrize("name", ["observations", "actions"])
def test_minari_recognizes_a_tuple_without_metadata(tmp_path: Path, name: str) -> None:
    minari(tmp_path, SEEN, np.array([2, 0, 1]))
    with changed(tmp_path) as file:
        del file[f"episode_0/{name}"]
        for index in range(2):
            file[f"episode_0/{name}/_index_{index}"] = np.zeros((4, 1))
    with pytest.raises(UserError, match=f"`{name}` .* Tuple"):
        list(find_episodes(tmp_path).read(CHOICES))
