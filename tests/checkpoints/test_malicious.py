"""Files with valid checksums and foreign content cannot run code.

An attacker with write access to a run folder can also write its checksums. Each kind of loaded file is
therefore replaced together with its line in the manifest, so that the loader really reads it.
"""

import pickle
from pathlib import Path

import pytest

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.run_folder import load_run
from reverie.utils.errors import UserError

from ..runs.forged import file_of, put, shortly
from ..runs.helpers import files_in, resume
from ..runs.warm import Server
from ..utils.test_state_files import Attack

OWN = ("model.json", "model.safetensors", "state.json", "state.safetensors", "replay.json")
KINDS = (*OWN, "replay_open.safetensors", "replay/env", "replay/latents")
EVALUATED = ("model.json", "model.safetensors", "state.json", "state.safetensors", "config.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_in_the_place_of_a_file_does_not_run(
    kind: str, run_dir: Path, tmp_path: Path, server: Server
) -> None:
    marker, checkpoint = tmp_path / "attacked", latest_checkpoint(run_dir)
    path = file_of(checkpoint, kind)
    put(checkpoint, path, pickle.dumps(Attack(marker)))
    before = files_in(run_dir / "checkpoints")
    for command in (("train", f"resume={run_dir}"), ("evaluate", f"run={run_dir}", "episodes=1")):
        ended = server.run(*command)
        if command[0] == "evaluate" and kind not in EVALUATED:
            assert ended.code == 0, ended.error
            continue
        assert (ended.code, "Traceback" in ended.error, ended.error.count("error: ")) == (2, False, 1)
        assert ended.last_line.startswith(f"error: {path} is damaged, or was not written by Reverie (")
    assert not marker.exists()
    assert files_in(run_dir / "checkpoints") == before


@pytest.mark.parametrize("kind", ["manifest.json", "metrics.jsonl", "config.yaml"])
def test_a_pickle_in_the_place_of_a_file_without_a_checksum_does_not_run(
    kind: str, run_dir: Path, tmp_path: Path, server: Server
) -> None:
    marker = tmp_path / "attacked"
    path = latest_checkpoint(run_dir).folder / kind if kind == "manifest.json" else run_dir / kind
    path.write_bytes(pickle.dumps(Attack(marker)) + b"\n")
    before, checkpoints = path.read_bytes(), files_in(run_dir / "checkpoints")
    for command in (("train", f"resume={run_dir}"), ("evaluate", f"run={run_dir}", "episodes=1")):
        ended = server.run(*command)
        if command[0] == "evaluate" and kind == "metrics.jsonl":
            assert ended.code == 0, ended.error
            continue
        assert (ended.code, "Traceback" in ended.error, ended.error.count("error: ")) == (2, False, 1)
        assert str(path) in ended.last_line
    assert not marker.exists()
    assert files_in(run_dir / "checkpoints") == checkpoints
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir ['{marker}']\n",
        "name: !!python/object/apply:os.mkdir ['{marker}']\n",
        "name: !!python/object/new:os.mkdir ['{marker}']\n",
        "name: !!python/name:os.mkdir\n",
        'name: \'${{eval:__import__("os").mkdir("{marker}")}}\'\n',
        "[" * 5_000,
        "{{a: " * 5_000,
        "a: &a [*a]\n",
        "seed: " + "9" * 5_000,
        "seed: 2001-99-99\n",
        "env: 3\n",
        "[1, 2]\n",
        "3\n",
        "\0",
    ],
    ids=shortly,
)
def test_a_configuration_of_anything_but_settings_is_refused(text: str, tmp_path: Path) -> None:
    marker = tmp_path / "attacked"
    (tmp_path / "config.yaml").write_text(text.format(marker=marker))
    with pytest.raises(UserError, match=r"config\.yaml|^name"):
        load_run(str(tmp_path))
    assert not marker.exists()


@pytest.mark.parametrize(
    "line",
    [b"[1, 2]\n", b'{"loss": 1}\n', b"[" * 100_000 + b"\n", b'{"step": "many"}\n', b"\xff\xfe\n", b"null\n"],
    ids=shortly,
)
def test_a_metrics_file_of_anything_but_lines_of_metrics_is_refused_and_kept(
    line: bytes, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line)
    before = path.read_bytes()
    with pytest.raises(SystemExit) as refused:
        resume(run_dir)
    assert refused.value.code == 2
    told = f"of {path} was not written by Reverie. Delete this line and try again."
    assert told in capsys.readouterr().err
    assert path.read_bytes() == before
