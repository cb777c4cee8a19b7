"""Written episodes are read back bit for bit, in every format."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from minari import MinariDataset

from reverie.buffers import EpisodeRecords
from reverie.episodes import EpisodeSpec, Format, find_action, find_episodes, write_episodes
from reverie.episodes.episode import DTYPES
from reverie.utils.errors import UserError
from reverie.utils.timestep import ActionSpec, ArraySpec

from .made import CATCH, episode, plain

PARTS = st.builds(
    ArraySpec,
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtype=st.sampled_from(sorted(DTYPES)).map(np.dtype),
)
SPECS = st.builds(
    EpisodeSpec,
    observation=st.dictionaries(
        st.sampled_from(["image", "image_2", "vector", "a wide view", "größe"]), PARTS, min_size=1
    ),
    action=st.builds(ActionSpec, size=st.integers(1, 4), is_discrete=st.booleans()),
)


@pytest.mark.parametrize("form", Format)
@given(spec=SPECS, lengths=st.lists(st.tuples(st.integers(2, 12), st.booleans()), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_episodes_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    form: Format,
    spec: EpisodeSpec,
    lengths: list[tuple[int, bool]],
) -> None:
    # Minari's metadata cannot describe arrays like (0, 3).
    assume(form is not Format.minari or all(0 not in part.shape for part in spec.observation.values()))
    folder = tmp_path_factory.mktemp("episodes") / "new"
    written = [episode(spec, length, ends, seed) for seed, (length, ends) in enumerate(lengths)]
    assert write_episodes(folder, form, written, spec) == len(written)
    found = find_episodes(folder)
    assert found.format is form
    assert found.action in (None, spec.action)
    assert plain(list(found.read(spec.action))) == plain(written)


@pytest.mark.parametrize("form", Format)
def test_episodes_longer_than_a_chunk_come_back(tmp_path: Path, form: Format) -> None:
    written = [episode(CATCH, length, seed=length) for length in (500, 700, 2, 2500, 1024, 3)]
    write_episodes(tmp_path, form, written, CATCH)
    assert plain(list(find_episodes(tmp_path).read(CATCH.action))) == plain(written)


@pytest.mark.parametrize("form", Format)
def test_episodes_are_written_and_read_one_at_a_time(tmp_path: Path, form: Format) -> None:
    spec = EpisodeSpec({"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))}, CATCH.action)
    tracemalloc.start()
    try:
        write_episodes(tmp_path / "e", form, (episode(spec, 100, seed=seed) for seed in range(30)), spec)
        assert sum(1 for _ in find_episodes(tmp_path / "e").read(spec.action)) == 30
        # The total is 37 MB.
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("action", [ActionSpec(3, True), ActionSpec(1, False), ActionSpec(2, False)])
def test_the_actions_are_known_from_the_files(tmp_path: Path, form: Format, action: ActionSpec) -> None:
    spec = EpisodeSpec(CATCH.observation, action)
    write_episodes(tmp_path, form, [episode(spec, 30, seed=seed) for seed in range(3)], spec)
    assert find_action(find_episodes(tmp_path)) == action


def test_an_episode_of_one_record_leaves_open_what_the_actions_are(tmp_path: Path) -> None:
    spec = EpisodeSpec(CATCH.observation, ActionSpec(2, False))
    write_episodes(tmp_path, Format.dreamerv3, [episode(spec, 1), episode(spec, 4)], spec)
    assert find_action(find_episodes(tmp_path)) == spec.action


@pytest.mark.parametrize("form", Format)
def test_several_choices_at_once_come_back(tmp_path: Path, form: Format) -> None:
    action = ActionSpec(5, True, (3, 2))
    spec = EpisodeSpec(CATCH.observation, action)
    written = [episode(spec, 30, seed=seed) for seed in range(2)]
    assert len(np.unique(np.concatenate([each.action[:-1] for each in written]), axis=0)) == 6
    write_episodes(tmp_path, form, written, spec)
    found = find_episodes(tmp_path)
    assert plain(list(found.read(action))) == plain(written)
    assert found.action == (action if form in (Format.own, Format.minari) else None)
    with pytest.raises(UserError, match=r"go up to 2, but there are only 2|not one-hot vectors, one of 2"):
        list(found.read(ActionSpec(5, True, (2, 3))))


def test_a_dataset_of_minari_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "größe 1.5"
    write_episodes(folder, Format.minari, [episode(CATCH, 3)], CATCH)
    # Minari accepts only letters, digits, - and _.
    assert MinariDataset(folder / "data").id == "reverie/größe_1_5-v0"


def test_minari_loads_what_is_written(tmp_path: Path) -> None:
    spec = EpisodeSpec({"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))}, ActionSpec(5, True, (3, 2)))
    written = [episode(spec, length, ends) for length, ends in ((30, True), (2, False))]
    write_episodes(tmp_path, Format.minari, written, spec)
    dataset = MinariDataset(tmp_path / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (2, 30)
    assert dataset.action_space == spaces.MultiDiscrete([3, 2])
    for mine, theirs in zip(written, dataset.iterate_episodes(), strict=True):
        assert (theirs.observations["image"] == mine.observation["image"]).all()
        blocks = np.split(mine.action[:-1], [3], axis=1)
        assert theirs.actions.tolist() == np.stack([block.argmax(1) for block in blocks], axis=1).tolist()
        assert (theirs.rewards == mine.reward[1:]).all()
        assert (theirs.terminations[-1], theirs.truncations[-1]) == (mine.is_terminal, not mine.is_terminal)


def test_a_folder_that_is_not_empty_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(
        UserError, match=r"is not empty, and files are never overwritten. Choose a new folder\.$"
    ):
        write_episodes(tmp_path, Format.own, [episode(CATCH, 3)], CATCH)
    for folder in (Path("."), tmp_path / "new" / ".."):
        with pytest.raises(UserError, match="is not a new folder"):
            write_episodes(folder, Format.own, [episode(CATCH, 3)], CATCH)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("form", Format)
def test_episodes_that_end_in_an_error_leave_no_folder(tmp_path: Path, form: Format) -> None:
    def broken() -> Iterator[EpisodeRecords]:
        yield episode(CATCH, 3)
        raise UserError("the next file is refused")

    with pytest.raises(UserError, match="is refused"):
        write_episodes(tmp_path / "new", form, broken(), CATCH)
    assert list(tmp_path.iterdir()) == []
    assert write_episodes(tmp_path / "new", form, [episode(CATCH, 3)], CATCH) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert len(list(find_episodes(tmp_path / "new").read(CATCH.action))) == 1


@pytest.mark.parametrize(
    ("form", "key"),
    [
        (Format.own, "reward"),
        (Format.dreamerv3, "dyn/deter"),
        (Format.minari, "a/b"),
    ],
)
def test_an_observation_that_would_be_lost_is_not_written(tmp_path: Path, form: Format, key: str) -> None:
    spec = EpisodeSpec({key: ArraySpec((2,), np.dtype(np.float32))}, ActionSpec(2, False))
    with pytest.raises(UserError, match=f"`{key}` is not a valid observation in format={form.value}"):
        write_episodes(tmp_path, form, [episode(spec, 3)], spec)
    assert list(tmp_path.iterdir()) == []


def test_minari_contains_the_executed_actions(tmp_path: Path) -> None:
    spec = EpisodeSpec({"vector": ArraySpec((2,))}, ActionSpec(1, is_discrete=False))
    sampled = episode(spec, 20)
    sampled.action[:-1] *= 3
    write_episodes(tmp_path, Format.minari, [sampled], spec)
    dataset = MinariDataset(tmp_path / "data")
    [read] = dataset.iterate_episodes()
    assert np.abs(sampled.action).max() > 1
    assert all(dataset.action_space.contains(action) for action in read.actions)
    np.testing.assert_array_equal(read.actions, sampled.action[:-1].clip(-1, 1))
