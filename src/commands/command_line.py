"""`reverie-train`: Hydra's command line, with checks before Hydra creates files.

User errors are reported in one line, with exit code 2. Only `.runs` loads torch (slow).
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from .. import __version__
from ..config.compose import HYDRA_VERSION_BASE, compose_jobs, names_of_jobs, with_experiment
from ..config.overrides import explain, parse
from ..config.presets import help_text, overview
from ..config.resolve import CONFIG_PACKAGE, register_schemas, typed
from ..config.workflow import in_own_schema
from ..utils.environment_variables import environment_variables
from ..utils.errors import UserError, did_you_mean, exit_on_user_error
from .entry import load

Task = Callable[[Any, Any, list[str]], object]
"""Function that runs a checked configuration, given its `Preflight` and the notices to log at its start."""


def run_from_command_line(task: Task, arguments: Sequence[str] | None = None) -> None:
    """Run `task` in this process for a new run, a resumed run, or every run of a multirun.

    Without arguments, print the experiments instead.

    Raises:
        SystemExit: With code 2 for a `UserError`. Its message is the last line on stderr.
    """
    with exit_on_user_error():
        words = list(sys.argv[1:] if arguments is None else arguments)
        # Under torchrun, only rank 0 prints the overview.
        if not words:
            return print(overview()) if os.environ.get("RANK", "0") == "0" else None
        if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
            words = load(".runs", "continued")(words)
        # Hydra would print its own version.
        if "--version" in words:
            return print(f"reverie {__version__}")
        flags = _flags(words)
        options = [word for word in words if word not in flags.overrides]
        # Hydra itself would take two more seconds to list the groups.
        if flags.help:
            return print(help_text(flags.config_dir))
        if flags.shell_completion or flags.hydra_help or flags.info:
            return _run_hydra([*with_experiment(flags.overrides), *options])
        if not flags.overrides and not flags.cfg:
            raise UserError(f"{words[0]} needs settings, such as experiment=dreamer_catch seed=1,2.")
        overrides = parse(flags.overrides)
        resume = {item.key_or_group: item.value() for item in overrides}.get("resume")
        if resume is not None and options:
            raise UserError(f"resume={resume} accepts only settings (key=value), not flags.")
        if resume is not None:
            task(*load(".runs", "checked_run")(flags.overrides))
            return
        jobs = compose_jobs(flags.overrides, multirun=flags.multirun, config_dir=flags.config_dir)
        if flags.cfg == "job" and not (flags.package or flags.multirun):
            # Hydra would include the settings of the other workflow.
            return print(OmegaConf.to_yaml(jobs[0], resolve=flags.resolve))
        for_hydra = with_experiment([str(item.input_line) for item in overrides])
        for_hydra += [names_of_jobs(overrides)] * flags.multirun + options
        if flags.cfg:
            return _run_hydra(for_hydra)
        # Report invalid settings before importing torch.
        configs = [typed(job) for job in jobs]
        checked_job = load(".runs", "checked_job")
        suggest = None if flags.multirun else flags
        # Check all jobs before the first one starts.
        checked = [checked_job(job, config, suggest) for job, config in zip(jobs, configs, strict=True)]
        _run_hydra(for_hydra, task, () if flags.multirun else checked[0])


class Comparison(Callback):
    """Prints the command that compares the runs of a multirun, at its end."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Hydra calls this with the composed configuration after the last job."""
        print(f"compare the runs: reverie-plot '{config.hydra.sweep.dir}/*'")


def _flags(words: list[str]) -> Namespace:
    """Return Hydra's flags, wherever they appear, and all other words as `overrides`."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        hint = did_you_mean(message.split()[-1], re.findall(r"--[\w-]+", parser.format_usage()))
        raise UserError(f"{message}.{hint} Settings are written without dashes: key=value.")

    parser.error = refuse
    flags = parser.parse_intermixed_args(words)
    if flags.config_path or flags.config_name or flags.experimental_rerun:
        found = "--config-path, --config-name and --experimental-rerun would replace configs/train.yaml"
        raise UserError(f"{found}, which all checks depend on. Add your own files with --config-dir.")
    if flags.config_dir is not None and not os.path.isdir(flags.config_dir):
        raise UserError(f"--config-dir={flags.config_dir} is not a folder.")
    for flag in ("resolve", "package"):
        if getattr(flags, flag) and not (flags.cfg or flags.help):
            raise UserError(f"--{flag} needs --cfg. Write --cfg job --{flag}.")
    return flags


def _run_hydra(arguments: list[str], task: Task | None = None, checked: Sequence[Any] = ()) -> None:
    """Let Hydra handle its own flags, run an already `checked` task, or run several jobs."""

    @hydra.main(f"pkg://{CONFIG_PACKAGE}", config_name="train", version_base=HYDRA_VERSION_BASE)
    def job(composed: DictConfig) -> float | None:
        assert task is not None
        if checked:
            # Outside of the job, Hydra would add a line to the error.
            with exit_on_user_error():
                task(*checked)
            return None
        # A launcher may run the job in another process that needs this import.
        from .runs import checked_job, score_of

        own = in_own_schema(composed)
        config = typed(own)
        config.run_dir = config.run_dir or os.path.relpath(HydraConfig.get().runtime.output_dir)
        task(*checked_job(own, config))
        return score_of(config.run_dir)

    register_schemas()
    before = sys.argv
    sys.argv = [before[0], *arguments]
    try:
        # With this variable set, Hydra raises errors instead of exiting.
        with environment_variables({"HYDRA_FULL_ERROR": "1"}):
            job()
    except (HydraException, ValueError) as error:
        if task is None or isinstance(error, HydraException):
            raise explain(error) from error
        raise
    finally:
        sys.argv = before


def main() -> None:
    """Run `reverie-train`."""
    run_from_command_line(lambda *checked: load(".train", "train")(*checked))
