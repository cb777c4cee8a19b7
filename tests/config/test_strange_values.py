"""Values that OmegaConf would silently replace or convert are refused in all arguments."""

from pathlib import Path

import pytest

import reverie
from reverie.checkpoints.run_folder import resume_run
from reverie.commands.evaluate import EvaluateConfig
from reverie.commands.export import ExportConfig
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs
from reverie.config.overrides import check_setting, parse
from reverie.utils.errors import UserError

MISSING = [
    "training.batch_size=???",
    'name="???"',
    "model=???",
    "experiment=???",
    "resume=???",
    "env.wrappers=[a.B,???]",
    "env.kwargs.size=???",
    "env.kwargs.map={walls:[1,???]}",
    "+env.kwargs.size=???",
]
NUMBERS = ["9", "2", "-1", "1.0", "0.5", "'9'", "1e3"]


@pytest.mark.parametrize("argument", MISSING)
def test_question_marks_are_not_a_value(argument: str) -> None:
    with pytest.raises(UserError, match=r"\?\?\? is not a value\. Write \S+=VALUE, or omit"):
        compose_jobs(["experiment=dreamer_catch", argument])


def test_question_marks_are_refused_from_python_and_in_changes(catch_run: Path) -> None:
    for settings in (
        {"env.wrappers": ["a.B", "???"]},
        {"env": {"kwargs": {"x": {"a": "???"}}}},
        ["seed=???"],
    ):
        with pytest.raises(UserError, match=r"\?\?\? is not a value"):
            reverie.train("dreamer_catch", settings)
    with pytest.raises(UserError, match=r"\?\?\? is not a value"):
        reverie.train("dreamer_catch", name="???")
    with pytest.raises(UserError, match=r"\?\?\? is not a value"):
        resume_run(str(catch_run), parse(["training.total_timesteps=???"]))
    with pytest.raises(UserError, match=r"\?\?\? is not a value"):
        compose_jobs(["seed=1,???"], multirun=True)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "key", ["deterministic", "logger.tensorboard", "buffer.compressed", "env.full_action_space"]
)
def test_a_number_is_neither_true_nor_false(key: str, number: str) -> None:
    [override] = parse([f"{key}={number}"])
    with pytest.raises(UserError, match=f"{key} must be true or false, got `"):
        check_setting(override)


@pytest.mark.parametrize("number", ["9", "-1", "1.0"])
def test_a_number_is_neither_true_nor_false_for_a_command(number: str) -> None:
    with pytest.raises(UserError, match="video must be true or false"):
        own_settings(ExportConfig, ["run=a", "out=b", f"video={number}"], "export", "")


def test_words_of_yaml_and_0_and_1_are_booleans_as_before() -> None:
    for word, value in {"true": True, "False": False, "on": True, "no": False, "1": True, "0": False}.items():
        [job] = compose_jobs(["experiment=dreamer_catch", f"deterministic={word}"])
        assert job.deterministic is value
    settings, _ = own_settings(EvaluateConfig, ["run=a", "episodes=1"], "evaluate", "")
    # A number stays a number.
    assert settings.episodes == 1
