"""N Gymnasium environments of one id, in this process or in one subprocess each."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..utils.errors import UserError, with_place
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from .backend import EnvironmentCrashed, EnvironmentFailed, Failures
from .config import EnvConfig, Vectorization, find_registration
from .spaces import action_spec, notices
from .workers import EnvWorker, LocalEnvWorker, SubprocessEnvWorker
from .wrapper import EnvMaker


class GymnasiumBackend:
    """N environments of one id.

    Args:
        config: Settings; `suite` is ignored.
        env_id: Registered id.
        name: The name that users type, for messages.
        render: Whether `render` gives pictures; the environments then run in this process.

    Raises:
        UserError: If a package that the environment needs is missing, or the model cannot take its spaces.
        EnvironmentCrashed: If a process does not start.
    """

    def __init__(self, config: EnvConfig, env_id: str, name: str, render: bool = False) -> None:
        registered = find_registration(env_id)
        self._maker = EnvMaker(
            registered=registered,
            action_repeat=config.action_repeat,
            image_size=config.image_size,
            time_limit=config.time_limit,
            render_mode="rgb_array" if render else None,
        )
        self._timeout = config.worker_timeout
        self._in_processes = config.vectorization is Vectorization["async"] and not render
        observation, action, observed = _probe(self._maker, env_id)
        frames = config.time_limit or registered.max_episode_steps
        self.spec = EnvSpec(
            name=name,
            observation=observation,
            action=action,
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
            longest_episode=-(-frames // config.action_repeat) if frames else None,
            notices=observed,
        )
        self._workers: list[EnvWorker] = []
        self._start_workers()

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """See `EnvBackend.step_or_reset`; idle environments are skipped."""
        asked = [index for index in range(self.spec.num_envs) if index not in idle]
        for index in asked:
            self._workers[index].send(seeds[index] if index in seeds else action[index])
        step, failures = TimeStep.empty(self.spec), {}
        step.is_first[list(seeds)] = True
        for index in asked:
            try:
                observation, reward, terminated, truncated = self._workers[index].receive()
            except EnvironmentFailed as failure:
                failures[index] = failure
                continue
            step.set_observation(index, observation)
            step.reward[index] = reward
            step.is_last[index], step.is_terminal[index] = terminated or truncated, terminated
        return step, failures

    def replace(self, index: int) -> None:
        """See `EnvBackend.replace`; the new process starts while the others continue."""
        self._workers[index].terminate()
        self._workers[index] = self._make_worker(index)

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture of environment 0; None if it was not made to render."""
        if self._maker.render_mode is None:
            return None
        first = self._workers[0]
        assert isinstance(first, LocalEnvWorker)
        try:
            return first.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"Pictures of {self.spec.name} need a missing package: {error}") from error

    def close(self) -> None:
        """Close the environments and end their processes."""
        for worker in self._workers:
            worker.close_async()
        for worker in self._workers:
            worker.terminate()

    def _start_workers(self) -> None:
        """Make all environments; their processes start in parallel."""
        try:
            for index in range(self.spec.num_envs):
                self._workers.append(self._make_worker(index))
            for index, worker in enumerate(self._workers):
                try:
                    worker.wait_until_ready()
                except EnvironmentFailed as failure:
                    raise EnvironmentCrashed(failure.format_message(self.spec.name, index)) from None
        except BaseException:
            self.close()
            raise

    def _make_worker(self, index: int) -> EnvWorker:
        if self._in_processes:
            return SubprocessEnvWorker(self._maker, f"{self.spec.name} {index}", self._timeout)
        # only environment 0 is rendered
        return LocalEnvWorker(
            self._maker if index == 0 else dataclasses.replace(self._maker, render_mode=None)
        )


def _probe(maker: EnvMaker, env_id: str) -> tuple[dict[str, ArraySpec], ActionSpec, tuple[str, ...]]:
    """Make one environment for a moment, in this process; return its observations, actions and notices."""
    try:
        probe = maker()
        action = action_spec(probe.env.action_space)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id={env_id} needs a package that is missing: {error}") from error
    except UserError as error:
        raise UserError(f"env.id={env_id} {error}") from None
    except Exception as error:
        raise UserError(f"env.id={env_id} cannot be made: {with_place(error)}.") from error
    observed = notices(probe.env.observation_space)
    with contextlib.suppress(Exception):  # as `LocalEnvWorker.terminate`
        probe.env.close()
    parts = probe.observation_space.items()
    return {key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts}, action, observed
