"""Returns, lengths and frames of episodes, from literal arrivals."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from reverie.envs.episodes import Episode, EpisodeRecorder, EpisodeTracker
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec

from ..runs.helpers import arrival

IMAGE = ArraySpec((2, 2, 3), np.dtype(np.uint8))


def spec_of(**observation: ArraySpec) -> EnvSpec:
    return EnvSpec("toy", observation, ActionSpec(2, True), num_envs=2, action_repeat=1)


def pictures(first: int, channels: int = 3) -> NDArray[np.uint8]:
    """Return images of two environments: one filled with `first`, and one with 99 that is not recorded."""
    return np.stack([np.full((2, 2, channels), value, np.uint8) for value in (first, 99)])


def recorded(
    recorder: EpisodeRecorder, steps: list[tuple[int, str, str]], channels: int = 3
) -> list[list[int] | None]:
    """Return the values of the recorded frames, or `None`, for each (value, first, last)."""
    results = []
    for value, first, last in steps:
        frames = recorder.add(arrival([0.0, 0.0], first, last, pictures(value, channels)))
        if frames is not None:
            assert (frames.shape[1:], frames.dtype) == ((2, 2, 3), np.uint8)
            assert (frames == frames[:, :1, :1, :1]).all()
        results.append(None if frames is None else frames[:, 0, 0, 0].tolist())
    return results


def test_each_environment_is_added_up_by_itself() -> None:
    tracker = EpisodeTracker(2)
    assert tracker.add(arrival([0, 0], first="01")) == []
    assert tracker.add(arrival([1, -1])) == []
    assert tracker.add(arrival([2, -1], last="0")) == [Episode(env=0, episode_return=3.0, length=2)]
    assert tracker.add(arrival([0, -1], first="0")) == []
    assert tracker.add(arrival([0.5, -1], last="01")) == [Episode(0, 0.5, 1), Episode(1, -4.0, 4)]


def test_an_episode_abandoned_by_a_reset_counts_for_nothing() -> None:
    tracker = EpisodeTracker(1)
    for step in (arrival([0], first="0"), arrival([7]), arrival([0], first="0"), arrival([1])):
        assert tracker.add(step) == []
    assert tracker.add(arrival([1], last="0")) == [Episode(0, 2.0, 2)]


def test_an_episode_cut_off_by_a_failure_counts_for_nothing() -> None:
    tracker = EpisodeTracker(2)
    tracker.add(arrival([0, 0], first="01"))
    assert tracker.add(replace(arrival([7, 5], last="01"), failed=(0,))) == [Episode(1, 5.0, 1)]
    tracker.add(arrival([0, 0], first="01"))
    assert tracker.add(arrival([1, 2], last="0")) == [Episode(0, 1.0, 1)]


def test_many_small_float32_rewards_add_up_without_drift() -> None:
    tracker = EpisodeTracker(1)
    tracker.add(arrival([0], first="0"))
    for _ in range(9999):
        tracker.add(arrival([0.1]))
    (episode,) = tracker.add(arrival([0.1], last="0"))
    assert episode.episode_return == pytest.approx(10_000 * float(np.float32(0.1)), abs=1e-9)
    assert episode.length == 10_000


def test_nothing_is_recorded_unless_asked() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE))
    assert recorded(recorder, [(1, "01", ""), (2, "", "0"), (3, "0", "0")]) == [None, None, None]


def test_one_whole_episode_of_environment_0_is_recorded() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE))
    recorder.request()
    steps = [(1, "01", ""), (2, "", "1"), (3, "1", "0"), (4, "0", ""), (5, "", "0")]
    assert recorded(recorder, steps) == [None, None, [1, 2, 3], None, None]


def test_a_request_in_the_middle_of_an_episode_waits_for_the_next() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE))
    assert recorded(recorder, [(1, "01", ""), (2, "", "")]) == [None, None]
    recorder.request()
    assert recorded(recorder, [(3, "", "0"), (4, "0", ""), (5, "", "0")]) == [None, None, [4, 5]]


def test_a_request_while_recording_records_the_next_episode_too() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE))
    recorder.request()
    recorded(recorder, [(1, "01", "")])
    recorder.request()
    assert recorded(recorder, [(2, "", "0"), (3, "0", ""), (4, "", "0")]) == [[1, 2], None, [3, 4]]


def test_a_long_episode_is_cut_and_the_rest_of_it_left_out() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE), max_frames=2)
    recorder.request()
    steps = [(1, "01", ""), (2, "", ""), (3, "", ""), (4, "", "0")]
    assert recorded(recorder, steps) == [None, [1, 2], None, None]


def test_a_recording_owns_its_frames() -> None:
    recorder = EpisodeRecorder(spec_of(image=IMAGE))
    recorder.request()
    first, last = arrival([0, 0], "01", "", pictures(1)), arrival([0, 0], "", "0", pictures(2))
    recorder.add(first)
    frames = recorder.add(last)
    assert frames is not None
    assert not any(np.shares_memory(frames, step.observation["image"]) for step in (first, last))


def test_one_channel_is_shown_in_grey() -> None:
    recorder = EpisodeRecorder(spec_of(image=ArraySpec((2, 2, 1), np.dtype(np.uint8))))
    recorder.request()
    assert recorded(recorder, [(7, "01", ""), (8, "", "0")], channels=1) == [None, [7, 8]]


def test_without_an_image_it_keeps_what_is_drawn_made_smaller_and_of_one_size() -> None:
    sizes = iter([(100, 256), (90, 200), None, (100, 256)])

    def draw() -> NDArray[np.uint8] | None:
        size = next(sizes)
        return None if size is None else np.full((*size, 3), 7, np.uint8)

    spec = replace(spec_of(speed=ArraySpec((3,), np.dtype(np.float32))), renders=True)
    recorder = EpisodeRecorder(spec, render=draw)
    assert recorder.planned_bytes == 1000 * 128 * 128 * 3
    # No recording is requested, so no frame is rendered.
    assert recorder.add(arrival([0, 0], first="01")) is None
    recorder.request()
    steps = [arrival([0, 0], first="01"), arrival([0, 0]), arrival([0, 0]), arrival([0, 0], last="0")]
    *_, frames = [recorder.add(step) for step in steps]
    assert frames is not None and frames.shape == (3, 50, 128, 3) and (frames == 7).all()


def test_an_episode_of_which_nothing_could_be_drawn_is_saved_as_no_frames() -> None:
    spec = replace(spec_of(speed=ArraySpec((3,), np.dtype(np.float32))), renders=True)
    recorder = EpisodeRecorder(spec, render=lambda: None)
    recorder.request()
    recorder.add(arrival([0, 0], first="01"))
    assert recorder.state_dict() == {"wanted": False, "frames": None}
    assert recorder.add(arrival([0, 0], last="01")) is None


def test_without_an_image_a_request_is_ignored() -> None:
    recorder = EpisodeRecorder(spec_of(speed=ArraySpec((3,), np.dtype(np.float32))))
    recorder.request()
    assert recorder.add(arrival([0, 0], first="01", last="01")) is None
