"""A tiny run of real rows, from the command line to the file. Times are not checked."""

import dataclasses
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import h100
from benchmarks.suite import main
from benchmarks.suite.bench import PEER_SCRIPTS, Bench, BenchConfig
from benchmarks.suite.replay import Feeder
from benchmarks.suite.suite import ROWS, chosen_rows
from reverie.utils.errors import UserError

from ..runs.fixtures import made_once
from ..runs.helpers import error_of

ROOT = Path(__file__).parents[2]
MARKDOWN = ROOT / "docs/results/performance/scripts/markdown.py"
CHECKOUT = Path(os.environ.get("DREAMERV3", ROOT.parent / "dreamerv3"))
JAX_PYTHON = str(ROOT / ".venv-peers-jax/bin/python")
QUICK = (
    "device=cpu",
    # The runtime type checks of the tests cannot be compiled.
    "compile=none",
    "bench.quick=true",
    "bench.repetitions=1",
    "bench.block_seconds=0",
    "bench.threads=1",
)
ROW_NAMES = (
    "update_size1m",
    "policy_step_size1m_8",
    "replay_add",
    "replay_sample",
    "environment_1",
    "collect",
)
ANSWER = """
import json, pathlib, sys
options = {"script": pathlib.Path(sys.argv[1]).name, **json.loads(sys.argv[2])}
print(json.dumps({"facts": options}), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        rows = f"bench.rows={','.join(ROW_NAMES)}"
        main([*QUICK, rows, f"bench.out={folder / 'bench.json'}", "bench.peers_python=nowhere/python"])

    return json.loads((made_once(tmp_path_factory, "bench", make) / "bench.json").read_text())


def test_every_row_that_was_asked_for_is_in_the_file(report: dict[str, Any]) -> None:
    assert {row["row"] for row in report["rows"]} == set(ROW_NAMES)
    assert report["quick"] is True and report["threads"] == 1
    assert report["machine"]["torch"] == torch.__version__
    assert all(rate > 0 for rate in report["rates"].values())


def test_medians_lie_between_the_extremes_and_floors_are_positive(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        assert 0 < row["min"] <= row["median"] <= row["max"], row["row"]
        assert row["floor"]["value"] > 0 and row["floor"]["of"]
        assert row["repetitions"] >= 1 and row["threads"] == 1
        assert 0 <= row["disturbed"] <= len(row["blocks"])
        assert all(value > 0 for value in row["derived"].values())


def test_the_first_variant_of_a_row_is_ours_and_the_others_are_compared_with_it(
    report: dict[str, Any],
) -> None:
    for name in ROW_NAMES:
        first, *others = [row for row in report["rows"] if row["row"] == name]
        assert first["variant"] == "reverie" and first["ratio"] == {}
        assert all(row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"] for row in others)


def test_a_stored_step_of_pong_has_the_bytes_that_its_fields_declare(report: dict[str, Any]) -> None:
    plain, latents, *_ = [row["facts"] for row in report["rows"] if row["row"] == "replay_add"]
    image, actions, reward, flags = 64 * 64 * 3, 6 * 4, 4, 3
    assert plain["declared_bytes_per_step"] == image + actions + reward + flags
    assert latents["declared_bytes_per_step"] > plain["declared_bytes_per_step"]
    assert all(facts["measured_over_declared"] >= 1 for facts in (plain, latents))


def test_the_measured_bytes_of_a_replay_are_those_that_it_reports(tmp_path: Path) -> None:
    bench = Bench(BenchConfig(quick=True))
    config = bench.compose("device=cpu", "env.num_envs=8", "buffer.capacity=2048")
    feeder = Feeder(config, tmp_path)
    assert feeder.owned_bytes == pytest.approx(feeder.replay.nbytes(), rel=0.01)


def test_missing_peers_are_told_once_with_the_command_that_installs_them(report: dict[str, Any]) -> None:
    assert report["notices"] == ["no peers: nowhere/python is missing. Run make bench-peers."]


def test_a_name_also_stands_for_the_rows_that_begin_with_it() -> None:
    assert chosen_rows("policy_step_size1m") == ["policy_step_size1m_1", "policy_step_size1m_8"]
    assert chosen_rows("collect,update_size1m") == ["update_size1m", "collect"]
    assert chosen_rows(None) == list(ROWS)


def test_an_unknown_row_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(capsys, lambda: main(["bench.rows=update_size1n"]))
    assert "bench.rows=update_size1n is not a row" in message and "Did you mean `update_size1m`?" in message


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("bench.repetitions=0", "bench.repetitions must be at least 1"),
        ("bench.out=no/such/folder/x.json", "is in a folder that does not exist"),
        ("bench.r2dreamer=nowhere", "bench.r2dreamer=nowhere contains no dreamer.py"),
        ("bench.dreamerv3=nowhere", "bench.dreamerv3=nowhere contains no dreamerv3/agent.py"),
        ("bench.speed=1", "bench.speed=1 is not a setting of benchmark"),
        ("training.batch_size=0", "training.batch_size must be at least 1"),
    ],
)
def test_bad_input_is_told_in_one_sentence_before_anything_is_measured(
    argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in error_of(capsys, lambda: main(["device=cpu", argument]))


@pytest.fixture
def answering(tmp_path: Path) -> BenchConfig:
    """Return settings with peers that only echo their options, and a folder that counts as every checkout."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{ANSWER}")
    python.chmod(0o755)
    (tmp_path / "dreamerv3").mkdir()
    for file in ("dreamer.py", "dreamerv3/agent.py"):
        (tmp_path / file).touch()
    return BenchConfig(
        peers_python=str(python),
        r2dreamer=str(tmp_path),
        dreamerv3=str(tmp_path),
        dreamerv3_python=str(python),
    )


def started(bench: Bench, task: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the options with which each peer of a task was started, by its name."""
    peers = bench.dreamers(task, **options)
    for peer in peers:
        peer.close()
    return {peer.name: peer.facts for peer in peers}


def test_checkouts_join_with_our_work_and_r2dreamer_with_its_decoder_free_default_too(
    answering: BenchConfig,
) -> None:
    bench = Bench(answering, ["device=cpu", "precision=float32"])
    facts_of = started(bench, "update", decoder_free=True, size="1M")
    assert {name: (facts["script"], facts.get("rep_loss")) for name, facts in facts_of.items()} == {
        "sheeprl": ("sheeprl_update.py", None),
        "r2dreamer": ("r2dreamer_update.py", "dreamer"),
        "r2dreamer without decoder": ("r2dreamer_update.py", "r2dreamer"),
        "dreamerv3": ("dreamerv3_update.py", None),
    }
    assert all(facts["size"] == "1M" and facts["precision"] == "32-true" for facts in facts_of.values())
    assert facts_of["r2dreamer"]["checkout"] == facts_of["dreamerv3"]["checkout"] == answering.r2dreamer
    assert list(started(bench, "policy")) == ["sheeprl", "r2dreamer"] and not bench.notices


def test_peers_without_a_checkout_are_reported_once(answering: BenchConfig) -> None:
    bench = Bench(dataclasses.replace(answering, r2dreamer=None, dreamerv3=None), ["device=cpu"])
    assert [*started(bench, "update"), *started(bench, "policy")] == ["sheeprl", "sheeprl"]
    assert bench.notices == [
        "no r2dreamer, the fastest peer on a CPU: add bench.r2dreamer=<folder of a checkout>",
        "no dreamerv3, the author's JAX code: add bench.dreamerv3=<folder of a checkout>",
    ]


def test_the_jax_peer_runs_without_the_environment_of_the_others_and_needs_its_own(
    answering: BenchConfig,
) -> None:
    bench = Bench(dataclasses.replace(answering, peers_python="no/python", r2dreamer=None), ["device=cpu"])
    assert [*started(bench, "update")] == ["dreamerv3"]
    bench = Bench(dataclasses.replace(answering, dreamerv3_python="no/jax", r2dreamer=None), ["device=cpu"])
    assert [*started(bench, "update")] == ["sheeprl"]
    assert "no dreamerv3: no/jax is missing. Run make bench-peers." in bench.notices


@pytest.mark.parametrize("peer", ["r2dreamer", "dreamerv3"])
def test_a_checkout_is_refused_where_no_peers_are_measured(peer: str, answering: BenchConfig) -> None:
    both = dict.fromkeys(("r2dreamer", "dreamerv3"))
    with pytest.raises(UserError, match=f"bench.{peer} is a peer.*excludes peers"):
        dataclasses.replace(answering, **both | {peer: getattr(answering, peer)}, peers=False)


def test_the_scripts_that_the_suite_names_exist() -> None:
    tasks = ("update", "policy", "run")
    names = [f"{peer}_{task}.py" for peer in ("sheeprl", "r2dreamer") for task in tasks]
    names.append("dreamerv3_update.py")
    assert [name for name in names if not (PEER_SCRIPTS / name).is_file()] == []


@pytest.mark.skipif(
    not (CHECKOUT / "dreamerv3" / "agent.py").is_file() or not Path(JAX_PYTHON).exists(),
    reason="needs `make bench-peers` and a checkout of danijar/dreamerv3 next to this one, or as DREAMERV3",
)
def test_the_author_s_code_learns_from_a_batch_of_the_suite() -> None:
    settings = BenchConfig(
        quick=True, dreamerv3=str(CHECKOUT), dreamerv3_python=JAX_PYTHON, peers_python="no"
    )
    [peer] = Bench(settings, ["device=cpu", "precision=float32"]).dreamers("update", size="1M")
    try:
        [seconds] = peer.block(0.0)
    finally:
        peer.close()
    assert seconds > 0 and peer.facts["parameters"] > 0 and "jax" in peer.facts["versions"]


def test_a_target_counts_against_the_fastest_peer_that_does_the_same_work() -> None:
    target_line = runpy.run_path(str(MARKDOWN))["target_line"]
    times = {"reverie": 1.0, "r2dreamer": 2.5, "r2dreamer without decoder": 1.5, "dreamerv3": 2.25}
    group = [{"variant": name, "median": seconds, "ratio": {}} for name, seconds in times.items()]
    assert target_line("update", 2.0, group) == "| `update` at least 2 | dreamerv3 | 2.25 | met |"


def test_the_files_of_gpu_tests_for_a_lease_have_gpu_tests() -> None:
    paths = [ROOT / path for path in h100.TESTS]
    files = {path: path.rglob("test_*.py") if path.is_dir() else [path] for path in paths}
    assert all(any("mark.gpu" in file.read_text() for file in found) for found in files.values())


def test_rows_with_commas_alone_are_no_rows() -> None:
    with pytest.raises(UserError, match="is not a row"):
        chosen_rows("update,")


def test_without_a_count_of_the_peak_a_row_of_memory_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    # macOS has no such file.
    monkeypatch.setattr("benchmarks.suite.memory._PEAK", Path("/no/such/status"))
    bench = Bench(BenchConfig(quick=True, peers=False), ["device=cpu", "compile=none"])
    assert ROWS["memory_size1m"](bench, "memory_size1m") == []
    assert bench.notices == ["no memory_size1m: this system has no /no/such/status to read the peak from"]
