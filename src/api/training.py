"""Train from Python, with the same results as from the command line, and access finished runs."""

import atexit
import inspect
import json
import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from hydra.core.override_parser.types import Quote, QuotedString

from ..checkpoints.pretrained import holds_networks_alone
from ..checkpoints.run_folder import unknown_maker_of
from ..commands.evaluate import EvaluateConfig, evaluate_run
from ..commands.options import own_settings
from ..commands.runs import Checked, checked_run
from ..commands.train import train_until
from ..config.overrides import FREE, parse
from ..config.schema import TrainConfig
from ..orchestration.signals import Signals, Stop
from ..utils.errors import UserError, require_posix
from ..utils.logging.json_lines import METRICS_FILE, read_lines, stored_log
from ..utils.logging.writer import OnLine
from .agent import Agent, load
from .environments import EnvLike, registered_limit, suite_and_id

_LOG = logging.getLogger(__name__)

_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_./][\w./:-]*", re.IGNORECASE | re.ASCII)
"""Strings that do not need quotes in Hydra's grammar."""

_RUNNING = threading.Lock()


@dataclass(frozen=True, init=False)
class Run:
    """Results of a run."""

    run_dir: Path
    """The folder with config.yaml, metrics.jsonl, checkpoints, videos and train.log."""

    def __init__(self, run_dir: str | Path) -> None:
        object.__setattr__(self, "run_dir", Path(run_dir))

    @cached_property
    def agent(self) -> Agent:
        """The agent of the newest checkpoint, loaded on first access."""
        return load(self.run_dir)

    @cached_property
    def best(self) -> Agent:
        """The agent of the checkpoint with the best evaluation, loaded on first access.

        For a population, it is the checkpoint with the best fitness. See `training.keep_best`.
        """
        return load(self.run_dir, checkpoint="best")

    def evaluate(
        self,
        episodes: int = 20,
        *,
        checkpoint: str = "newest",
        seed: int = 0,
        policy: str = "sample",
        max_steps: int | None = None,
        device: str = "auto",
    ) -> dict[str, Any]:
        """Play complete episodes with a checkpoint's agent, and return the results of `reverie-evaluate`.

        The arguments are the settings of `reverie-evaluate`. The result has the keys `returns` and `lengths`
        (a number per episode), `mean` (the mean return), `standard_error` (`None` for a single episode),
        `run`, `step`, `environment`, `seed`, `policy` and `max_steps`.

        Raises:
            UserError: If an argument is invalid, or the checkpoint is missing.
            KeyboardInterrupt: After Ctrl-C.
        """
        given = {"run": self.run_dir, "episodes": episodes, "checkpoint": checkpoint, "seed": seed}
        given |= {"policy": policy, "device": device, "max_steps": "null" if max_steps is None else max_steps}
        words = [f"{name}={value}" for name, value in given.items()]
        result, _ = evaluate_run(own_settings(EvaluateConfig, words, "Run.evaluate", None)[0])
        if "open_returns" in result:
            raise KeyboardInterrupt
        return result

    def metrics(self) -> list[dict[str, float]]:
        """Return the lines of metrics.jsonl: `step` in agent steps, and the values by tag.

        Raises:
            UserError: If the file does not exist.
        """
        if not stored_log(self.run_dir / METRICS_FILE).is_file():
            repair = 'Pass the folder of a run, e.g. reverie.Run("experiments/<run>")'
            raise UserError(f"{self.run_dir} has no {METRICS_FILE}. {repair}.")
        lines = read_lines(self.run_dir / METRICS_FILE)
        # JSON does not support non-finite numbers, so they are stored as strings.
        return [{tag: float(value) for tag, value in line.items()} for line in lines]


@contextmanager
def _torch_defaults(quiet: bool = False) -> Iterator[None]:
    """Use torch's defaults (float32, CPU, gradients enabled), and restore the program's settings on exit.

    Some simulator packages change these settings on import. Unless `quiet`, a warning lists the changes.
    """
    dtype, device, has_grad = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    changes = {
        f"default dtype {dtype}": dtype is not torch.float32,
        f"default device {device}": device.type != "cpu",
        "disabled gradients": not has_grad,
    }
    changed = ", ".join(name for name, is_changed in changes.items() if is_changed)
    if changed and not quiet:
        _LOG.warning(
            "Training overrides this program's torch settings (%s) and restores them at the end.", changed
        )
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(has_grad)


def train(
    experiment: str | None = None,
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    env: EnvLike | None = None,
    total_timesteps: int | None = None,
    callback: OnLine | None = None,
    **settings: object,
) -> Run:
    """Train an agent as `reverie-train` does with the same settings, and return the run.

    Ctrl-C saves a checkpoint and stops after the current step. A second Ctrl-C stops immediately. Signal
    handlers are restored on exit. The global generators of Python, NumPy and torch are seeded.

    Args:
        experiment: Name of a file in `configs/experiment`, such as `dreamer_catch`. Defaults to `dreamer` if
            `env` is given.
        overrides: Additional settings: strings as on the command line (`["model=debug", "seed=3"]`), or
            values by dotted key (`{"training.batch_size": 8}`). `resume=<run>` continues a run.
        env: A Gymnasium id, a class, or a function that creates an environment. A function of `num_envs`
            creates a `gymnasium.vector.VectorEnv`, and an existing one is used as it is and stays open. The
            environment replaces the experiment's. A resumed run keeps its environment, but the same class or
            function may be passed.
        total_timesteps: Agent steps of the run, summed over all environments.
        callback: Called after each line of metrics.jsonl is written, with the step in agent steps and the
            line's values. If it raises `Stop`, the run saves a checkpoint after the current step, and `train`
            returns. Its return value is ignored. If it raises any other exception, the run stops immediately
            and can be resumed from its newest checkpoint.
        **settings: Additional settings and groups whose keys do not contain a dot: `seed=3`, `model="debug"`.

    Raises:
        UserError: If a setting is invalid, the environment is not supported, or memory is insufficient.
        KeyboardInterrupt: After Ctrl-C, once the checkpoint is saved. The message explains how to continue.
        RuntimeError: If the run stops early: a leak, non-finite losses, failing environments or a full GPU.
        SystemExit: After SIGTERM, once the checkpoint is saved, with code 75.
    """
    same = steps(
        experiment, overrides, env=env, total_timesteps=total_timesteps, callback=callback, **settings
    )
    while True:
        try:
            next(same)
        except StopIteration as over:
            return over.value


class Report(NamedTuple):
    """A line of metrics.jsonl."""

    step: int
    """Agent steps so far, summed over all environments."""

    values: dict[str, float]
    """Values by tag."""


@_torch_defaults()
def steps(
    experiment: str | None = None,
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    env: EnvLike | None = None,
    total_timesteps: int | None = None,
    callback: OnLine | None = None,
    **settings: object,
) -> Generator[Report, None, Run]:
    """Return an iterator that trains as `train` does and yields the reports that a callback would receive.

    Training pauses while the body of the loop runs. Leaving the loop saves a checkpoint and closes the
    environments, as soon as Python releases the iterator. If the program keeps a reference to the iterator,
    this happens at the end of the program, unless it calls the iterator's `close` method.

    Args:
        experiment: See `train`.
        overrides: See `train`.
        env: See `train`.
        total_timesteps: See `train`.
        callback: See `train`. It is called before the report is yielded.
        **settings: See `train`.

    Yields:
        `(step, values)` for each line of metrics.jsonl, after the step that wrote it. The fields are also
        available as attributes.

    Raises:
        UserError: See `train`. Invalid settings are reported by this call, before the first step. The first
            step reports another active run of this process.
        KeyboardInterrupt: See `train`.
        RuntimeError: See `train`.
        SystemExit: See `train`.
    """
    require_posix()
    if callback is not None and not _takes_two(callback):
        raise UserError(f"callback must be a function of a step and values, got {callback!r}.")
    arguments = [*_typed(overrides), *_typed(settings)]
    if total_timesteps is not None:
        arguments += _typed({"training.total_timesteps": total_timesteps})
    if experiment is not None:
        if not isinstance(experiment, str):
            raise UserError(
                f"experiment must be a name, got {type(experiment).__name__}. Pass an environment as env=."
            )
        arguments.insert(0, f"experiment={experiment}")
    checked = checked_run(arguments) if env is None else _checked_run_in(env, arguments)
    interval = getattr(checked[0].training, "evaluation_interval", 0)
    if isinstance(env, VectorEnv) and interval:
        repair = "Set it to 0, or pass a function of num_envs"
        raise UserError(f"training.evaluation_interval={interval} needs environments besides env. {repair}.")
    reports = _reports(checked, env is not None, callback)
    alive = weakref.ref(reports)
    # A program may still reference the iterator at its end, and torch's modules are deleted afterwards.
    atexit.register(lambda: (found := alive()) and found.close())
    return reports


def _reports(checked: Checked, has_env: bool, callback: OnLine | None) -> Generator[Report, None, Run]:
    """Yield the reports of a checked run and return the run. End the run if the generator is closed early."""
    config, preflight, notices = checked
    signals, reports = Signals(), deque[Report]()

    def on_line(step: int, values: dict[str, float]) -> None:
        reports.append(Report(step, values))
        try:
            if callback is not None:
                callback(step, values)
        except Stop:
            signals.finish("a callback raised reverie.Stop")

    training = train_until(signals, config, preflight, notices, on_line)

    @_torch_defaults(quiet=True)
    def advance() -> bool:
        """Train until there are reports. Return False at the end of the run."""
        return any(reports for _ in training) or bool(reports)

    with _only_run(), signals, _explained(config, has_env, signals):
        try:
            while advance():
                while reports:
                    yield reports.popleft()
        finally:
            signals.finish("the program left the loop over reverie.steps")
            while advance():
                reports.clear()
    return Run(Path(str(config.run_dir)))


@contextmanager
def _only_run() -> Iterator[None]:
    """Refuse a second run, because logging and signal handlers belong to the whole process."""
    if not _RUNNING.acquire(blocking=False):
        raise UserError("Another run of this process is active. Finish it, or call its iterator's close().")
    try:
        yield
    finally:
        _RUNNING.release()


@contextmanager
def _explained(config: TrainConfig, has_env: bool, signals: Signals) -> Iterator[None]:
    """Convert errors of a run to errors that explain how to continue from Python."""
    try:
        yield
    except UserError as error:
        if not has_env or config.resume is None or not isinstance(error.__cause__, ValueError):
            raise
        repair = "Pass the environment with which it was trained"
        raise UserError(f"{config.resume} does not fit env: {error.__cause__}. {repair}.") from None
    except SystemExit as ended:
        then = f'continue with reverie.train(resume="{config.run_dir}")'
        if signals.interrupted:
            raise KeyboardInterrupt(then) from None
        if signals.stop and not signals.finish_reason:
            raise
        why = f"with exit code {ended.code} (docs/reliability.md); see {config.run_dir}/train.log"
        raise RuntimeError(f"The run stopped {why}. After a fix, {then}.") from ended.__cause__


def _takes_two(callback: object) -> bool:
    """Return whether an object accepts two arguments. If its signature is unknown, assume that it does."""
    # A coroutine function's result would never be awaited.
    if inspect.iscoroutinefunction(callback):
        return False
    try:
        inspect.signature(callback).bind(0, {})  # pyright: ignore[reportArgumentType]
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _checked_run_in(env: EnvLike, arguments: list[str]) -> Checked:
    """Return `checked_run` for the caller's environment. Raise a `UserError` if a resumed run has another."""
    resume = {item.key_or_group: item.value() for item in parse(arguments)}.get("resume")
    is_continued = resume is not None and not holds_networks_alone(str(resume))
    suite, env_id = suite_and_id(env, unknown_maker_of(str(resume)) if is_continued else None)
    if not is_continued:
        key = "env" if resume is None else "env.suite"
        chosen: dict[str, object] = {key: suite.value}
        if env_id is not None:
            chosen["env.id"] = env_id
        if (limit := registered_limit(env)) is not None:
            chosen["env.time_limit"] = limit
        if isinstance(env, VectorEnv):
            chosen["env.num_envs"] = env.num_envs
        return checked_run([*_typed(chosen), *arguments])
    checked = checked_run(arguments)
    own = checked[0].env
    if (own.suite, own.id) != (suite, env_id or own.id):
        asked = f"env={env_id or suite.value}"
        raise UserError(
            f"{asked}: resume={resume} cannot change the run's environment, {own.label}. Omit env."
        )
    return checked


def _typed(settings: Sequence[str] | Mapping[str, object]) -> Iterator[str]:
    """Yield settings in the command line's format."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            # Deeper mappings are values of an environment's arguments.
            if isinstance(value, Mapping) and not key.startswith(f"{FREE}."):
                yield from _typed({f"{key}.{name}": item for name, item in value.items()})
            else:
                yield f"{key}={_text_of(key, value)}"
    elif isinstance(settings, Sequence) and all(isinstance(each, str) for each in settings):
        yield from settings
    else:
        raise UserError(f'overrides must be strings such as "seed=3", or values by key, got {settings!r}.')


def _text_of(key: str, value: Any) -> str:
    """Format a value in Hydra's grammar."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text_of(key, item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_text_of(key, item)}" for name, item in value.items()) + "}"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str | Path):
        allowed = "a number, a string, True, False, None, or a list or dict of them"
        raise UserError(f"{key} must be {allowed}, got {type(value).__name__}.")
    text = str(value)
    if "${" in text:
        raise UserError(f"{key} must not contain `${{`, which refers to another setting, got {text}.")
    return text if _PLAIN.fullmatch(text) else QuotedString(text, Quote.double).with_quotes()
