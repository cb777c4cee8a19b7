"""Logs are read back with the users' tools: JSON, TensorBoard's reader and Pillow."""

import io
import json
import logging
import math
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from google.protobuf.json_format import MessageToDict
from PIL import Image
from tensorboard.plugins.hparams import metadata
from tensorboard.util import img_mime_type_detector, tensor_util

from reverie.utils.errors import UserError
from reverie.utils.logging.console import configure_logging
from reverie.utils.logging.json_lines import JsonLines, read_lines
from reverie.utils.logging.writer import MetricsWriter

from ..runs.helpers import events_of
from .test_video import Frames, decode_image_file


def lines_of(run_dir: Path) -> list[dict[str, float | str]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def scalars_of(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    events = events_of(run_dir).Tensors(tag)
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in events]


def shown_image(run_dir: Path, tag: str) -> bytes:
    events = events_of(run_dir)
    assert events.SummaryMetadata(tag).plugin_data.plugin_name == "images"
    (event,) = events.Tensors(tag)
    width, height, encoded = event.tensor_proto.string_val
    with Image.open(io.BytesIO(encoded)) as opened:
        assert opened.size == (int(width), int(height))
    return encoded


def decode(encoded: bytes) -> Frames:
    return decode_image_file(io.BytesIO(encoded))


def random_frames(*shape: int) -> Frames:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[MetricsWriter]:
    writer = MetricsWriter(tmp_path)
    yield writer
    writer.close()


def test_a_call_is_one_flat_line_with_the_tags_and_values_of_tensorboard(
    tmp_path: Path, writer: MetricsWriter
) -> None:
    writer.scalars(10, {"loss/image": 2.5, "buffer/replay/total_steps": 10})
    writer.scalars(20, {"loss/image": 1.25})
    # The files are still open: each call must be on disk when it returns.
    assert lines_of(tmp_path) == [
        {"step": 10, "loss/image": 2.5, "buffer/replay/total_steps": 10.0},
        {"step": 20, "loss/image": 1.25},
    ]
    assert scalars_of(tmp_path, "loss/image") == [(10, 2.5), (20, 1.25)]
    assert scalars_of(tmp_path, "buffer/replay/total_steps") == [(10, 10.0)]
    assert events_of(tmp_path).SummaryMetadata("loss/image").plugin_data.plugin_name == "scalars"


def test_numbers_that_are_not_finite_are_valid_json_and_read_back(
    tmp_path: Path, writer: MetricsWriter
) -> None:
    writer.scalars(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    (line,) = lines_of(tmp_path)
    assert line == {"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.0}
    assert math.isnan(float(line["a"]))
    assert (float(line["b"]), float(line["c"])) == (math.inf, -math.inf)
    assert math.isnan(scalars_of(tmp_path, "a")[0][1])
    assert scalars_of(tmp_path, "c") == [(1, -math.inf)]


def test_an_existing_run_is_continued(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        writer = MetricsWriter(tmp_path)
        writer.scalars(step, {"loss": float(step)})
        writer.close()
    assert lines_of(tmp_path) == [{"step": step, "loss": float(step)} for step in (1, 2, 3)]
    assert scalars_of(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_line_that_a_crash_left_unfinished_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.scalars(2, {"loss": 2.0})
    writer.close()
    assert lines_of(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_resuming_from_a_checkpoint_drops_what_was_written_after_it(tmp_path: Path) -> None:
    crashed = MetricsWriter(tmp_path)
    for step in (10, 20, 30, 40):
        crashed.scalars(step, {"loss": float(step)})
    crashed.close()
    resumed = MetricsWriter(tmp_path, resume_step=20)
    resumed.scalars(30, {"loss": 0.5})
    resumed.close()
    assert [line["step"] for line in lines_of(tmp_path)] == [10, 20, 30]
    assert scalars_of(tmp_path, "loss") == [(10, 10.0), (20, 20.0), (30, 0.5)]


def test_tensorboard_shows_a_resumed_run_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time_ns()
    for resume_step, moved in [(None, 0), (10, -3600), (20, -7200)]:
        monkeypatch.setattr(time, "time_ns", lambda now=before + moved * 10**9: now)
        writer = MetricsWriter(tmp_path, resume_step=resume_step)
        for step in (10, 20, 30):
            if step > (resume_step or 0):
                writer.scalars(step, {"loss": float(moved)})
        writer.close()
    assert scalars_of(tmp_path, "loss") == [(10, 0.0), (20, -3600.0), (30, -7200.0)]


def test_an_image_is_shown_enlarged_with_its_exact_pixels(tmp_path: Path, writer: MetricsWriter) -> None:
    image = random_frames(64, 48)
    writer.image(5, "observation", image)
    encoded = shown_image(tmp_path, "observation")
    assert img_mime_type_detector.from_bytes(encoded) == "image/png"
    np.testing.assert_array_equal(decode(encoded)[0], image.repeat(4, axis=0).repeat(4, axis=1))


def test_an_animation_is_shown_with_every_frame_and_in_a_kind_that_browsers_animate(
    tmp_path: Path, writer: MetricsWriter
) -> None:
    frames = random_frames(6, 64, 64)
    writer.animation(5, "video/episode", frames, fps=20)
    encoded = shown_image(tmp_path, "video/episode")
    assert img_mime_type_detector.from_bytes(encoded) == "image/png"
    # This chunk makes a PNG an animated one.
    assert encoded.count(b"acTL") == 1
    np.testing.assert_array_equal(decode(encoded), frames.repeat(4, axis=1).repeat(4, axis=2))
    with Image.open(io.BytesIO(encoded)) as opened:
        assert (opened.info["duration"], opened.info["loop"]) == (50, 0)


@pytest.mark.parametrize(
    ("size", "shown"),
    [((64, 64), (256, 256)), ((128, 128), (512, 512)), ((192, 64), (384, 128)), ((192, 384), (192, 384))],
)
def test_pictures_are_enlarged_by_whole_factors_to_at_most_512_pixels(
    tmp_path: Path, writer: MetricsWriter, size: tuple[int, int], shown: tuple[int, int]
) -> None:
    writer.animation(0, "strip", random_frames(2, *size), fps=10)
    assert decode(shown_image(tmp_path, "strip")).shape == (2, *shown, 3)


def test_settings_are_shown_by_the_text_page_and_compared_by_the_hparams_page(
    tmp_path: Path, writer: MetricsWriter
) -> None:
    values = {"name": "Grüße", "training.train_ratio": 64, "agc.enabled": True, "model.lr": 0.5, "x": None}
    writer.settings(0, "name: Grüße\n", values)
    events = events_of(tmp_path)
    assert events.SummaryMetadata("config").plugin_data.plugin_name == "text"
    (event,) = events.Tensors("config")
    text = tensor_util.make_ndarray(event.tensor_proto).reshape(-1)[0].decode()
    assert text == "```yaml\nname: Grüße\n```"
    found = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data
    assert found.plugin_name == metadata.PLUGIN_NAME
    hparams = metadata.parse_session_start_info_plugin_data(found.content).hparams
    shown = {key: MessageToDict(each) for key, each in hparams.items()}
    assert shown == {**values, "x": "None"}


def test_without_tensorboard_only_the_lines_are_written(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.scalars(1, {"loss": 1.0})
    writer.image(1, "image", random_frames(8, 8))
    writer.animation(1, "video", random_frames(2, 8, 8), fps=5)
    writer.settings(1, "seed: 1", {"seed": 1})
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_nothing_given_to_the_writer_stays_alive(writer: MetricsWriter) -> None:
    frames = random_frames(4, 64, 64)
    writer.animation(1, "video", frames, fps=5)
    writer.image(1, "image", frames[0])
    given = weakref.ref(frames)
    del frames
    assert given() is None


def test_closing_twice_is_closing_once(writer: MetricsWriter) -> None:
    writer.close()
    writer.close()


def test_the_writer_starts_no_thread_and_loads_no_tensorflow(tmp_path: Path) -> None:
    code = """
import sys, threading
from pathlib import Path
from reverie.utils.logging.writer import MetricsWriter

writer = MetricsWriter(Path(sys.argv[1]))
writer.scalars(0, {"loss": 1.0})
print(threading.active_count(), "tensorflow" in sys.modules)
writer.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Callable[[], None]]:
    close = configure_logging(tmp_path)
    yield close
    close()


def test_messages_of_all_modules_reach_the_file_once_when_it_is_configured_twice(tmp_path: Path) -> None:
    configure_logging(tmp_path)
    close = configure_logging(tmp_path)
    logging.getLogger("reverie.buffers.replay").info("evicted %d episodes", 3)
    logging.getLogger("reverie").debug("too fine for a log")
    close()
    (line,) = (tmp_path / "train.log").read_text().splitlines()
    assert line.endswith(" INFO evicted 3 episodes")


def test_the_log_of_an_existing_run_is_continued(tmp_path: Path) -> None:
    for word in ("first", "second"):
        close = configure_logging(tmp_path)
        logging.getLogger("reverie").warning(word)
        close()
    assert [line.split()[-2:] for line in (tmp_path / "train.log").read_text().splitlines()] == [
        ["WARNING", "first"],
        ["WARNING", "second"],
    ]


def test_closing_gives_the_logger_back_as_it_was(tmp_path: Path, configured: Callable[[], None]) -> None:
    logger = logging.getLogger("reverie")
    configured()
    assert logger.propagate
    logger.warning("after the end")
    assert (tmp_path / "train.log").read_text() == ""


def test_other_handlers_of_the_logger_are_left_alone(tmp_path: Path) -> None:
    logger, other = logging.getLogger("reverie"), logging.NullHandler()
    logger.addHandler(other)
    try:
        configure_logging(tmp_path)()
        assert logger.handlers == [other]
    finally:
        logger.removeHandler(other)


def test_a_log_is_read_from_its_compressed_copy(tmp_path: Path) -> None:
    log, copy = tmp_path / "metrics.jsonl", tmp_path / "metrics.jsonl.zst"
    text = "".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(10_000))
    copy.write_bytes(zstandard.compress(text.encode()))
    assert [line["step"] for line in read_lines(log)] == list(range(10_000))
    with pytest.raises(
        UserError, match=r"metrics.jsonl.zst is compressed and cannot be continued. Run zstd -d "
    ):
        JsonLines(log)
    whole = copy.read_bytes()
    for damaged, reason in (
        (b"not compressed\n", "ZstdError: "),
        (whole[:-9], "its end is missing"),
        (b"", "its end"),
    ):
        copy.write_bytes(damaged)
        with pytest.raises(
            UserError, match=rf"metrics.jsonl.zst is damaged, or was not written by Reverie .*{reason}"
        ):
            list(read_lines(log))
    log.write_text('{"step": 3}\n')
    assert list(read_lines(log)) == [{"step": 3}]
