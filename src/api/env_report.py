"""Report how Reverie uses an environment: the parts that it uses, converts and ignores."""

import contextlib
import copy
import re
import warnings
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import env_checker
from gymnasium.utils.env_checker import data_equivalence

from ..envs import EnvConfig, EnvironmentFailed, make_single
from ..envs.backend import require_shapes
from ..envs.process_state import KeptState, collected_changes
from ..envs.registered import require_no_statistics
from ..envs.spaces import (
    action_spec,
    as_array,
    convert_observation,
    notices,
    part_space,
    parts_of,
)
from ..envs.workers import as_number
from ..utils.errors import CODE_FAULTS, UserError, require_seed, with_place
from ..utils.timestep import ArraySpec, EnvSpec
from ..utils.units import count_text
from .environments import EnvLike, registered_limit, suite_and_id

_LEAST_SPREAD = 0.1
"""Minimum spread of returns. Smaller advantages are not scaled up (see `models/returns.py`)."""

_NO_MATTER = (
    "unwrapped version",
    "space minimum value is",
    "space maximum value is",
    "rl_tips.html",
    "share an object",
)
"""Phrases that identify warnings of Gymnasium's checker that Reverie ignores."""

_IS_NOT_REPEATABLE = ("super().reset(seed=seed)", "determinis")
"""Phrases that identify errors of Gymnasium's checker that do not prevent training."""

_FORMAT = re.compile(r"\x1b\[[0-9;]*m|^(WARN|ERROR): ")


@dataclass(slots=True)
class EnvReport:
    """How Reverie uses an environment: the parts used, converted and ignored. `str(report)` is the text."""

    name: str
    spec: EnvSpec | None = None
    """One environment's observations and actions as the networks see them, or `None` if unsupported."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    """Name of each part of the environment, and how Reverie uses that part."""

    notices: list[str] = field(default_factory=list)
    """Supported but possibly unexpected behavior, one sentence per item."""

    errors: list[str] = field(default_factory=list)
    """Problems that prevent or spoil training, one sentence per item, with the fix."""

    @property
    def is_ready(self) -> bool:
        """Whether the environment has no errors, so that a run can train on it."""
        return not self.errors

    def __str__(self) -> str:
        problems = [("notice", text) for text in self.notices] + [("error", text) for text in self.errors]
        title = f"{self.name}: " + ("ready to train" if self.is_ready else "not ready to train")
        return "\n".join([title, *(f"  {name:<12} {text}" for name, text in [*self.facts, *problems])])


def check_env(env: EnvLike | gymnasium.Env[Any, Any], *, steps: int = 500, seed: int = 0) -> EnvReport:
    """Take random steps, then report which parts of an environment Reverie uses, converts and ignores.

    Args:
        env: A Gymnasium id, a class, a function that creates an environment, or an environment. An
            environment that is passed in is not closed.
        steps: Number of random steps, each of one environment frame.
        seed: Seed of the first episode and of the actions.

    Returns:
        The report. `report.errors` is empty if a run can train on the environment.

    Raises:
        UserError: If the environment is unknown or cannot be created, or `steps` or `seed` is invalid.

    >>> for line in str(check_env("CartPole-v1")).splitlines()[:3]:
    ...     print(line)
    CartPole-v1: ready to train
      vector       Box of (4,) float32, seen as vector (4,) float32
      action       Discrete: one of 2 choices
    """
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps must be a whole number of at least 1, got {steps!r}.")
    require_seed(seed)
    maker = None if isinstance(env, gymnasium.Env) else env
    with collected_changes() as changes, contextlib.ExitStack() as stack:
        made = env if isinstance(env, gymnasium.Env) else _made(env)
        named = made.spec.id if made.spec else type(made.unwrapped).__name__
        report = EnvReport(env if isinstance(env, str) else named)
        stack.enter_context(KeptState(named, "when it was checked"))
        if maker is not None:
            stack.callback(_close, made)
        try:
            require_no_statistics(made)
        except UserError as error:
            report.errors.append(f"{report.name} {error}")
        _check_spaces(report, made)
        _check_interface(report, made)
        if report.spec is not None:
            _play(report, made, steps, seed)
        # Do this check last, because MuJoCo renders black images after another environment is closed.
        if maker is not None:
            _check_another(report, made, maker, seed)
    report.facts.append(("ignored", "info (except env.info and success) and render() (except for videos)"))
    report.notices.extend(changes)
    return report


def _close(env: gymnasium.Env[Any, Any]) -> None:
    with contextlib.suppress(*CODE_FAULTS):
        env.close()


def _made(env: EnvLike) -> gymnasium.Env[Any, Any]:
    suite, env_id = suite_and_id(env)
    config = EnvConfig(suite=suite, id=env_id or "", action_repeat=1, time_limit=registered_limit(env))
    try:
        return make_single(config)
    except UserError:
        raise
    except CODE_FAULTS as error:
        raise UserError(f"{env_id} cannot be created: {with_place(error)}.") from error


def _check_spaces(report: EnvReport, env: gymnasium.Env[Any, Any]) -> None:
    """Add facts, notices and errors about the observation and action spaces."""
    shown: dict[str, ArraySpec] = {}
    space, size = env.observation_space, EnvConfig().image_size
    parts = parts_of(space)
    for key, part in parts.items():
        try:
            seen = part_space(key, parts, size)
        except UserError as error:
            report.errors.append(f"{report.name} {error}")
            continue
        shown[key] = ArraySpec(seen.shape or (), np.dtype(seen.dtype))
        report.facts.append((key, _words(part, shown[key])))
        report.notices.extend(notices(spaces.Dict({key: part}) if isinstance(space, spaces.Dict) else part))
    try:
        action = action_spec(env.action_space)
    except UserError as error:
        report.errors.append(f"{report.name} {error}")
        return
    if report.is_ready:
        report.spec = EnvSpec(report.name, shown, action, num_envs=1, action_repeat=1)
    report.facts.append(("action", _action_words(env.action_space)))
    if isinstance(env.action_space, spaces.Box) and not env.action_space.is_bounded():
        reach = "actions without two finite bounds receive the policy's output, clipped to [-1, 1]"
        report.notices.append(f"{reach}; declare both bounds")


def _words(given: spaces.Space[Any], seen: ArraySpec) -> str:
    if isinstance(given, spaces.Discrete):
        return f"Discrete: one of {given.n}, seen as one-hot {seen.shape} {seen.dtype}"
    assert isinstance(given, spaces.Box)
    is_resized = seen.is_image and given.shape.count(seen.shape[0]) < 2
    kind = ("image, resized to" if is_resized else "image") if seen.is_image else "vector"
    return f"Box of {given.shape} {given.dtype}, seen as {kind} {seen.shape} {seen.dtype}"


def _action_words(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        start = f", counted from {space.start}" if space.start else ""
        return f"Discrete: one of {count_text(int(space.n), 'choice')}{start}"
    if not isinstance(space, spaces.Box):
        return f"{space}: one choice per part, seen as one-hot blocks"
    return f"continuous: {space.shape} {space.dtype} from {space.low.min():g} to {space.high.max():g}"


def _check_interface(report: EnvReport, env: gymnasium.Env[Any, Any]) -> None:
    """Check `reset` and `step` with Gymnasium's checker. It has no check for a batch of environments."""
    if env.unwrapped.metadata.get("is_of_a_batch"):
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env_checker.check_env(_as_training_takes(env), skip_render_check=True, skip_close_check=True)
        except CODE_FAULTS as error:
            reason = f"Gymnasium's environment checker failed: {_plain(with_place(error))}"
            if any(each in reason.lower() for each in _IS_NOT_REPEATABLE):
                then = "episodes open at a checkpoint cannot be restored, and runs are not repeatable"
                report.notices.append(f"{reason}: {then}")
            else:
                report.errors.append(f"{reason}. Fix reset() or step() as documented in gymnasium.Env.")
    found = dict.fromkeys(_plain(str(each.message)) for each in caught)
    report.notices.extend(text for text in found if not any(each in text for each in _NO_MATTER))


def _as_training_takes(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that Gymnasium's checker accepts everything that training accepts.

    Actions are copied, observations are copies with arrays instead of tensors, and flags are plain bools.
    """
    # Gymnasium's checker converts the tensors of such environments itself.
    if env.metadata.get("torch"):
        return env
    view, space = gymnasium.Wrapper(env), env.observation_space

    # The checker inspects the signature. `wraps` preserves it.
    @wraps(env.reset)
    def reset(*args: Any, **kwargs: Any) -> Any:
        return _taken(space, env.reset(*args, **kwargs))

    view.reset = reset
    view.step = lambda action: _taken(space, env.step(copy.deepcopy(action)))
    return view


def _taken(space: spaces.Space[Any], result: Any) -> Any:
    """Convert a result of `reset` or `step` as training does. Leave malformed results to the checker."""
    if isinstance(result, tuple):
        match result:
            case (observation, dict()):
                return _arrays(space, observation), {}
            case (observation, reward, terminated, truncated, dict()):
                return _arrays(space, observation), reward, bool(terminated), bool(truncated), {}
    return result


def _arrays(space: spaces.Space[Any], observation: Any) -> Any:
    """Return a copy of an observation, with tensors converted to arrays of `space` as in training."""
    if isinstance(space, spaces.Dict) and isinstance(observation, dict):
        return {key: _arrays(space.get(key, space), value) for key, value in observation.items()}
    if not hasattr(observation, "detach") or not isinstance(space, spaces.Box | spaces.Discrete):
        return copy.deepcopy(observation)
    array, shape = as_array(observation), space.shape or ()
    if array.size == np.prod(shape):
        array = array.reshape(shape)
    fits = isinstance(space, spaces.Discrete) or np.can_cast(array.dtype, space.dtype, "same_kind")
    return array.astype(space.dtype if fits else array.dtype)[()]


def _check_another(report: EnvReport, env: gymnasium.Env[Any, Any], maker: EnvLike, seed: int) -> None:
    """Add a notice if another instance returns a different first observation for the same seed."""
    with (
        contextlib.suppress(*CODE_FAULTS),
        warnings.catch_warnings(),
        contextlib.closing(_made(maker)) as other,
    ):
        warnings.simplefilter("ignore")
        # `_arrays` copies, because an environment may reuse its observation array.
        first, again, others = (
            _arrays(each.observation_space, each.reset(seed=seed)[0]) for each in (env, env, other)
        )
        if data_equivalence(first, again) and not data_equivalence(first, others):
            reason = (
                "another instance starts differently with the same seed: something (e.g. a camera position)"
            )
            then = "is random at creation. Evaluations and resumed runs may see states unseen in training"
            report.notices.append(f"{reason} {then}; set it explicitly")


def _plain(text: str) -> str:
    """Return the first line of a Gymnasium message without color codes."""
    return _FORMAT.sub("", _FORMAT.sub("", text)).strip().partition("\n")[0].rstrip(".")


def _play(report: EnvReport, env: gymnasium.Env[Any, Any], steps: int, seed: int) -> None:
    """Play random steps and report rewards and episodes."""
    assert report.spec is not None
    played: list[tuple[float, bool, bool]] = []
    env.action_space.seed(seed)
    try:
        # The report already includes the warnings from earlier checks.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            observation, _ = env.reset(seed=seed)
            for _ in range(steps):
                seen = convert_observation(env.observation_space, observation, EnvConfig().image_size)
                require_shapes(seen, report.spec)
                observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                played.append((as_number(reward), bool(terminated), bool(truncated)))
                if terminated or truncated:
                    observation, _ = env.reset()
    except CODE_FAULTS as error:
        reason = f"{with_place(error)}. Fix this error"
        if isinstance(error, EnvironmentFailed):
            reason = f"{error}. Return finite rewards and elements of the spaces, or change the spaces"
        report.errors.append(f"random play failed after {count_text(len(played), 'step')}: {reason}.")
        return
    rewards, terminated, truncated = (np.array(column) for column in zip(*played, strict=True))
    last = np.flatnonzero(terminated | truncated)
    returns = [episode.sum() for episode in np.split(rewards, last + 1)[:-1]]
    low, high, within = rewards.min(), rewards.max(), count_text(steps, "random step")
    units = "not scaled, because symlog handles any range"
    report.facts.append(("reward", f"{low:g} to {high:g} in {within}, {units}"))
    if low == high == 0:
        report.notices.append(f"no reward in {within}: learning starts when the first reward is found")
    elif len(returns) > 1 and 0 < (spread := max(returns) - min(returns)) < _LEAST_SPREAD:
        text = f"returns of random episodes differ by only {spread:.2g} and are not scaled up"
        report.notices.append(f"{text}; scale rewards so that good and bad episodes differ by 1 or more")
    ends = f"{terminated.sum()} terminated (no bootstrapping), "
    ends += f"{len(last) - terminated.sum()} truncated (bootstrapped)"
    report.facts.append(("episodes", f"{len(last)} ended in {within}: {ends}"))
    if not len(last) and not (env.spec and env.spec.max_episode_steps):
        limit = "env.time_limit=<frames> truncates endless episodes"
        report.notices.append(f"no episode ended in {within}; {limit}")
