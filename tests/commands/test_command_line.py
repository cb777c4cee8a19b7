"""Invalid input produces one sentence, exit code 2 and no files. Valid input runs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from reverie.checkpoints.run_folder import create_run_folder, save_config
from reverie.commands.command_line import run_from_command_line
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.schema import TrainConfig
from reverie.planning import Preflight
from reverie.utils.errors import UserError

from ..runs import helpers

pytestmark = pytest.mark.usefixtures("empty_folder")
CPU = "device=cpu"


def run(*arguments: str) -> list[tuple[TrainConfig, list[str]]]:
    """Return the arguments with which the task was called."""
    calls: list[tuple[TrainConfig, list[str]]] = []
    run_from_command_line(lambda config, _, notices: calls.append((config, notices)), arguments)
    return calls


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return helpers.error_of(capsys, lambda: run(*arguments))


SUBPROCESS = """
import sys
from reverie.commands.command_line import run_from_command_line
from reverie.checkpoints.run_folder import create_run_folder, save_config
def task(config, preflight, notices):
    folder = create_run_folder(config)
    save_config(config, folder)
    print("ran", config.seed, folder)
run_from_command_line(task)
"""


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", SUBPROCESS, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


# Each kind of mistake: the typed arguments, and all required parts of the message.
MISTAKES = {
    "unknown key": (
        ["training.batchsize=3"],
        ["training.batchsize=3", "batch_size, ", "`training.batch_size`?"],
    ),
    "key without its section": (
        ["batch_size=3"],
        ["no key batch_size", "Did you mean `training.batch_size`?"],
    ),
    "added key": (["+training.foo=3"], ["+training.foo=3", "no key training.foo"]),
    "section for a key": (
        ["world_model=3"],
        ["world_model is a section", "world_model.kl.free_nats"],
    ),
    "key in a section given whole": (["training={foo:3}"], ["training.foo", "not in 'AnyTraining'"]),
    "unknown experiment": (
        ["experiment=dreamer_pong"],
        ["experiment=dreamer_pong", "dreamer_catch", "Did you mean `dreamer_ataripong`?"],
    ),
    "an experiment that was replaced": (
        ["experiment=dreamer_atari100k", "env.game=boxing"],
        ["there is no experiment `dreamer_atari100k`: it was replaced by paper_atari100k, or fast_atari100k"],
    ),
    "unknown model": (
        ["model=size13m"],
        ["there is no model `size13m`: choose one of by_device, debug, pong, size1"],
    ),
    "no experiment": (["experiment=null"], ["there is no experiment `null`"]),
    "text for a whole number": (
        ["training.batch_size=abc"],
        ["training.batch_size=abc: training.batch_size must be a whole number, got `abc`."],
    ),
    "float for a whole number": (
        ["training.total_timesteps=1e6"],
        ["must be a whole number, got `1e6`. Write training.total_timesteps=1000000."],
    ),
    "text for a switch": (["logger.tensorboard=maybe"], ["must be true or false, got `maybe`"]),
    "unknown member": (
        ["device=gpu"],
        ["device must be one of auto, cpu, cuda, got `gpu`. Did you mean `cuda`?"],
    ),
    "misspelt loss": (
        ["world_model.losses.decodr=false"],
        ["world_model.losses has the keys continue, decoder, kl, reward", "`world_model.losses.decoder`?"],
    ),
    "out of range": (["training.batch_size=0"], ["training.batch_size must be at least 1, got 0"]),
    "not finite": (
        ["optimizer.learning_rate=nan"],
        ["optimizer.learning_rate must be a finite number, got nan"],
    ),
    "thousands of digits": (
        ["training.total_timesteps=" + "9" * 5_000],
        ["training.total_timesteps must be below 2**63, got a number with thousands of digits"],
    ),
    "hundreds of digits": (
        ["training.checkpoint_interval=" + "9" * 400],
        ["training.checkpoint_interval must be below 2**63, got a number with 1,329 bits"],
    ),
    "a number beyond use": (
        ["buffer.memory_budget_gib=1e300"],
        ["buffer.memory_budget_gib must be at most 1e+30, got 1e+300"],
    ),
    "a folder above": (["name=.."], ["name must be a valid folder name that does not start with a dot"]),
    "window over the capacity": (
        ["training.sequence_length=600", "buffer.capacity=2000"],
        [
            "training.sequence_length=600",
            "buffer.capacity=2000",
            "training.sequence_length=249 or less",
        ],
    ),
    "a name of similar words": (["imagination_horizon=5"], ["Did you mean `controller.horizon`?"]),
    "no imagination": (["controller.horizon=0"], ["controller.horizon must be in [1, 1000], got 0"]),
    "minutes of rehearsal": (["controller.horizon=10000"], ["must be in [1, 1000], got 10000"]),
    "minutes of rehearsal of a window": (
        ["training.sequence_length=10000"],
        ["training.sequence_length must be in [2, 1024], got 10000"],
    ),
    "unknown game": (["env.game=pongg"], ["env.game=pongg", "Did you mean `pong`?"]),
    "unknown id": (
        ["experiment=dreamer_cartpole", "env.id=CartPole-v7"],
        ["env.id=CartPole-v7", "Did you mean `CartPole-v1`?"],
    ),
    "replay over its budget": (
        ["buffer=ram", "buffer.memory_budget_gib=0.25"],
        ["100,000 steps", "over buffer.memory_budget_gib=0.25. Lower buffer.capacity to"],
    ),
    "a cluster for nobody": (
        ["collect.address=auto"],
        ["collect.address=auto has no effect without collectors. Set collect.collectors, or omit it"],
    ),
    "replay on a device that is not used": (["buffer=cuda"], ["buffer.storage=cuda needs device=cuda"]),
    "no assignment": (["foo"], ["`foo` is not of the form key=value"]),
    "an experiment without its key": (["dreamer_cach"], ["Did you mean `experiment=dreamer_catch`?"]),
    "a choice without its key": (["debug"], ["Did you mean `model=debug`?"]),
    "a group misspelled": (["modle=debug"], ["there is no key modle", "Did you mean `model`?"]),
    "the experiment misspelled": (["experimnt=dreamer"], ["Did you mean `experiment`?"]),
    "a section misspelled": (["optimzer=adam"], ["Did you mean `optimizer`?"]),
    "no value": (
        ["training.batch_size="],
        ["has no value. Write training.batch_size=VALUE"],
    ),
    "setting of the other workflow": (
        ["training.generations=3"],
        ["training.generations is a setting of workflow=population, but dreamer_ataripong uses workflow="],
    ),
    "group of the other workflow": (
        ["experiment=erl_pendulum", "model=size1m"],
        ["model is a setting of workflow=dreamer, but erl_pendulum uses workflow=population. Omit it."],
    ),
    "constant of a population": (
        ["experiment=erl_pendulum", "buffer.store_latents=true"],
        ["buffer.store_latents is a setting of workflow=dreamer, but erl_pendulum uses workflow=population"],
    ),
    "broken grammar": (["run_dir=a b("], ["run_dir=a b(", "not in Hydra's grammar", "Quote"]),
    "interpolation of nothing": (["env.game=${foo}"], ["env.game", "'foo' not found"]),
    "several values without -m": (["seed=1,2"], ["seed=1,2 lists several values. Add -m"]),
    "unknown flag": (["--multrun"], ["arguments: --multrun", "Did you mean `--multirun`?"]),
    "key as a flag": (["--seed=3"], ["arguments: --seed=3", "without dashes: key=value"]),
    "other files for configs/train.yaml": (
        ["--config-name=mine"],
        ["--config-name and --experimental-rerun would replace configs/train.yaml"],
    ),
    "--resolve alone": (["--resolve"], ["--resolve needs --cfg. Write --cfg job --resolve"]),
    "two modes of Hydra": (["--cfg=all", "--info=config"], ["Only one of --run, --multirun, --cfg"]),
    "unknown shell": (["-sc", "install=dos"], ["No completion plugin for 'dos' found"]),
    "folder of Hydra": (["hydra.run.dir=x"], ["hydra.run.dir=x: runs ignore hydra.run.dir.", "run_dir="]),
    "folder of jobs without -m": (
        ["hydra.sweep.dir=x"],
        ["hydra.sweep.dir=x applies to several jobs"],
    ),
    "two experiments": (["experiment=[dreamer_catch,dreamer_cartpole]"], ["there is no experiment `["]),
    "an environment as the experiment": (
        ["experiment=CartPole-v1"],
        ["env=gymnasium env.id=CartPole-v1, or env= in Python."],
    ),
    "mode of Hydra": (["hydra.mode=MULTIRUN"], ["runs ignore hydra.mode. Write -m"]),
    "left out group": (["~logger"], ["~logger: logger cannot be deleted"]),
    "--package alone": (["--package", "env"], ["--package needs --cfg"]),
    "one folder for all jobs": (
        ["-m", "seed=1,2", "hydra.sweep.subdir=same"],
        ["hydra.sweep.subdir=same would contain 2 runs"],
    ),
    "unknown setting of Hydra": (["hydra.foo=1"], ["hydra.foo: Key 'foo' not in 'HydraConf'"]),
    "interval of Hydra's own sweeper": (
        ["-m", "seed=interval(1,2)"],
        ["lists of values, not intervals. Write key=a,b,c"],
    ),
    "flag without its value": (["--cfg"], ["--cfg", "expected one argument"]),
    "unknown folder of files": (["--config-dir=nowhere"], ["--config-dir=nowhere is not a folder"]),
    "resume of nothing": (
        ["resume=nowhere"],
        ["resume=nowhere is not a folder. Pass the folder of a run, e.g. resume=experiments/<run>."],
    ),
    "several folders to resume": (
        ["resume=a,b"],
        ["resume=a,b: pass one folder. Put a name with a comma in two pairs of quotes."],
    ),
    "variable that does not exist": (
        ["run_dir=${oc.env:NOWHERE}/run"],
        ["run_dir: ", "Environment variable 'NOWHERE' not found"],
    ),
    "jobs in one folder": (
        ["-m", "seed=1,2", "run_dir=x"],
        ["run_dir=x would contain 2 runs", "hydra.sweep.dir=x"],
    ),
    "one bad job of several": (["-m", "env.game=pong,pongg"], ["env.game=pongg", "Did you mean `pong`?"]),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_gives_one_sentence_and_creates_nothing(
    kind: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    arguments, parts = MISTAKES[kind]
    device = [] if kind in ("unknown member", "resume of nothing") else [CPU]
    message = error_of(capsys, *device, *arguments)
    for part in parts:
        assert part in message
    assert list(empty_folder.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none_is_a_mistake(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert "device=cuda was requested" in error_of(capsys, "device=cuda")
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["training.batchsize=3"], "there is no key training.batchsize"),
        (["-m", "seed=1,2", "training.batch_size=0"], "training.batch_size must be at least 1"),
    ],
)
def test_a_mistake_ends_the_process_with_exit_code_2(
    arguments: list[str], part: str, empty_folder: Path
) -> None:
    done = in_a_process(*arguments)
    assert done.returncode == 2
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.startswith("error: ") and part in done.stderr
    assert list(empty_folder.iterdir()) == []


def test_a_user_error_inside_the_run_is_told_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    def task(config: TrainConfig, preflight: Preflight, notices: list[str]) -> None:
        raise UserError("the disk\nis full.")

    with pytest.raises(SystemExit) as failure:
        run_from_command_line(task, [CPU])
    assert failure.value.code == 2
    assert capsys.readouterr().err == "error: the disk is full.\n"


def test_any_other_error_of_the_run_passes() -> None:
    def task(config: TrainConfig, preflight: Preflight, notices: list[str]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_from_command_line(task, [CPU])


def test_a_single_run_is_called_once_with_its_values_and_the_notice(empty_folder: Path) -> None:
    [(config, notices)] = run(
        "experiment=dreamer_ataripong", CPU, "seed=7", "world_model.losses.continue=false"
    )
    assert (config.seed, config.run_dir) == (7, None)
    assert isinstance(config, DreamerTrainConfig)
    assert config.world_model.losses == {"decoder": True, "reward": True, "continue": False, "kl": True}
    assert notices[0].startswith("device=cpu: chose model=small, precision=auto, env.num_envs=8, buffer.")
    assert list(empty_folder.iterdir()) == []


def test_a_flag_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 runs" in error_of(capsys, "seed=1,2", "-m", "run_dir=x", CPU)


def test_cfg_shows_every_setting_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert run("experiment=dreamer_catch", "device=cuda", "seed=5", "--cfg", "job", "--resolve") == []
    shown = OmegaConf.create(capsys.readouterr().out)
    assert (shown.name, shown.seed, shown.training.sequence_length) == ("dreamer_catch", 5, 8)
    assert list(empty_folder.iterdir()) == []


def test_cfg_shows_the_experiment_of_a_run_that_names_an_environment_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("env=catch", CPU, "--cfg", "job", "--resolve")
    shown = OmegaConf.create(capsys.readouterr().out)
    assert (shown.name, shown.env.suite, shown.world_model.decoder_scale) == ("dreamer_catch", "catch", 1.0)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("commands.command_line", ["--help"]),
        ("commands.command_line", ["--cfg", "job"]),
        ("commands.command_line", ["--version"]),
        ("commands.evaluate", ["--help"]),
        ("commands.plan", ["--help"]),
        ("commands.plan", [CPU]),
        ("commands.plan", [CPU, "plan.format=json"]),
        ("commands.certify", ["--help"]),
        ("commands.doctor", ["--help"]),
        ("commands.doctor", []),
    ],
)
def test_a_command_that_cannot_be_read_says_so_in_one_line(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"reverie.{module}").main
    monkeypatch.setattr(sys, "argv", ["reverie", *arguments])
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: the output cannot be written: No space left on device.\n"


def test_help_names_the_experiments_and_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == []
    text = capsys.readouterr().out
    assert "dreamer_catch" in text and "train_ratio" in text
    assert "Two families of experiments: paper_*" in text


WITHOUT_TORCH = """
import sys
from reverie.commands import entry
command = getattr(entry, sys.argv.pop(1))
try:
    command()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        ("train", ["--help"], 0),
        ("train", ["training.batchsize=3"], 2),
        ("train", [CPU, "training.batch_size=0"], 2),
        ("train", ["-m", "seed=1,2", "run_dir=x"], 2),
        ("plan", ["--help"], 0),
        ("plan", ["plan.ranks=0"], 2),
        ("evaluate", ["--help"], 0),
        ("evaluate", ["run=x", "episodes=0"], 2),
    ],
)
def test_help_and_mistakes_do_not_wait_for_torch(command: str, arguments: list[str], code: int) -> None:
    shell = [sys.executable, "-c", WITHOUT_TORCH, command, *arguments]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, "False")


def test_files_of_the_user_join_the_groups(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    folder = empty_folder / "mine" / "env"
    folder.mkdir(parents=True)
    (folder / "boxing.yaml").write_text("game: boxing\n")
    (folder / "wrong.yaml").write_text("gaem: boxing\n")
    [(config, _)] = run("--config-dir=mine", "env=boxing", "experiment=dreamer_ataripong100k", CPU)
    assert config.env.game == "boxing"
    assert "Key 'gaem' not in 'EnvConfig'" in error_of(capsys, "--config-dir=mine", "env=wrong", CPU)
    assert "Did you mean `boxing`?" in error_of(capsys, "--config-dir=mine", "env=boxin", CPU)


def test_a_multirun_gives_each_job_its_values_and_its_folder(empty_folder: Path) -> None:
    done = in_a_process("-m", "experiment=dreamer_catch", CPU, "seed=1,2", "hydra.sweep.dir=sweep")
    assert (done.returncode, done.stderr) == (0, "")
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran")]
    assert ran == ["ran 1 sweep/0-seed=1", "ran 2 sweep/1-seed=2"]
    assert done.stdout.splitlines()[-1] == "compare the runs: reverie-plot 'sweep/*'"
    files = sorted(str(path.relative_to(empty_folder)) for path in empty_folder.rglob("*") if path.is_file())
    assert files == ["sweep/0-seed=1/config.yaml", "sweep/1-seed=2/config.yaml", "sweep/multirun.yaml"]
    assert OmegaConf.load("sweep/1-seed=2/config.yaml").seed == 2
    again = in_a_process("-m", "experiment=dreamer_catch", CPU, "seed=3,4", "hydra.sweep.dir=sweep")
    assert again.returncode == 2 and "sweep/0-seed=1 already contains a run" in again.stderr
    assert OmegaConf.load("sweep/0-seed=1/config.yaml").seed == 1


def test_the_folder_of_a_job_is_named_after_the_values_that_differ(empty_folder: Path) -> None:
    ids = "env.id=gymnasium:CartPole-v1,gymnasium:Acrobot-v1"
    values = ["env=gymnasium", ids, CPU, "training.train_ratio=8", "world_model.harmony=true,false"]
    done = in_a_process("-m", *values, "hydra.sweep.dir=sweep")
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(path.parent.name for path in Path("sweep").glob("*/config.yaml"))
    assert names[0] == "0-env.id=gymnasium-CartPole-v1,world_model.harmony=True"
    assert names[3] == "3-env.id=gymnasium-Acrobot-v1,world_model.harmony=False"


@pytest.fixture
def finished(empty_folder: Path) -> str:
    """Return the folder of an earlier run."""
    [(config, _)] = run("experiment=dreamer_catch", CPU, "seed=3", "run_dir=earlier")
    folder = create_run_folder(config)
    save_config(config, folder)
    return str(folder)


def test_a_resumed_run_keeps_its_configuration_and_lists_what_changes(finished: str) -> None:
    [(config, notices)] = run(
        f"resume={finished}", "training.total_timesteps=50000", "training.batch_size=16"
    )
    assert (config.name, config.seed, config.training.total_timesteps) == ("dreamer_catch", 3, 50_000)
    assert (config.run_dir, config.resume) == ("earlier", "earlier")
    assert notices == [
        "resuming earlier",
        "training.total_timesteps 3800 -> 50000",
        "training.batch_size 8 -> 16",
    ]


def test_a_resumed_run_takes_of_the_group_of_its_replay_what_may_change(
    empty_folder: Path,
) -> None:
    single = ("buffer.latent_every=1", "buffer.memory_budget_gib=2", "buffer.capacity=30000")
    [(config, _)] = run("experiment=dreamer_catch", CPU, "run_dir=earlier", "buffer=compressed", *single)
    save_config(config, create_run_folder(config))
    [(resumed, notices)] = run("resume=earlier", "buffer.latent_every=4", "buffer=compressed")
    # A new run has the same values.
    assert (resumed.buffer.memory_budget_gib, resumed.buffer.latent_every) == (1.0, 4)
    assert resumed.buffer.capacity == 30000
    assert notices[1:] == ["buffer.memory_budget_gib 2.0 -> 1.0", "buffer.latent_every 1 -> 4"]


def test_a_run_that_moved_is_resumed_where_it_is(finished: str, empty_folder: Path) -> None:
    (empty_folder / finished).rename(empty_folder / "moved")
    [(config, _)] = run("resume=moved")
    assert config.run_dir == "moved"


def test_a_job_of_a_multirun_is_resumed_by_the_command_that_it_prints(
    finished: str, empty_folder: Path
) -> None:
    # The name of its folder is not in Hydra's grammar.
    folder = "0-seed=1,world_model.harmony=True"
    (empty_folder / finished).rename(empty_folder / folder)
    [(config, _)] = run(f"resume={folder}")
    assert config.run_dir == folder


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["buffer=compresed"], "there is no buffer `compresed`"),
        (["model=size12m"], "model=size12m: a saved run keeps its groups and sections"),
        (["experiment=dreamer_catch"], "a saved run keeps its groups"),
        (["+training.batch_size=3"], "only changes of the form key=value"),
        (["model.units=128"], "model.units cannot change, because the checkpoint depends on it"),
        (["seed=4"], "seed cannot change"),
        (["training.batchsize=3"], "Did you mean `training.batch_size`?"),
        (["training.total_steps=3"], "Did you mean `training.total_timesteps`?"),
        (["training.batch_size=x"], "training.batch_size must be a whole number, got `x`"),
        (["training.batch_size=0"], "training.batch_size must be at least 1, got 0"),
        (["buffer.memory_budget_gib=0.01"], "over buffer.memory_budget_gib=0.01"),
        (["-m"], "accepts only settings (key=value), not flags"),
        (["td3.discount=0.9"], "td3.discount is a setting of workflow=population, but dreamer_catch uses"),
    ],
)
def test_a_change_that_a_resumed_run_cannot_take_is_refused(
    arguments: list[str], part: str, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in error_of(capsys, f"resume={finished}", *arguments)


def test_a_misspelt_folder_to_resume_is_recognised(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean `earlier`?" in error_of(capsys, "resume=earlyer")


def test_a_folder_that_holds_a_run_is_not_written_over(
    finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of(capsys, CPU, f"run_dir={finished}")
    assert "run_dir=earlier already contains a run. Continue it with resume=earlier" in message
