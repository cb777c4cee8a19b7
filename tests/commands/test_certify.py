"""The certificate command: rejected requests, written files, and exit codes."""

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from heapwatch.leaks.detector import watched_counters
from heapwatch.leaks.table import Finding
from heapwatch.leaks.verdict import TrendClass

from reverie.checkpoints.run_folder import load_run
from reverie.commands.certify import main
from reverie.config.population import PopulationTrainConfig
from reverie.testing.certificate import Certificate, Outcome
from reverie.testing.judged import judged_series, to_decide
from reverie.utils.logging.json_lines import METRICS_FILE

from ..faults.zoo import SETTINGS
from ..runs.helpers import files_in

SHORT = [setting for setting in SETTINGS if not setting.startswith("training.total_timesteps")]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("certify.step=5", "certify.step=5 is not a setting of reverie-certify.*you mean `?certify.steps"),
        ("certify.steps=0", "certify.steps must be at least 1, got 0"),
        ("certify.bound_mb=-1", "certify.bound_mb must be > 0, got -1"),
        ("certify.fault=rssm_cache", "certify.fault=rssm_cache is not a known fault"),
        ("certify.out=Makefile/certificate", r"certify.out=Makefile/certificate cannot be created \(Not a"),
        ("resume=some/run", "resume=some/run: only new runs can be certified. Pass the settings of that run"),
        ("training.total_timesteps=300", "certify.steps sets the length .* Set certify.steps=300 instead"),
        ("--fast", "unknown flag --fast"),
        ("envv.num_envs=2", "envv"),
    ],
)
def test_a_mistake_is_one_sentence_and_creates_nothing(
    argument: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, f"run_dir={tmp_path / 'run'}", argument])
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert re.search(message, shown.err) and "Traceback" not in shown.err
    assert files_in(tmp_path) == {}


def test_a_run_that_is_too_short_is_undecided_and_names_the_length_that_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, "certify.steps=60", f"run_dir={tmp_path / 'run'}"])
    assert stopped.value.code == 8
    printed = capsys.readouterr().out
    found = re.search(r"UNDECIDED: (\d+) samples after step (\d+), but a verdict needs 24", printed)
    assert found and "FAILED" not in printed
    written = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (written["outcome"], written["passed"]) == ("undecided", False)
    steps = written["steps_to_decide"]
    # 8 is its log_interval.
    assert steps >= int(found[2]) + 24 * 8 and f"certify.steps={steps}" in printed
    page = (tmp_path / "run" / "certificate.html").read_text()
    assert ">undecided</span>" in page and f"certify.steps={steps}" in page and "b3261e" not in page


def test_a_run_that_is_stopped_is_undecided_however_flat_its_memory_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run" / METRICS_FILE

    def stop() -> None:
        while not log.exists() or log.read_text().count("\n") < 40:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, "compile=none", "certify.steps=1000000", f"run_dir={tmp_path / 'run'}"])
    assert stopped.value.code == 8
    ended = "the run ended early: a signal requested it. Repeat it."
    assert capsys.readouterr().out.splitlines()[-2] == f"UNDECIDED: {ended}"
    written = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (written["outcome"], written["cut_short"]) == ("undecided", ended)


def test_certain_verdicts_outweigh_undecided_ones(catch_run: Path) -> None:
    config = load_run(str(catch_run))
    judged = judged_series(catch_run, watched_counters(1.0, on_cuda=False), settled_step=150)
    undecided = Certificate(
        command="",
        run_dir=str(catch_run),
        fault=None,
        steps=300,
        cut_short="",
        updates=65,
        device="cpu",
        judged=judged,
        findings=[],
        unaccounted_mb=1.0,
        bound_mb=64.0,
        instruments_fraction=0.0,
        to_decide=to_decide(config, judged[0].steps, 150, 10_000),
    )
    assert undecided.outcome is Outcome.undecided
    leak = Finding(100, "a graph", TrendClass.leak, ())
    assert replace(undecided, findings=[leak]).outcome is Outcome.not_flat
    assert replace(undecided, unaccounted_mb=65.0).outcome is Outcome.not_flat
    grown = replace(judged[0], judgement=replace(judged[0].judgement, verdict=TrendClass.leak))
    assert replace(undecided, judged=[grown, *judged[1:]]).outcome is Outcome.not_flat
    flat = [replace(each, judgement=replace(each.judgement, verdict=TrendClass.flat)) for each in judged]
    whole = replace(undecided, judged=flat)
    assert whole.outcome is Outcome.flat
    assert replace(whole, others=(Outcome.flat, Outcome.undecided)).outcome is Outcome.undecided
    early = replace(whole, cut_short="the run ended early: a signal requested it. Repeat it.")
    assert early.sentence() == f"UNDECIDED: {early.cut_short}"
    assert replace(early, judged=[grown, *flat[1:]]).outcome is Outcome.not_flat
    others = replace(undecided, others=(Outcome.not_flat, Outcome.flat))
    assert others.sentence() == "FAILED" and "rank 1: not flat" in others.lines()


@pytest.mark.parametrize(
    ("samples", "judged_from", "expected"),
    [
        (3, 150, 150 + 25 * 50),
        # The first checkpoint is at 150, within the longer run.
        (3, 100, 150 + 25 * 50),
        # Neither flat nor ordered, so twice as many steps are needed. The actor learns from 1,600 on.
        (24, 150, 1600 + 49 * 50),
    ],
)
def test_the_length_that_decides_counts_from_the_last_first_time(
    samples: int, judged_from: int, expected: int, catch_run: Path
) -> None:
    steps = judged_from + 50 * np.arange(1, samples + 1)
    assert to_decide(load_run(str(catch_run)), steps, judged_from, 10_000).steps == expected


def test_a_population_is_decided_by_generations() -> None:
    # The first generation is not judged.
    found = to_decide(PopulationTrainConfig(), np.array([100, 200, 300]), 100, 300)
    assert (found.samples, found.steps) == (2, 2600)
    assert found.settings == "training.generations=26 certify.steps=null"


def test_a_run_that_ends_before_its_first_sample_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["memory.check_interval=1", "training.log_interval=5000", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, *settings, "certify.steps=300", "certify.fault=rssm_cache_not_detached"])
    assert stopped.value.code == 2
    assert "memory cannot be judged" in capsys.readouterr().err.splitlines()[-1]


def test_a_certificate_that_cannot_be_written_is_shown_and_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "certificate.json").mkdir(parents=True)
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, "certify.steps=60", f"run_dir={tmp_path / 'run'}", f"certify.out={out}"])
    shown = capsys.readouterr()
    assert stopped.value.code == 2 and "UNDECIDED" in shown.out
    assert shown.err.splitlines()[-1] == f"error: The certificate cannot be written to {out}: Is a directory."


def test_a_fault_ends_with_exit_code_1_and_a_page_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["certify.steps=300", f"certify.out={tmp_path / 'out'}", "certify.fault=rssm_cache_not_detached"]
    with pytest.raises(SystemExit) as stopped:
        main([*SHORT, "memory.check_interval=5", f"run_dir={tmp_path / 'run'}", *own])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed and "workflow.world_model.rssm._state" in printed
    written = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert not written["passed"] and written["fault"] == "rssm_cache_not_detached"
    assert any("rssm._state" in finding for finding in written["findings"])
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "not flat" in page and "rssm._state" in page
    # The page must open offline.
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)


@pytest.mark.parametrize(("samples", "judged_from"), [(3, 100), (24, 2000), (24, 2900)])
def test_a_suggestion_is_not_longer_than_the_preset(samples: int, judged_from: int, catch_run: Path) -> None:
    steps = judged_from + 4 * np.arange(1, samples + 1)
    found = to_decide(load_run(str(catch_run)), steps, judged_from, 3_000)
    assert found.steps <= 3_000 and f"certify.steps={found.steps}" in found.settings


def test_a_short_certificate_of_a_preset_reaches_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("model=debug", "controller.horizon=5", "training.batch_size=2", "training.train_ratio=3")
    run = ["experiment=dreamer_catch", "device=cpu", *small, f"run_dir={tmp_path / 'run'}"]
    with suppress(SystemExit):
        main([*run, "certify.steps=500"])
    printed = capsys.readouterr().out
    assert "but a verdict needs 24" not in printed and re.search("^(PASSED|FAILED|UNDECIDED)", printed, re.M)
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["updates"] > 50
