"""Hydra's flags, completion, launchers and sweepers work as in any Hydra program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.usefixtures("empty_folder")
BIN = Path(sys.executable).parent
CATCH = ("experiment=dreamer_catch", "model=debug", "device=cpu")

# A job that writes its configuration, and its seed as the score.
JOBS = """
from reverie.checkpoints.run_folder import create_run_folder, save_config
from reverie.commands.command_line import run_from_command_line
from reverie.utils.errors import UserError

def task(config, preflight, notices):
    if config.name == "broken":
        raise UserError("the disk is full.")
    folder = create_run_folder(config)
    save_config(config, folder)
    (folder / "metrics.jsonl").write_text('{"step": 1, "episode/return": %d}\\n' % config.seed)

run_from_command_line(task)
"""


def of_hydra(*arguments: str) -> str:
    """Return the output of the command."""
    done = subprocess.run([BIN / "reverie-train", *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def multirun(*arguments: str) -> subprocess.CompletedProcess[str]:
    Path("jobs.py").write_text(JOBS)
    command = [sys.executable, "jobs.py", "-m", "hydra.sweep.dir=sweep", *CATCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def seeds() -> dict[str, int]:
    """Return the seed in each job folder."""
    return {
        file.parent.name: OmegaConf.load(file).seed for file in sorted(Path("sweep").glob("*/config.yaml"))
    }


def test_no_job_starts_if_the_folder_of_one_holds_a_run() -> None:
    Path("sweep/1-seed=5").mkdir(parents=True)
    Path("sweep/1-seed=5/config.yaml").touch()
    done = multirun("seed=1,2")
    assert done.returncode == 2 and "error: sweep/1-seed=5 already contains a run" in done.stderr
    assert not [*Path("sweep").glob("0*")]


def test_a_flag_alone_starts_no_run() -> None:
    done = subprocess.run([BIN / "reverie-train", "-m"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: -m needs settings, such as experiment=")


def test_cfg_and_info_show_what_hydra_composes() -> None:
    of_its_own = OmegaConf.create(of_hydra("--cfg", "hydra"))
    assert of_its_own.hydra.run.dir == "." and of_its_own.hydra.job.name == "reverie-train"
    part = OmegaConf.create(of_hydra("experiment=dreamer_catch", "--cfg", "job", "--package", "env"))
    assert part.suite == "catch"
    tree = of_hydra("env=catch", "--info", "defaults-tree")
    assert "experiment: dreamer:\n" in tree and "env: catch:\n" in tree
    assert not list(Path().iterdir())


def test_bash_completes_what_a_setting_may_be() -> None:
    script = """
        eval "$(reverie-train -sc install=bash)"
        COMP_LINE="reverie-train experiment=dreamer_c" COMP_CWORD=1
        hydra_bash_completion
        echo "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["experiment=dreamer_cartpole", "experiment=dreamer_catch"], done.stderr


def test_joblib_runs_the_jobs_of_a_multirun_in_processes() -> None:
    done = multirun("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=5,6")
    assert done.returncode == 0, done.stderr
    assert seeds() == {"0-seed=5": 5, "1-seed=6": 6}


def test_submitit_runs_the_jobs_of_a_multirun_on_this_machine() -> None:
    done = multirun("hydra/launcher=submitit_local", "seed=5,6")
    assert done.returncode == 0, done.stderr
    assert seeds() == {"0-seed=5": 5, "1-seed=6": 6}


def test_a_job_that_fails_in_a_process_is_reported_in_one_sentence() -> None:
    done = multirun("hydra/launcher=joblib", "name=broken", "seed=5")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: the disk is full."
    assert "Traceback" not in done.stderr


def test_optuna_looks_for_the_job_with_the_highest_return() -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1")
    done = multirun(*search, "hydra.sweeper.direction=maximize", "seed=choice(5,6)")
    assert done.returncode == 0, done.stderr
    found = OmegaConf.load("sweep/optimization_results.yaml")
    assert found.best_value == max(seeds().values()) == found.best_params.seed
