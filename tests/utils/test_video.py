"""Videos are decoded and compared with the written frames."""

import weakref
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from reverie.utils.errors import UserError
from reverie.utils.video import (
    captioned,
    encode_animation,
    encode_image,
    require_video_path,
    save_video,
    upscale,
)

Frames = NDArray[np.uint8]


def moving_square(num_frames: int = 12, height: int = 64, width: int = 64) -> Frames:
    """Return frames of a light square on brown that moves by four pixels per frame."""
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    frames[:] = (144, 72, 17)
    for time in range(num_frames):
        frames[time, 16:32, 4 * time : 4 * time + 12] = (236, 236, 236)
    return frames


def decode_mp4(path: Path) -> Frames:
    with av.open(str(path)) as container:
        frames = [
            np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in container.decode(video=0)
        ]
    return np.stack(frames)


def decode_image_file(file: Path | BytesIO) -> Frames:
    with Image.open(file) as opened:
        frames = []
        for index in range(getattr(opened, "n_frames", 1)):
            opened.seek(index)
            frames.append(np.asarray(opened.convert("RGB")))
    return np.stack(frames)


def test_an_mp4_holds_every_frame_at_its_size_and_pace(tmp_path: Path) -> None:
    frames = moving_square()
    save_video(tmp_path / "episode.mp4", frames, fps=15)
    decoded = decode_mp4(tmp_path / "episode.mp4")
    assert decoded.shape == frames.shape
    error = np.abs(decoded.astype(int) - frames.astype(int))
    # Colors have half the resolution, so pixels at edges differ more.
    assert error.mean() < 3
    # This is away from the square.
    assert error[:, :8].max() <= 6
    with av.open(str(tmp_path / "episode.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 15
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"


def test_an_mp4_of_odd_size_is_made_even_by_repeating_the_border(tmp_path: Path) -> None:
    frames = moving_square(4, height=33, width=65)
    save_video(tmp_path / "odd.mp4", frames, fps=15)
    decoded = decode_mp4(tmp_path / "odd.mp4").astype(int)
    assert decoded.shape == (4, 34, 66, 3)
    assert np.abs(decoded[:, 33, :60] - decoded[:, 32, :60]).max() <= 12
    assert np.abs(decoded[:, 0, 65] - (144, 72, 17)).max() <= 6


def test_a_gif_of_few_colours_is_exact_and_repeats(tmp_path: Path) -> None:
    frames = moving_square()
    save_video(tmp_path / "episode.gif", frames, fps=20)
    np.testing.assert_array_equal(decode_image_file(tmp_path / "episode.gif"), frames)
    with Image.open(tmp_path / "episode.gif") as opened:
        assert opened.info["duration"] == 50
        assert opened.info["loop"] == 0


@pytest.mark.parametrize(("fps", "duration_ms"), [(15, 70), (60, 20), (100, 20)])
def test_a_gif_frame_lasts_whole_hundredths_of_a_second_and_at_least_two(
    tmp_path: Path, fps: float, duration_ms: int
) -> None:
    save_video(tmp_path / "episode.gif", moving_square(3), fps)
    with Image.open(tmp_path / "episode.gif") as opened:
        assert opened.info["duration"] == duration_ms


def test_an_animation_is_exact_for_any_colours_and_repeats(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 24, 32, 3), np.uint8)
    path = tmp_path / "animation.png"
    path.write_bytes(encode_animation(frames, fps=12.5))
    np.testing.assert_array_equal(decode_image_file(path), frames)
    with Image.open(path) as opened:
        assert opened.info["duration"] == 80
        assert opened.info["loop"] == 0


def test_an_image_is_exact(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    (tmp_path / "image.png").write_bytes(encode_image(image))
    np.testing.assert_array_equal(decode_image_file(tmp_path / "image.png"), image[None])


def test_upscaling_repeats_each_pixel_in_both_directions() -> None:
    # One row with two columns.
    frame = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    expected = [[[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]] * 2
    assert upscale(frame, 2).tolist() == expected
    assert upscale(frame[None], 2).tolist() == [expected]


@pytest.mark.parametrize(("side", "scale"), [(64, 1), (10, 2)])
def test_captions_stand_beside_their_share_of_the_frames(side: int, scale: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 3 * side, side, 3), np.uint8)
    shown = captioned(frames, ("truth", "", "error"))
    height, width = scale * side, shown.shape[2] - scale * side
    np.testing.assert_array_equal(shown[:, :, width:], upscale(frames, scale))
    shares = shown[:, :, :width].reshape(2, 3, height, width, 3)
    assert shares.any((2, 3, 4)).tolist() == [[True, False, True]] * 2
    # The captions are not cut off.
    assert not shares[:, :, -1].any() and not shares[:, :, :, -1].any()
    longest = captioned(frames, ("prediction",) * 3)[:, :, :width]
    assert not longest[:, :, -1].any() and longest[:, :, 40:-4].any()


@pytest.mark.parametrize("name", ["out.avi", "out"])
def test_a_video_of_unknown_kind_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    with pytest.raises(UserError) as refused:
        save_video(path, moving_square(2), fps=15)
    repair = f"Use video={path.with_suffix('.mp4')}."
    assert str(refused.value) == f"video={path} must end in .mp4 or .gif. {repair}"
    assert list(tmp_path.iterdir()) == []


def test_mp4_and_gif_are_accepted_ahead_of_time(tmp_path: Path) -> None:
    require_video_path(tmp_path / "a.mp4")
    require_video_path(tmp_path / "a.gif")
    with pytest.raises(UserError):
        require_video_path(tmp_path / "a.mov")


def frames_that_break() -> Iterator[Frames]:
    # After this many frames the encoder has started the file.
    for _ in range(8):
        yield from moving_square(12)
    raise RuntimeError("the environment crashed")


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"episode{suffix}"
    save_video(path, moving_square(4), fps=15)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="the environment crashed"):
        save_video(path, frames_that_break(), fps=15)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_without_frames_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        save_video(tmp_path / f"empty{suffix}", iter(()), fps=15)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mp4", ".png"])
def test_encoding_a_generator_never_keeps_its_frames(tmp_path: Path, suffix: str) -> None:
    given: list[weakref.ref[Frames]] = []
    most_alive = 0
    path = tmp_path / f"episode{suffix}"

    def frames() -> Iterator[Frames]:
        nonlocal most_alive
        for frame in moving_square(14):
            own = frame.copy()
            given.append(weakref.ref(own))
            yield own
            del own
            most_alive = max(most_alive, sum(ref() is not None for ref in given))

    if suffix == ".mp4":
        save_video(path, frames(), fps=15)
        decoded = decode_mp4(path)
    else:
        path.write_bytes(encode_animation(frames(), fps=15))
        decoded = decode_image_file(path)
    assert len(decoded) == 14
    # These are the current frame and the first, because the first determined the size.
    assert most_alive <= 2
