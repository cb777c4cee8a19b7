"""Training from Python matches training from the command line, in a process with other tasks."""

import math
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import reverie
from reverie.api.training import _typed
from reverie.commands import export
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.config.schema import leaves
from reverie.envs import Catch
from reverie.orchestration.signals import Signals

from ..runs.helpers import SMALL, identity, saved_steps, start

pytestmark = pytest.mark.usefixtures("empty_folder")
BRIEF = (
    *SMALL,
    "logger=plain",
    "env.num_envs=1",
    "training.video_interval=0",
    "training.log_interval=20",
    "training.total_timesteps=60",
)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def test_a_run_from_python_is_the_run_of_the_command_line_bit_for_bit(tmp_path: Path) -> None:
    lines: list[dict[str, float]] = []

    def note(step: int, values: dict[str, float]) -> None:
        lines.append({"step": step, **values})

    handlers = [signal.getsignal(number) for number in STOPPING]
    run = reverie.train("dreamer_cartpole", BRIEF, callback=note, seed=4, run_dir=tmp_path / "python")
    assert [signal.getsignal(number) for number in STOPPING] == handlers
    typed = start(tmp_path / "typed", "experiment=dreamer_cartpole", *BRIEF, "seed=4")
    assert identity(run.run_dir) == identity(typed)
    assert run.metrics() == lines and lines[-1]["step"] == 60
    assert run.agent.step == 60 and run.agent is run.agent


def test_ctrl_c_leaves_a_checkpoint_and_the_run_goes_on(tmp_path: Path) -> None:
    def interrupt(step: int, values: Mapping[str, float]) -> None:
        if "train/updates" in values:
            signal.raise_signal(signal.SIGINT)

    handlers = [signal.getsignal(number) for number in STOPPING]
    with pytest.raises(KeyboardInterrupt, match=r'continue with reverie.train\(resume="run of mine"\)'):
        reverie.train("dreamer_cartpole", BRIEF, callback=interrupt, run_dir="run of mine")
    assert [signal.getsignal(number) for number in STOPPING] == handlers
    assert saved_steps(tmp_path / "run of mine") == [20]
    run = reverie.train(resume="run of mine", total_timesteps=40)
    assert saved_steps(run.run_dir) == [20, 40]


def test_a_class_of_a_module_is_found_by_every_process() -> None:
    run = reverie.train("dreamer_catch", BRIEF, env=Catch, total_timesteps=40, run_dir="catch")
    assert repr(run.agent) == "<reverie.Agent for python/reverie.envs.catch.Catch-v0, trained for 40 steps>"
    # Another process has no such registration.
    del gymnasium.registry["python/reverie.envs.catch.Catch-v0"]
    env = reverie.load("catch").make_env()
    assert isinstance(env.unwrapped, Catch)
    assert reverie.train(resume="catch", env=Catch, total_timesteps=60).agent.step == 60
    with pytest.raises(
        reverie.UserError, match=r"env=CartPole-v1: resume=catch cannot change .* python/reverie.envs"
    ):
        reverie.train(resume="catch", env="CartPole-v1", total_timesteps=80)
    with pytest.raises(
        reverie.UserError, match=r"total_timesteps=40 is already reached: catch has a checkpoint of step 60"
    ):
        reverie.train(resume="catch", total_timesteps=40)
    assert "total_timesteps: 60" in Path("catch/config.yaml").read_text()


def test_a_class_that_no_module_has_is_given_again() -> None:
    class Local(Catch):
        pass

    run = reverie.train("dreamer_catch", BRIEF, env=Local, total_timesteps=40, run_dir="local")
    spec = run.agent.make_env().spec
    assert spec is not None
    own_id = spec.id
    assert own_id.startswith("python/tests.api.test_training.test_") and own_id.endswith(".locals.Local-v0")
    # Another process has no such registration.
    del gymnasium.registry[own_id]
    with pytest.raises(reverie.UserError, match=r"Local-v0 is not registered .* Pass it, e.g. reverie.load"):
        reverie.load("local")
    agent = reverie.load("local", env=Local)
    env = agent.make_env()
    assert isinstance(env.unwrapped, Local) and agent.act(env.reset()[0]) in (0, 1, 2)
    del gymnasium.registry[own_id]
    again = reverie.train(resume="local", env=lambda: Local(), total_timesteps=60)
    assert again.agent.step == 60 and isinstance(again.agent.make_env().unwrapped, Local)
    with pytest.raises(
        reverie.UserError, match=r"env=python/reverie.envs.catch.Catch-v0: resume=local cannot change"
    ):
        reverie.train(resume="local", env=Catch, total_timesteps=80)
    assert isinstance(reverie.load("local").make_env().unwrapped, Local)
    del gymnasium.registry[own_id]
    with pytest.raises(
        reverie.UserError, match=r"^local does not fit env: .* Pass the environment with which it was"
    ):
        reverie.train(resume="local", env=lambda: gymnasium.make("CartPole-v1"), total_timesteps=80)


class Größe(Catch):
    """A class name beyond ASCII."""


def test_a_class_and_a_folder_of_any_letters_train() -> None:
    run = reverie.train("dreamer_catch", BRIEF, env=Größe, total_timesteps=40, run_dir="Läufe")
    assert run.run_dir == Path("Läufe") and isinstance(run.agent.make_env().unwrapped, Größe)


def test_an_exported_folder_is_continued_as_networks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = reverie.train("dreamer_catch", BRIEF, total_timesteps=40, run_dir="whole")
    monkeypatch.setattr(sys, "argv", ["reverie-export", "run=whole", "out=exported", "episodes=1"])
    export.main()
    again = reverie.train(resume="exported", total_timesteps=40, env=Catch)
    assert again.run_dir != Path("exported") and not Path("exported/checkpoints").exists()
    assert "init: exported" in (again.run_dir / "config.yaml").read_text()
    assert "python/reverie.envs.catch.Catch-v0" in (again.run_dir / "config.yaml").read_text()
    assert run.agent.step == again.agent.step == 40
    with pytest.raises(reverie.UserError, match=r"run_dir=exported already contains networks\. Choose"):
        reverie.train(resume="exported", run_dir="exported")
    # A run folder stays a run.
    shutil.copy("exported/weights.safetensors", "whole")
    assert reverie.train(resume="whole", total_timesteps=60).run_dir == Path("whole")


def test_two_functions_without_a_name_do_not_take_each_others_place() -> None:
    from reverie.api.environments import suite_and_id

    first, second = (lambda: gymnasium.make("CartPole-v1")), (lambda: gymnasium.make("Acrobot-v1"))
    ids = [suite_and_id(env)[1] for env in (first, second, first)]
    assert ids[0] == ids[2] != ids[1]
    assert [gymnasium.make(str(env_id)).observation_space.shape for env_id in ids[:2]] == [(4,), (6,)]


class Broken(Catch):
    """Works only for the first step, taken to probe it before a run exists."""

    steps = 0

    def step(self, action: Any) -> Any:
        Broken.steps += 1
        if Broken.steps > 1:
            raise ArithmeticError("it broke")
        return super().step(action)


def test_a_run_that_cannot_go_on_is_an_error_that_says_how_to_continue() -> None:
    with pytest.raises(RuntimeError, match=r"exit code 5 .*train.log. After a fix, continue with") as found:
        reverie.train("dreamer_catch", [*BRIEF, "env.max_restarts=0"], env=Broken, run_dir="broken")
    assert "it broke" in str(found.value.__cause__)


def test_a_callback_that_cannot_be_called_is_refused_before_the_run() -> None:
    async def late(step: int, values: Mapping[str, float]) -> None: ...

    for wrong in (lambda step: None, "print", late):
        with pytest.raises(reverie.UserError, match="callback must be a function of a step and values"):
            reverie.train("dreamer_cartpole", BRIEF, callback=wrong, run_dir="none")  # pyright: ignore[reportArgumentType]
    assert not Path("none").exists()


def test_an_environment_in_the_place_of_the_experiment_is_refused() -> None:
    refused = r"^experiment must be a name, got .* Pass an environment as env="
    with pytest.raises(reverie.UserError, match=refused):
        reverie.train(lambda: None)  # pyright: ignore[reportArgumentType]


def test_what_a_callback_raises_comes_through() -> None:
    def enough(step: int, values: Mapping[str, float]) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        reverie.train("dreamer_cartpole", BRIEF, callback=enough)


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (["model=debug", "seed=3"], ["model=debug", "seed=3"]),
        ("seed=3", ["seed=3"]),
        ({"training.batch_size": 8, "deterministic": True}, ["training.batch_size=8", "deterministic=true"]),
        ({"run_dir": Path("a b"), "name": "x", "resume": None}, ['run_dir="a b"', "name=x", "resume=null"]),
        ({"env.id": "my.worlds:Maze-v0", "name": "null"}, ["env.id=my.worlds:Maze-v0", 'name="null"']),
    ],
)
def test_settings_are_typed_as_on_the_command_line(
    given: Sequence[str] | Mapping[str, object], typed: list[str]
) -> None:
    assert list(_typed(given)) == typed


@pytest.mark.parametrize(
    "value",
    [
        "a\\b",
        'a "b\\" \\\\',
        "tab\tand\nline",
        "it's",
        "null",
        "1e3",
        "",
        math.inf,
        -0.5,
        None,
        np.int64(3),
        ["x y", {"k": "v\\"}],
    ],
)
def test_hydra_reads_back_what_was_given(value: Any) -> None:
    [typed] = _typed({"env.kwargs.it": value})
    [read] = OverridesParser.create().parse_overrides([typed])
    assert read.value() == value


def test_mappings_of_an_environment_keep_their_keys() -> None:
    given = {"options": {}, "levels": {"a.b": 1, "c d": {"e": 2}}, "maps": {0: "x", 1: [3]}}
    [job] = compose_jobs(["env=gymnasium", "env.id=CartPole-v1", *_typed({"env": {"kwargs": given}})])
    config = typed(job)
    assert config.env.kwargs == given
    assert dict(leaves(config))["env.kwargs.maps.0"] == "x"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modle": "debug"}, "modle=debug: there is no key modle"),
        ({"model": "debg"}, "there is no model `debg`.*Did you mean `debug`"),
        (
            {"seed": object()},
            "seed must be a number, a string, True, False, None, or a list or dict of them, got object",
        ),
        ({"env": Catch()}, "env is of type Catch, an existing environment. Pass an id, a class"),
        ({"env": "CartPle-v1"}, "Did you mean `CartPole-v1`"),
        ({"env": "CartPle-v1", "resume": None}, "Did you mean `CartPole-v1`"),
        ({"name": "${seed}"}, r"name must not contain `\$\{`, which refers to another setting"),
        ({"total_timesteps": 0}, "training.total_timesteps must be at least 1, got 0"),
        ({"overrides": ["model"]}, "`model` is not of the form key=value"),
        ({"overrides": [1]}, r'overrides must be strings such as "seed=3", or values by key, got \[1\]'),
        ({"callback": 3}, "callback must be a function of a step and values, got 3"),
    ],
)
def test_a_mistake_is_one_error_and_creates_nothing(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(reverie.UserError, match=message):
        reverie.train("dreamer_catch", **settings)
    assert not any(tmp_path.iterdir())


def test_another_thread_than_the_main_one_trains_without_signals() -> None:
    handlers = [signal.getsignal(number) for number in STOPPING]

    def enter() -> None:
        with Signals():
            seen.append([signal.getsignal(number) for number in STOPPING])

    seen: list[Any] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [handlers]


def test_a_metric_that_is_not_finite_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": "NaN", "most": "-Infinity"}\n')
    [line] = reverie.Run(tmp_path).metrics()
    assert line["step"] == 3 and math.isnan(line["loss"]) and line["most"] == -math.inf


def test_a_run_can_be_named_by_a_text_and_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(reverie.UserError, match=r"^nosuch has no metrics.jsonl\. Pass the folder of a run"):
        reverie.Run("nosuch").metrics()


class Endless(Catch):
    """Registered with a time limit."""


@pytest.fixture(scope="module")
def _is_registered() -> None:
    maker: Any = Endless
    gymnasium.register("tests/EndlessHard-v2", entry_point=maker, max_episode_steps=4, kwargs={"hard": True})
    gymnasium.register("tests/Endless-v1", entry_point=maker, max_episode_steps=3)
    gymnasium.register("tests/Endless-v2", entry_point=f"{__name__}:Endless", max_episode_steps=6)


@pytest.mark.usefixtures("_is_registered")
@pytest.mark.parametrize(
    ("settings", "limit"), [({}, 6), ({"env.time_limit": 5}, 5), ({"env.time_limit": None}, None)]
)
def test_a_class_keeps_the_time_limit_of_its_registration(
    settings: dict[str, Any], limit: int | None, tmp_path: Path
) -> None:
    run = reverie.train(
        overrides=[*BRIEF, "env.action_repeat=1"], env=Endless, run_dir=tmp_path / "run", **settings
    )
    lengths = {line["episode/length"] for line in run.metrics() if "episode/length" in line}
    assert lengths == {limit or 7}
    env: Any = reverie.load(run.run_dir, env=Endless).make_env()
    env.reset(seed=0)
    assert [env.step(1)[3] for _ in range(limit or 6)].count(True) == (limit is not None)
