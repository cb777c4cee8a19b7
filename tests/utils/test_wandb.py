"""W&B's file is read back with W&B's own message types."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from omegaconf import DictConfig, OmegaConf

from reverie.config.schema import LoggerConfig
from reverie.utils.errors import UserError
from reverie.utils.logging.config import WandbMode
from reverie.utils.logging.writer import MetricsWriter, WandbRun
from reverie.utils.video import encode_animation, encode_image, upscale

BLOCK_BYTES = 32_768
HEADER_BYTES = 7
IN_A_PROCESS_OF_ITS_OWN = """
import os, sys
from pathlib import Path
from reverie.config.schema import LoggerConfig
from reverie.utils.logging.config import WandbMode
from reverie.utils.logging.writer import MetricsWriter
LoggerConfig(wandb=WandbMode.off)
assert "wandb" not in sys.modules
before = dict(os.environ)
for number in range(2):
    writer = MetricsWriter(Path("run"), wandb=WandbMode.offline)
    writer.scalars(number, {"loss": 1.0})
    writer.close()
assert dict(os.environ) == before
"""


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of LevelDB's log format, in blocks of 32 KiB: crc (4), length (2), kind (1), payload."""
    position = HEADER_BYTES
    while position + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < HEADER_BYTES:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        yield kind, content[position + HEADER_BYTES : position + HEADER_BYTES + length]
        position += HEADER_BYTES + length


def records_of(wandb_file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    parts = b""
    for kind, payload in chunks(wandb_file.read_bytes()):
        parts += payload
        # This is the first or a middle part of a record.
        if kind in (2, 3):
            continue
        yield Record.FromString(parts)
        parts = b""


def rows_of(wandb_file: Path) -> list[dict[str, Any]]:
    """Return the metric rows in a .wandb file, without W&B's own keys."""
    rows = []
    for record in records_of(wandb_file):
        if record.HasField("history"):
            items = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            rows.append({key: value for key, value in items.items() if not key.startswith("_")})
    return rows


def wandb_files(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def everything_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder that reveals writes to it, without the user's login and settings."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    return home


def test_offline_rows_are_the_lines_of_metrics_jsonl(tmp_path: Path) -> None:
    run_dir = tmp_path / "pong-1"
    writer = MetricsWriter(run_dir, tensorboard=False, wandb=WandbMode.offline)
    writer.scalars(10, {"memory/replay/size_mb": 1550.25, "memory/replay/growth_mb_per_report": 0.0})
    # A second row for the same step.
    writer.scalars(10, {"episode/return": -21.0})
    # An earlier step.
    writer.scalars(5, {"episode/return": -20.0})
    # 2,000 tags are longer than a block of the file.
    writer.scalars(20, {f"train/loss/part_{index}": index / 7 for index in range(2000)})
    writer.close()
    (path,) = wandb_files(run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows_of(path) == lines
    assert len(lines) == 4


def test_settings_become_the_configuration_of_the_run(tmp_path: Path) -> None:
    settings = {
        "seed": 3,
        "name": "pong",
        "training.train_ratio": 64.0,
        "env.info": ["success"],
        "resume": None,
    }
    writer = MetricsWriter(tmp_path, tensorboard=False, wandb=WandbMode.offline)
    writer.settings(0, "", settings)
    writer.close()
    updates = [each.config.update for each in records_of(wandb_files(tmp_path)[0]) if each.HasField("config")]
    found = {
        ".".join(item.nested_key) or item.key: json.loads(item.value_json)
        for each in updates
        for item in each
    }
    assert {key: found[key] for key in settings} == settings


def test_numbers_that_are_not_finite_arrive(tmp_path: Path) -> None:
    run = WandbRun(tmp_path / "run", WandbMode.offline)
    run.scalars(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    run.close()
    (row,) = rows_of(wandb_files(tmp_path / "run")[0])
    assert math.isnan(float(row["a"]))
    assert (float(row["b"]), float(row["c"])) == (math.inf, -math.inf)


def test_images_and_animations_arrive_byte_for_byte(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    writer = MetricsWriter(tmp_path, tensorboard=False, wandb=WandbMode.offline)
    writer.image(1, "image/open_loop", frames[0])
    writer.animation(2, "video/episode", frames, fps=5)
    writer.close()
    still, animation = rows_of(wandb_files(tmp_path)[0])
    files = wandb_files(tmp_path)[0].parent / "files"
    assert (still["step"], animation["step"]) == (1, 2)
    assert (files / still["image/open_loop.path"]).read_bytes() == encode_image(upscale(frames[0], 4))
    assert (files / animation["video/episode.path"]).read_bytes() == encode_animation(upscale(frames, 4), 5)


def test_nothing_is_left_behind(tmp_path: Path, own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment, threads, processes = dict(os.environ), set(threading.enumerate()), children()
    run = WandbRun(tmp_path / "run", WandbMode.offline)
    helpers = list(children() - processes)
    # W&B must not send telemetry.
    assert "--no-observability" in helpers[0].cmdline()
    run.scalars(1, {"loss": 1.0})
    run.close()
    run.close()
    assert [helper for helper in helpers if helper.is_running()] == []
    assert set(threading.enumerate()) == threads
    assert dict(os.environ) == environment
    assert everything_under(own_home) == set()
    assert everything_under(tmp_path / "run") - {"wandb"} == {
        f"wandb/{name}" for name in everything_under(tmp_path / "run" / "wandb")
    }
    assert capfd.readouterr() == ("", "")


def test_offline_opens_no_connection_but_to_its_helper(tmp_path: Path) -> None:
    others = {psutil.Process(), *psutil.Process().children(recursive=True)}
    before = {connection for process in others for connection in process.net_connections("inet")}
    run = WandbRun(tmp_path / "run", WandbMode.offline)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    for step in range(100):
        run.scalars(step, {"loss": 1.0})
    internet = [
        connection
        for process in processes
        for connection in process.net_connections("inet")
        # Other tests may run their own servers.
        if connection not in before
    ]
    run.close()
    assert len(processes) > 1
    assert internet == []


def test_a_process_can_make_several_runs_without_output(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", IN_A_PROCESS_OF_ITS_OWN]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (child.stdout, child.stderr) == ("", "")
    assert [rows_of(path) for path in wandb_files(tmp_path / "run")] == [
        [{"step": 0, "loss": 1.0}],
        [{"step": 1, "loss": 1.0}],
    ]


def test_online_without_a_login_is_refused_and_leaves_no_process(tmp_path: Path) -> None:
    environment, processes = dict(os.environ), children()
    with pytest.raises(UserError, match=r"logger\.wandb=online .* not logged in\. Run `wandb login`"):
        MetricsWriter(tmp_path / "run", wandb=WandbMode.online)
    assert children() == processes
    assert dict(os.environ) == environment
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_missing_package_is_refused_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python then finds no such package.
    monkeypatch.setitem(sys.modules, "wandb", None)
    LoggerConfig(wandb=WandbMode.off)
    with pytest.raises(UserError) as refused:
        LoggerConfig(wandb=WandbMode.offline)
    assert str(refused.value) == (
        "logger.wandb=offline requires the package wandb, which is not installed. "
        "Run `pip install -c constraints.txt -e '.[wandb]'`, or set logger.wandb=off."
    )


@pytest.mark.parametrize("group", ["full", "plain"])
def test_it_is_off_unless_asked_for(group: str) -> None:
    # An unquoted off in YAML would be false.
    values = OmegaConf.load(str(resources.files("reverie.configs") / "logger" / f"{group}.yaml"))
    assert isinstance(values, DictConfig)
    del values["defaults"]
    composed = OmegaConf.merge(OmegaConf.structured(LoggerConfig), values)
    assert composed.wandb is WandbMode.off
    # The saved config.yaml has the same value.
    assert OmegaConf.create(OmegaConf.to_yaml(composed)).wandb == "off"


def test_a_log_that_is_refused_leaves_no_process_of_wandb(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("none of ours\n")
    before, variables = children(), dict(os.environ)
    with pytest.raises(UserError, match="Line 1 of"):
        MetricsWriter(tmp_path, tensorboard=False, resume_step=0, wandb=WandbMode.offline)
    assert (children(), dict(os.environ)) == (before, variables)


def test_off_leaves_nothing(tmp_path: Path) -> None:
    MetricsWriter(tmp_path, tensorboard=False).close()
    assert list(tmp_path.glob("wandb")) == []
