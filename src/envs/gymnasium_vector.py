"""Any Gymnasium environment, N at once in this process or in processes of their own."""

import contextlib
import os
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from ..utils.errors import UserError
from ..utils.records import ActionSpec, ArraySpec, Arrival, EnvSpec
from .config import EnvConfig, Vectorization, find_registration
from .record_wrapper import CRASH, EnvMaker
from .spaces import action_spec
from .vector import EnvironmentCrashed, EpisodeBook

_T = TypeVar("_T")
_PROCESS_DIED = (EOFError, BrokenPipeError, ConnectionResetError)


class GymnasiumVectorEnvironment:
    """N environments of one id.

    A finished environment resets itself in the next call (autoreset NEXT_STEP) with the seed put into it just
    before: every call is one record of each environment, and no step is run that is not delivered.

    Args:
        config: What to make; its suite is not looked at.
        env_id: Registered id.
        name: The environment as the user knows it, for messages.
        run_seed: Seed from which every episode's seed is derived.
        render: Whether `render` gives pictures; the environments then run in this process.

    Raises:
        UserError: If a package that the environment needs is missing, or the model cannot take its spaces.
    """

    def __init__(
        self, config: EnvConfig, env_id: str, name: str, run_seed: int, render: bool = False
    ) -> None:
        self._episodes = EpisodeBook(run_seed, config.num_envs)
        self._renders = render
        self._is_intact = True
        self._vector, action = _make_vector(config, env_id, render)
        observation = self._vector.single_observation_space
        assert isinstance(observation, spaces.Dict)
        self.spec = EnvSpec(
            name=name,
            observation={
                key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in observation.items()
            },
            action=action,
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
        )

    def reset(self) -> Arrival:
        """Start the next episode in every environment."""
        starts = self._episodes.all
        seeds = self._episodes.start(starts)
        observation, info = self._watched(lambda: self._vector.reset(seed=[*seeds]))
        self._raise_if_crashed(info)
        nothing = np.zeros(self.spec.num_envs, np.bool_)
        return self._episodes.arrival(observation, np.zeros(len(seeds)), nothing, nothing, starts)

    def step(self, action: NDArray[np.float32]) -> Arrival:
        """Act in every environment; see `VectorEnvironment.step`."""
        starts = self._episodes.due
        if starts.any():
            seeds = iter(self._episodes.start(starts))
            next_seeds = [next(seeds) if is_due else None for is_due in starts]
            self._watched(lambda: self._vector.set_attr("next_seed", next_seeds))
        observation, reward, terminated, truncated, info = self._watched(lambda: self._vector.step(action))
        self._raise_if_crashed(info)
        return self._episodes.arrival(observation, reward, terminated, truncated, starts)

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture of environment 0, or None where it was not made to render."""
        if not self._renders:
            return None
        assert isinstance(self._vector, SyncVectorEnv)
        try:
            return np.array(self._vector.envs[0].render(), np.uint8)
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"Pictures of {self.spec.name} need a missing package: {error}") from error

    def state_dict(self) -> dict[str, list[int]]:
        """Return the episode counters."""
        return self._episodes.state_dict()

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Take up the episode counters."""
        self._episodes.load_state_dict(state)

    def close(self) -> None:
        """Close the environments and end their processes."""
        if self._is_intact:
            self._vector.close()
        else:
            self._abandon()

    def _watched(self, call: Callable[[], _T]) -> _T:
        """Return `call()`, or tell which process died in it."""
        self._is_intact = False  # an interrupt in the call leaves messages under way: no orderly close then
        try:
            result = call()
        except _PROCESS_DIED as error:
            assert isinstance(self._vector, AsyncVectorEnv)
            dead = _dead_workers(self._vector)
            self._abandon()
            raise EnvironmentCrashed(
                f"{self.spec.name}: the process of environment {dead or 'unknown'} died."
                " A negative exit code is the signal that ended it; -9 is often the system out of memory."
            ) from error
        self._is_intact = True
        return result

    def _raise_if_crashed(self, info: dict) -> None:
        """Raise what an environment reported instead of a record."""
        if CRASH not in info:
            return
        index = int(np.flatnonzero(info[f"_{CRASH}"])[0])
        self._abandon()
        raise EnvironmentCrashed(f"{self.spec.name}: environment {index} failed.\n{info[CRASH][index]}")

    def _abandon(self) -> None:
        """End everything without asking environments that may no longer answer."""
        self._is_intact = False
        if isinstance(self._vector, SyncVectorEnv):
            with contextlib.suppress(Exception):  # the failure that led here is the one to show
                self._vector.close()
            return
        for process in self._vector.processes:
            process.terminate()
        for process in self._vector.processes:
            process.join()
        for pipe in self._vector.parent_pipes:
            pipe.close()
        self._vector.closed = True


def _make_vector(
    config: EnvConfig, env_id: str, render: bool
) -> tuple[SyncVectorEnv | AsyncVectorEnv, ActionSpec]:
    def maker(render_mode: str | None) -> EnvMaker:
        return EnvMaker(
            registered=find_registration(env_id),
            action_repeat=config.action_repeat,
            image_size=config.image_size,
            time_limit=config.time_limit,
            render_mode=render_mode,
            main_pid=os.getpid(),
        )

    makers = [maker("rgb_array" if render else None), *[maker(None)] * (config.num_envs - 1)]
    try:
        probe = makers[0]()
        action = action_spec(probe.env.action_space)
        probe.close()
        if config.vectorization is Vectorization["async"] and not render:
            # spawn: a forked worker would share the pages of replay and device with this process, and
            # inherit the locks that its threads hold
            return AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP), action
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP), action
    except _PROCESS_DIED as error:
        traceback.clear_frames(error.__traceback__)  # only they still hold the other processes
        raise EnvironmentCrashed(f"{env_id}: the process of an environment died while it started.") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id={env_id} needs a package that is missing: {error}") from error
    except UserError as error:
        raise UserError(f"env.id={env_id} {error}") from None


def _dead_workers(vector: AsyncVectorEnv) -> str:
    """Return '1 (exit code -9)' for every worker that is gone."""
    for process in vector.processes:
        process.join(timeout=0.2)  # its pipe closes a moment before its exit code is known
    return ", ".join(
        f"{index} (exit code {process.exitcode})"
        for index, process in enumerate(vector.processes)
        if process.exitcode is not None
    )
