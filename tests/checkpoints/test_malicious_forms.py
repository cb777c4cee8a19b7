"""Checkpoint files with unexpected contents raise a single error and are never restored partially."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reverie.buffers import EpisodeReplayBuffer
from reverie.checkpoints.checkpoint import Checkpoint, latest_checkpoint
from reverie.checkpoints.run_folder import load_run
from reverie.config.dreamer import DreamerTrainConfig
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of
from reverie.planning.recipe import environment_spec
from reverie.utils.errors import UserError
from reverie.workflows.world_models import DreamerWorkflow

from ..runs.forged import assert_named, copied, file_of, put, shortly, write_manifest
from ..runs.helpers import resume, tensors_in


class Parts:
    """A workflow and a replay that already have state."""

    def __init__(self, run_dir: Path) -> None:
        config = load_run(str(run_dir))
        assert isinstance(config, DreamerTrainConfig)
        spec = environment_spec(config, recipe_of(config))
        self.workflow: DreamerWorkflow = build_workflow(config, spec)
        self.replay: EpisodeReplayBuffer = build_replay(
            config, recipe_of(config).replay_spec(config, spec), run_dir
        )
        self._before = self._now()

    def restore(self, checkpoint: Checkpoint, kind: str) -> None:
        """Restore the component to which a kind of file belongs."""
        if kind.startswith("model"):
            checkpoint.restore_workflow(self.workflow)
        else:
            checkpoint.restore_replay(self.replay)

    def assert_untouched(self) -> None:
        (model, replay), (model_before, replay_before) = self._now(), self._before
        assert (replay, model.keys()) == (replay_before, model_before.keys())
        assert all(torch.equal(value, model_before[name]) for name, value in model.items())

    def _now(self) -> tuple[dict[str, Tensor], str]:
        model = {name: value.clone() for name, value in tensors_in(self.workflow.state_dict()).items()}
        return model, self.replay.content_hash()


@pytest.fixture(scope="module")
def parts(good_run: Path) -> Parts:
    return Parts(good_run)


def nested(opening: str) -> bytes:
    return opening.encode() * 100_000


JSON = (
    b"",
    b"[]",
    b"{}",
    b"null",
    b'"text"',
    b"1" + b"0" * 5_000,
    b'{"$tensor": "nobody"}',
    b'{"$items": [[[], 1]]}',
    nested("["),
    nested('{"a":'),
)


@pytest.mark.parametrize("data", JSON, ids=shortly)
@pytest.mark.parametrize("kind", ["model.json", "replay.json"])
def test_json_of_another_form_is_refused_and_nothing_is_half_restored(
    kind: str, data: bytes, good_run: Path, tmp_path: Path, parts: Parts
) -> None:
    checkpoint = copied(good_run, tmp_path)
    path = file_of(checkpoint, kind)
    put(checkpoint, path, data)
    with pytest.raises(UserError) as refused:
        parts.restore(checkpoint, kind)
    assert_named(str(refused.value).replace(".safetensors", ".json"), path)
    parts.assert_untouched()


@pytest.mark.parametrize("data", JSON, ids=shortly)
def test_a_manifest_of_another_form_is_no_manifest(data: bytes, good_run: Path, tmp_path: Path) -> None:
    checkpoint = copied(good_run, tmp_path)
    path = checkpoint.folder / "manifest.json"
    for content in (data, b'{"checksum": ""}'):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"All checkpoints of .* are damaged") as refused:
            latest_checkpoint(tmp_path)
        assert_named(str(refused.value), path)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "16"},
        {"step": 17},
        {"format": "2"},
        {"best": 1},
        {"reverie": None},
        {"files": []},
        {"files": {}},
        {"files": {"../../outside": {"bytes": 0, "sha256": ""}}},
        {"files": {"step_000000016/model.json": {"bytes": "all"}}},
    ],
    ids=str,
)
def test_a_manifest_with_a_right_checksum_and_wrong_content_is_no_manifest(
    change: dict[str, Any], good_run: Path, tmp_path: Path
) -> None:
    checkpoint = copied(good_run, tmp_path)
    manifest = checkpoint.manifest()
    files = (
        manifest["files"] | change["files"] if change.get("files") else change.get("files", manifest["files"])
    )
    write_manifest(checkpoint, manifest | change | {"files": files})
    with pytest.raises(UserError, match=r"manifest\.json is corrupt"):
        latest_checkpoint(tmp_path)


def wider(tensors: dict[str, Tensor], name: str) -> None:
    tensors[name] = torch.cat([tensors[name], tensors[name]]) if tensors[name].dim() else torch.ones(2)


def of_another_dtype(tensors: dict[str, Tensor], name: str) -> None:
    tensors[name] = tensors[name].to(torch.float64 if tensors[name].dtype != torch.float64 else torch.int8)


def gone(tensors: dict[str, Tensor], name: str) -> None:
    del tensors[name]


def one_more(tensors: dict[str, Tensor], name: str) -> None:
    tensors["stranger"] = tensors[name]


def renamed(tensors: dict[str, Tensor], name: str) -> None:
    tensors["stranger"] = tensors.pop(name)


TENSORS = ("model.safetensors", "replay_open.safetensors", "replay/env", "replay/latents")
CHANGES = (wider, of_another_dtype, gone, one_more, renamed)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    "kind", ["model.safetensors", "replay_open.safetensors", "replay/env", "replay/latents"]
)
def test_tensors_of_another_form_are_refused_and_nothing_is_half_restored(
    kind: str, change: Callable[[dict[str, Tensor], str], None], good_run: Path, tmp_path: Path, parts: Parts
) -> None:
    checkpoint = copied(good_run, tmp_path)
    path = file_of(checkpoint, kind)
    content = path.read_bytes()
    names = sorted(load_file(path))
    for name in (names[0], names[len(names) // 2], names[-1]):
        path.write_bytes(content)
        tensors = load_file(path)
        change(tensors, name)
        save_file({key: value.clone() for key, value in tensors.items()}, tmp_path / "changed")
        put(checkpoint, path, (tmp_path / "changed").read_bytes())
        with pytest.raises(UserError) as refused:
            parts.restore(checkpoint, kind)
        assert_named(str(refused.value), path)
        parts.assert_untouched()


@pytest.mark.parametrize(
    "change",
    [
        {"streams/tail": [9, 9, 9, 10**15]},
        {"streams/head": [-1, 0, 0, 0]},
        {"streams/head": ["0", 0, 0, 0]},
        {"streams/is_open": [2, True, True, True]},
        {"streams/num_complete": [0]},
        {"generator": {"bit_generator": "PCG64"}},
        {"generator": None},
        {"segments": [[0, 0, 4, "../../../secret", [1, "x"]]]},
        {"segments": [[9, 0, 4, "env000_record000000000.safetensors", [1, "x"]]]},
        {"segments": [[0, 0, 10**9, "env000_record000000000.safetensors", [1, "x"]]]},
        {"segments": [[0, 0, 4, "nobody.safetensors", [1, "x"]]]},
        {"latents": [[1, 10**9, True, "latents_000000001.safetensors", [1, "x"]]]},
        {"latents": [[]]},
        {"fields": {}},
    ],
    ids=str,
)
def test_an_index_of_numbers_out_of_bounds_is_refused_and_nothing_is_half_restored(
    change: dict[str, Any], good_run: Path, tmp_path: Path, parts: Parts
) -> None:
    checkpoint = copied(good_run, tmp_path)
    path = file_of(checkpoint, "replay.json")
    index = json.loads(path.read_bytes())
    for place, value in change.items():
        *outer, last = place.split("/")
        target = index[outer[0]] if outer else index
        target[last] = value
    put(checkpoint, path, json.dumps(index).encode())
    with pytest.raises(UserError) as refused:
        parts.restore(checkpoint, "replay")
    assert str(checkpoint.folder.parent) in str(refused.value)
    parts.assert_untouched()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("", []),
        ("", {}),
        ("made_with", 3),
        ("updates", "many"),
        ("environment", None),
        ("environment/seeds", ["x"] * 4),
        ("environment/actions", {}),
        ("environment/arrival/reward", 0.0),
        ("episodes/returns", [0.0] * 4),
        ("recorder/wanted", "yes"),
        ("best_return", "high"),
        ("owes_evaluation", 1),
        ("means/tensors", [3]),
        ("nonfinite/in_a_row", True),
        ("global_generators/python/words", [1, 2]),
        ("global_generators/torch", None),
    ],
)
def test_a_state_of_the_loop_of_another_form_is_refused(
    place: str, value: Any, good_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = shutil.copytree(good_run, tmp_path / "run")
    checkpoint = latest_checkpoint(run_dir)
    path = file_of(checkpoint, "state.json")
    state = json.loads(path.read_bytes())
    if place:
        target = state
        *outer, last = place.split("/")
        for key in outer:
            target = target[key]
        target[last] = value
    put(checkpoint, path, json.dumps(state if place else value).encode())
    with pytest.raises(SystemExit) as refused:
        resume(run_dir)
    shown = capsys.readouterr().err
    assert (refused.value.code, shown.count("error: ")) == (2, 1)
    message = shown.splitlines()[-1]
    assert message.startswith(f"error: {path} ") or message.startswith(
        f"error: {path.with_suffix('.safetensors')} "
    )
