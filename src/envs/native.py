"""Batches of environments with Gymnasium's vector interface: EnvPool, simulators on tensors, and others."""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from ..utils.errors import CODE_FAULTS, UserError
from ..utils.seeding import named_seed
from ..utils.state_files import save_state
from ..utils.timestep import ArraySpec, EnvSpec, TimeStep
from ..utils.units import count_text
from .backend import EnvironmentCrashed, EnvironmentFailed
from .config import EnvConfig
from .process_state import KeptState
from .registered import failure_to_make, find_registration, is_maker
from .spaces import (
    action_bounds,
    action_spec,
    as_array,
    choices,
    convert_part,
    is_stored_as_is,
    notices,
    observation_space,
    parts_of,
)

# Gymnasium used the second name before version 1.1.
_FINAL_KEYS = ("final_obs", "final_observation")


class Given:
    """Returns the vector environment that a caller passed, in place of a function that makes one."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        # Other processes cannot import it, so its id is that of an object in the caller's script.
        self.__module__, self.__qualname__ = "__main__", type(env).__name__

    def __call__(self, num_envs: int) -> VectorEnv:
        """Return the environment. Raise `UserError` if a different number of environments is needed."""
        if num_envs != self.env.num_envs:
            given = count_text(self.env.num_envs, "environment")
            repair = "Pass a function instead, e.g. env=lambda num_envs: MyVectorEnv(num_envs)"
            raise UserError(f"has {given}, but {num_envs} are needed. {repair}.")
        return self.env


class NativeVector:
    """A `gymnasium.vector.VectorEnv` with the interface of `VectorEnvironment`.

    With same-step and disabled autoreset, an environment that ends has two records: the final one, and the
    first one of its next episode. `step` returns the final records first, in a step with `envs`. The next
    call ignores its actions and returns the records of all environments.

    Tensors that the replay stores unchanged stay on their device. Actions are then tensors, too. Rewards and
    flags are copied to the host, in one transfer per step, because the index of the replay is there.

    After a restart, open episodes continue exactly if the environment has the methods `state_dict` and
    `load_state_dict`. Otherwise new episodes begin.

    Raises:
        UserError: If the environment cannot be created, or its spaces or autoreset mode are not supported.
    """

    planned_bytes = None
    """The memory of a simulator is unknown."""

    def __init__(self, config: EnvConfig, run_seed: int) -> None:
        self._name, self._image_size, self._run_seed = config.label, config.image_size, run_seed
        env, self._is_owned = make_vector(config)
        # Gymnasium declares no methods for saving a state.
        self._env: Any = env
        space = self._env.single_observation_space
        try:
            self.spec = _outline(config, self._env)
            self._mode = autoreset_mode(self._env)
        except UserError as error:
            self.close()
            raise UserError(f"{config.choice} {error}") from None
        self._parts, self._is_dict = parts_of(space), isinstance(space, gymnasium.spaces.Dict)
        self._device: torch.device | None = None
        self._to_native = actions_of(self._env.single_action_space, torch.device("cpu"))
        self._starts, self._is_broken = 0, False
        self._last = self._following = None

    def try_out(self) -> None:
        """Raise `UserError` if the first `reset` or `step` fails, or the state cannot be saved."""
        try:
            self.reset()
            self.step(np.zeros((self.spec.num_envs, self.spec.action.size), np.float32))
            with TemporaryDirectory() as folder:
                save_state(Path(folder), "state", self.state_dict())
        except (EnvironmentCrashed, TypeError) as error:
            raise UserError(str(error).partition("\n")[0]) from error

    def reset(self) -> TimeStep:
        """Start new episodes in all environments, and return their first records."""
        seed = named_seed(self._run_seed, "vector", self._starts) & 0x7FFFFFFF
        self._starts += 1
        with self._guarded("reset()"):
            batch, _ = self._env.reset(seed=seed)
            self._device = _device_of(batch)
            self._to_native = actions_of(self._env.single_action_space, self._device or torch.device("cpu"))
            step = TimeStep.empty(self.spec)
            step.is_first[:] = True
            self._last, self._following = replace(step, observation=self._converted(batch)), None
        return self._last

    def step(self, action: NDArray[np.float32] | Tensor) -> TimeStep:
        """Act in every environment, or return the records that follow the final ones.

        Actions (N, A) are one-hot or in [-1, 1]. They are ignored where an episode has ended.

        Raises:
            EnvironmentCrashed: If the environment raises an exception or returns invalid values.
            UserError: If an action is not finite.
        """
        assert self._last is not None, "call reset or restore first"
        if self._following is not None:
            self._last, self._following = self._following, None
            return self._last
        with self._guarded("step()"):
            self._last, self._following = self._advance(action, self._last)
        return self._last

    def _advance(self, action: NDArray | Tensor, last: TimeStep) -> tuple[TimeStep, TimeStep | None]:
        """Return the next step, and the step after it if this one only has final records."""
        action = torch.as_tensor(action, device=self._device)
        native = self._to_native(action)
        batch, *signals, info = self._env.step(native if self._device else native.numpy())
        seen = self._converted(batch)
        reward, is_terminal, is_truncated = self._on_host(signals, action, seen)
        is_first = last.is_last if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(is_terminal)
        is_terminal, is_last = is_terminal & ~is_first, (is_terminal | is_truncated) & ~is_first
        step = TimeStep(seen, np.where(is_first, np.float32(0), reward), is_first, is_last, is_terminal)
        ended = np.flatnonzero(is_last)
        numbers = info_rows(info, self.spec.info, ended)
        whole = {name: np.full(self.spec.num_envs, np.nan) for name in self.spec.info}
        if self._mode is AutoresetMode.NEXT_STEP or not len(ended):
            for name, row in numbers.items():
                whole[name][ended] = row
            return replace(step, info=whole), None
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._converted(final_rows(info, ended), len(ended))
        else:
            final = {key: values[ended] for key, values in seen.items()}
            batch, _ = self._env.reset(options={"reset_mask": signals[1] | signals[2]})
            seen = self._converted(batch)
        first, none = np.zeros(len(ended), np.bool_), np.zeros_like(is_last)
        return (
            TimeStep(final, reward[ended], first, ~first, is_terminal[ended], ended, numbers),
            TimeStep(seen, np.where(is_last, np.float32(0), reward), is_last, none, none, info=whole),
        )

    def _on_host(
        self, signals: list[Any], action: Tensor, seen: Mapping[str, Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return rewards and flags (N,) in host memory. Check that these, actions and tensors are finite."""
        tensors = [each for each in seen.values() if isinstance(each, Tensor) and each.is_floating_point()]
        rows = [*signals, *(each.flatten(1).isfinite().all(1) for each in (action, *tensors))]
        if all(isinstance(row, Tensor) for row in rows):
            rows = list(torch.stack([row.detach().float() for row in rows]).cpu().numpy())
        reward, terminal, truncated, action_is_finite, *is_finite = map(as_array, rows)
        if shapes := {each.shape for each in (reward, terminal, truncated)} - {(self.spec.num_envs,)}:
            wrong = f"a reward or flag of shape {shapes.pop()} instead of ({self.spec.num_envs},)"
            raise EnvironmentFailed(f"it returned {wrong}")
        if not action_is_finite.all():
            repair = "Return to an earlier checkpoint, or lower the learning rate"
            raise UserError(f"{self._name}: the policy chose an action that is not finite. {repair}.")
        with np.errstate(over="ignore"):
            reward = reward.astype(np.float32)
        if not np.isfinite(reward).all() or not all(each.all() for each in is_finite):
            raise EnvironmentFailed("a reward or an observation is not a finite float32 number")
        return reward, terminal.astype(np.bool_), truncated.astype(np.bool_)

    def _converted(self, batch: Any, count: int | None = None) -> dict[str, Any]:
        """Convert the observations of all or of `count` environments to the form that the replay stores."""
        count = self.spec.num_envs if count is None else count
        return {key: self._part(key, batch[key] if self._is_dict else batch, count) for key in self._parts}

    def _part(self, key: str, values: Any, count: int) -> NDArray | Tensor:
        space, form = self._parts[key], self.spec.observation[key]
        if len(values) != count:
            found = f"{len(values)} rows for {count_text(count, 'environment')}"
            raise EnvironmentFailed(f"its observation `{key}` has {found}. EnvPool needs batch_size=num_envs")
        is_plain = is_stored_as_is(space, self._image_size)
        if not is_plain or (form.is_image and not str(values.dtype).endswith("uint8")):
            rows = as_array(values)
            return np.stack([convert_part(key, space, row, self._image_size) for row in rows])
        if isinstance(values, Tensor):
            return values.detach().reshape(count, *form.shape).to(getattr(torch, form.dtype.name))
        array = np.array(values).reshape(count, *form.shape).astype(form.dtype, copy=False)
        if not form.is_image and not np.isfinite(array).all():
            raise EnvironmentFailed(f"its observation `{key}` has values that are not finite")
        return array

    def render(self) -> None:
        """Return `None`. Videos show image observations."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `restore`. It contains the environment's own state if it has one."""
        whole = self._following or self._last
        assert self._last is not None and whole is not None, "call reset or restore first"
        final = self._last if self._following else None
        return {
            "starts": self._starts,
            "native": self._env.state_dict() if _has_state(self._env) and not self._is_broken else None,
            "arrival": whole.arrays(),
            "final": final and {**final.arrays(), "envs": final.envs},
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[TimeStep, list[str]]:
        """Continue the open episodes from a result of `state_dict`, or start new ones.

        Returns:
            The step after which the state was saved, or the first step of the new episodes, and a warning if
            new episodes have started.
        """
        self._starts = state["starts"]
        first = self.reset()
        if state["native"] is None or not _has_state(self._env):
            reason = "it failed before the checkpoint" if _has_state(self._env) else _NO_STATE
            lost = f"{count_text(self.spec.num_envs, 'open episode')} could not be restored"
            return first, [f"{self._name}: {lost}, because {reason}. New episodes were started."]
        with self._guarded("load_state_dict()"):
            self._env.load_state_dict(state["native"])
        self._starts = state["starts"]
        self._last = self._placed(state["arrival"])
        if state["final"] is not None:
            self._last, self._following = self._placed(state["final"]), self._last
        return self._last, []

    def _placed(self, fields: Mapping[str, Any]) -> TimeStep:
        """Return a saved step, with tensors on the environment's device."""
        seen = fields["observation"].items()
        moved = {key: each.to(self._device) if isinstance(each, Tensor) else each for key, each in seen}
        return TimeStep(**{**fields, "observation": moved})

    def close(self) -> None:
        """Close the environment, unless the caller passed it. Calling this again is safe."""
        if self._is_owned:
            self._is_owned = False
            with KeptState(self._name, "in close()"), suppress(*CODE_FAULTS):
                self._env.close()

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Protect this process from the environment's code, and close the environment if it fails."""
        try:
            with KeptState(self._name, f"in {what}", is_step=what == "step()"):
                yield
        except UserError:
            raise
        except CODE_FAULTS as error:
            self._is_broken = True
            self.close()
            is_own = isinstance(error, EnvironmentFailed)
            reason = str(error) if is_own else f"{what} raised {type(error).__name__}: {error}"
            details = "" if is_own else f"\n{traceback.format_exc()}".rstrip()
            raise EnvironmentCrashed(f"{self._name} failed: {reason}.{details}") from error


_NO_STATE = "the environment has no `state_dict` and `load_state_dict` methods"


class SingleEnv(gymnasium.Env[Any, Any]):
    """One environment of a vector environment, with Gymnasium's interface."""

    def __init__(self, config: EnvConfig) -> None:
        self.metadata = {"render_modes": [], "is_of_a_batch": True}
        self._env, _ = make_vector(replace(config, num_envs=1))
        self._is_same_step = autoreset_mode(self._env) is AutoresetMode.SAME_STEP
        self._names = config.info_names
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._device: torch.device | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Start an episode."""
        batch, _ = self._env.reset(seed=seed)
        self._device = _device_of(batch)
        return _first_row(batch), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Act. The last observation of an episode is its final one."""
        actions: Any = np.asarray(action)[None]
        actions = torch.as_tensor(actions, device=self._device) if self._device else actions
        batch, reward, terminated, truncated, info = self._env.step(actions)
        first = np.zeros(1, np.int64)
        numbers = {name: row[0] for name, row in info_rows(info, self._names, first).items()}
        if self._is_same_step and (terminated[0] or truncated[0]):
            batch = final_rows(info, first)
        return _first_row(batch), float(reward[0]), bool(terminated[0]), bool(truncated[0]), numbers

    def close(self) -> None:
        """Close the vector environment."""
        self._env.close()


def make_vector(config: EnvConfig) -> tuple[VectorEnv, bool]:
    """Return the vector environment of a configuration, and whether the caller must close it.

    Raises:
        UserError: If it cannot be created.
    """
    registered, size = find_registration(config.id), config.num_envs
    kwargs = copy.deepcopy(dict(config.kwargs or {}))
    if config.time_limit:
        kwargs["max_episode_steps"] = config.time_limit
    maker: Any = registered.entry_point
    try:
        with KeptState(config.label, "when it was created"):
            if is_maker(config.id):
                env = maker(num_envs=size, **kwargs)
            elif registered.vector_entry_point is None:
                repair = "Set env=gymnasium, or name a function of num_envs that returns a vector environment"
                raise UserError(f"has no vector entry point. {repair}.")
            else:
                mode: Any = "vector_entry_point"
                env = gymnasium.make_vec(registered, size, vectorization_mode=mode, **kwargs)
        if not isinstance(env, VectorEnv) or env.num_envs != size:
            kind = f"{type(env).__name__} with num_envs={getattr(env, 'num_envs', 1)}"
            raise UserError(f"made a {kind}, not a gymnasium.vector.VectorEnv with num_envs={size}.")
    except UserError as error:
        raise UserError(f"{config.choice} {error}") from None
    except CODE_FAULTS as error:
        raise UserError(f"{config.choice} {failure_to_make(registered, kwargs, error)}") from error
    return env, not isinstance(maker, Given)


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return when an environment resets itself. Raise `UserError` if it does not declare this."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        repair = "Set it to a gymnasium.vector.AutoresetMode"
        raise UserError(f"does not declare when it resets: metadata['autoreset_mode'] is {mode!r}. {repair}.")
    return mode


def _outline(config: EnvConfig, env: VectorEnv) -> EnvSpec:
    """Return the spec of a vector environment. Raise `UserError` if its spaces are not supported."""
    space = env.single_observation_space
    parts = observation_space(space, config.image_size).items()
    restart = () if _has_state(env) else (f"resumed runs start new episodes, because {_NO_STATE}",)
    return EnvSpec(
        name=config.label,
        observation={key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts},
        action=action_spec(env.single_action_space),
        num_envs=config.num_envs,
        longest_episode=config.time_limit or find_registration(config.id).max_episode_steps,
        notices=(*notices(space), *restart),
        info=config.info_names,
    )


def actions_of(space: gymnasium.Space, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that converts model actions (N, A) on `device` to a batch of `space`.

    It equals `convert_action` in every row.
    """
    shape, dtype = space.shape or (), getattr(torch, np.dtype(space.dtype).name)
    if parts := choices(space):
        start = torch.as_tensor(np.reshape(getattr(space, "start", 0), -1), device=device)

        def choose(action: Tensor) -> Tensor:
            blocks = [block.argmax(1) for block in action.split(parts, 1)]
            return (torch.stack(blocks, 1) + start).reshape(-1, *shape).to(dtype)

        return choose
    assert isinstance(space, gymnasium.spaces.Box)
    low, high, least, most = (torch.as_tensor(each, device=device) for each in action_bounds(space))

    def scale(action: Tensor) -> Tensor:
        part = (action.clamp(-1, 1).double() + 1) / 2
        return ((1 - part) * least + part * most).clamp(low, high).reshape(-1, *shape).to(dtype)

    return scale


def info_rows(
    info: Mapping[str, Any], names: Sequence[str], ended: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Return the numbers by name that `info` has for the environments `ended`. Missing numbers are NaN."""
    rows = {name: np.full(len(ended), np.nan) for name in names}
    # Most steps end no episode. Selecting rows of tensors would copy an empty index to their device.
    if not len(ended):
        return rows
    final: Any = info.get("final_info")
    # Gymnasium then puts the info of the next episode outside.
    is_final = isinstance(final, Mapping)
    source = final if is_final else info
    for name in names:
        path = [name] if name in source else name.split("/")
        value: Any = info
        has_number = np.ones(len(ended), np.bool_)
        # Texts and arrays for each environment are not numbers.
        with suppress(AttributeError, TypeError, ValueError, IndexError):
            for key in ["final_info", *path] if is_final else path:
                if (mask := value.get(f"_{key}")) is not None:
                    has_number &= as_array(mask[ended]).astype(np.bool_)
                value = value.get(key)
            rows[name][has_number] = as_array(value[ended])[has_number]
    return rows


def final_rows(info: Mapping[str, Any], ended: NDArray[np.int64]) -> Any:
    """Return the final observations of the environments `ended`, which have already been reset."""
    for key in _FINAL_KEYS:
        if key in info:
            return _rows(info[key], ended)
    repair = "Return it as Gymnasium's vector environments do, or use next-step autoreset"
    raise EnvironmentFailed(f"it resets in the same step, but `info` has no final_obs. {repair}")


def _rows(values: Any, ended: NDArray[np.int64]) -> Any:
    """Select rows of a batch, of a dict of batches, or of an array of separate observations."""
    if isinstance(values, Mapping):
        return {key: _rows(part, ended) for key, part in values.items()}
    chosen = values[ended]
    if not isinstance(chosen, np.ndarray) or chosen.dtype != object:
        return chosen
    if isinstance(chosen[0], Mapping):
        return {key: np.stack([as_array(row[key]) for row in chosen]) for key in chosen[0]}
    return np.stack([as_array(row) for row in chosen])


def _device_of(batch: Any) -> torch.device | None:
    """Return the device of a batch of observations, or `None` without tensors."""
    parts = batch.values() if isinstance(batch, Mapping) else [batch]
    return next((each.device for each in parts if isinstance(each, Tensor)), None)


def _first_row(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {key: _first_row(part) for key, part in batch.items()}
    return as_array(batch)[0]


def _has_state(env: VectorEnv) -> bool:
    return hasattr(env, "state_dict") and hasattr(env, "load_state_dict")
