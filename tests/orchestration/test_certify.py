"""The certificate's command: what it refuses, what it writes, and how it ends."""

import json
import re
from pathlib import Path

import pytest

from reverie.orchestration.certificate import main

from ..faults.zoo import SETTINGS
from .helpers import files_in

SHORT = [setting for setting in SETTINGS if not setting.startswith("training.total_timesteps")]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("certify.step=5", "certify.step=5 is not a setting of certify.* Did you mean `?certify.steps"),
        ("certify.steps=0", "certify.steps must be at least 1, got 0"),
        ("certify.bound_mb=-1", "certify.bound_mb must be over 0, got -1"),
        ("certify.fault=rssm_cache", "certify.fault=rssm_cache: there is no such fault"),
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


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    for name in ("steps=null", "out=null", "fault=null", "bound_mb=64.0"):
        assert f"certify.{name}" in shown


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
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)  # opens offline
