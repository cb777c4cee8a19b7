"""Write RGB frames, uint8 (time, height, width, 3), as MP4, GIF or animated PNG."""

import io
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .durable_io import replacing, writing
from .errors import UserError

Frame = NDArray[np.uint8]
VIDEO_SUFFIXES = (".mp4", ".gif")
# Browsers slow shorter frames down to 10 frames per second.
_SHORTEST_GIF_FRAME_MS = 20
# Width of captions and least height of a row in pixels, for the default font.
_CAPTION_WIDTH, _CAPTION_HEIGHT = 60, 16
# At crf 18, compression losses are invisible.
_X264_OPTIONS = {"crf": "18", "preset": "veryfast"}


def require_video_path(path: Path) -> None:
    """Raise `UserError` if `save_video` does not support a path's suffix."""
    if path.suffix not in VIDEO_SUFFIXES:
        named = path if path.name else path / "episode"
        raise UserError(
            f"video={path} must end in {' or '.join(VIDEO_SUFFIXES)}. "
            f"Use video={named.with_suffix(VIDEO_SUFFIXES[0])}."
        )


def save_video(path: Path, frames: Iterable[Frame], fps: float) -> None:
    """Write frames to an MP4 (H.264) or GIF file. An existing file is replaced atomically.

    MP4 is encoded frame by frame in constant memory. An odd height or width is made even by repeating the
    last row or column. For a GIF, the encoded frames are kept in memory until the end. A GIF has at most 50
    frames per second, and equal consecutive frames become one longer frame.

    Raises:
        UserError: For any other suffix.
        ValueError: If `frames` is empty.
    """
    require_video_path(path)
    write = _write_mp4 if path.suffix == ".mp4" else _write_gif
    rest = iter(frames)
    if (first := next(rest, None)) is None:
        raise ValueError("A video needs at least one frame.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as begun, writing(path):
        write(begun, first, rest, fps)


def upscale(frames: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return the frames (or one frame) with every pixel repeated `factor` times in both directions."""
    return frames.repeat(factor, axis=-3).repeat(factor, axis=-2)


def captioned(frames: NDArray[np.uint8], captions: Sequence[str]) -> NDArray[np.uint8]:
    """Return frames (T, H, W, 3) with a column of captions on the left, each beside an equal share of H.

    Frames are upscaled if a share would have less than 16 pixels.
    """
    frames = upscale(frames, -(-_CAPTION_HEIGHT * len(captions) // frames.shape[1]))
    height = frames.shape[1]
    column = Image.new("RGB", (_CAPTION_WIDTH, height))
    for index, caption in enumerate(captions):
        ImageDraw.Draw(column).text((4, index * height // len(captions)), caption)
    repeated = np.broadcast_to(np.asarray(column), (len(frames), height, _CAPTION_WIDTH, 3))
    return np.concatenate([repeated, frames], axis=2)


def encode_image(image: Frame) -> bytes:
    """Return one frame as a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def encode_animation(frames: Iterable[Frame], fps: float) -> bytes:
    """Return frames as a lossless animated PNG that repeats forever. Memory is constant."""
    buffer = io.BytesIO()
    _encode(buffer, frames, fps, "apng", "apng", "rgb24", {"plays": "0"}, {})
    return buffer.getvalue()


def _write_mp4(path: Path, first: Frame, rest: Iterator[Frame], fps: float) -> None:
    """Encode with x264 as yuv420p, the only pixel format that every player and browser supports."""
    height, width = first.shape[:2]
    # The color planes of yuv420p have half the height and width.
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    even = (np.pad(frame, odd, mode="edge") for frame in chain([first], rest))
    _encode(str(path), even, fps, "mp4", "libx264", "yuv420p", {}, _X264_OPTIONS)


def _encode(
    target: str | io.BytesIO,
    frames: Iterable[Frame],
    fps: float,
    container: str,
    codec: str,
    pixels: str,
    container_options: dict[str, str],
    codec_options: dict[str, str],
) -> None:
    # Runs without videos do not need these libraries.
    import av

    with av.open(target, "w", format=container, options=container_options) as opened:
        rate = Fraction(fps).limit_denominator(1000)
        # PyAV's types do not know which codecs are for videos.
        stream: Any = opened.add_stream(codec, rate=rate, options=codec_options)
        stream.pix_fmt = pixels
        # Frames are small, and each thread reserves 72 MB of address space.
        stream.codec_context.thread_count = 1
        for index, frame in enumerate(frames):
            # The first frame opens the encoder, which cannot change its size later.
            if index == 0:
                stream.height, stream.width = frame.shape[:2]
            opened.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        opened.mux(stream.encode())


def _write_gif(path: Path, first: Frame, rest: Iterator[Frame], fps: float) -> None:
    """Encode with an optimal palette of 256 colors per frame, without dithering."""
    # GIF durations are multiples of 10 ms.
    duration_ms = max(_SHORTEST_GIF_FRAME_MS, 10 * round(100 / fps))
    images = map(Image.fromarray, rest)
    begun = Image.fromarray(first)
    begun.save(path, format="GIF", save_all=True, append_images=images, duration=duration_ms, loop=0)
