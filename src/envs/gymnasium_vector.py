"""N Gymnasium environments of one id, in this process or in one subprocess each."""

from collections.abc import Collection, Mapping
from functools import partial

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..utils.errors import UserError
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from .backend import EnvironmentCrashed, EnvironmentFailed, Failures
from .config import EnvConfig, Vectorization
from .registered import failure_to_make, find_registration
from .spaces import action_spec, notices, observation_space
from .workers import LocalEnv, SubprocessEnv


class GymnasiumBackend:
    """N environments of the id `env_id`, called `name` in messages; those that render run in this process.

    Raises:
        UserError: If a package that the environment needs is missing, or the model cannot take its spaces.
        EnvironmentCrashed: If a process does not start.
    """

    def __init__(self, config: EnvConfig, env_id: str, name: str, render: bool = False) -> None:
        registered = find_registration(env_id)
        self._make_local = partial(LocalEnv, registered, config)
        self._renders, self._timeout = render, config.worker_timeout
        self._in_processes = config.vectorization is Vectorization["async"] and not render
        observation, action, found = _probe(self._make_local(), env_id)
        frames = config.time_limit or registered.max_episode_steps
        self.spec = EnvSpec(
            name=name,
            observation=observation,
            action=action,
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
            longest_episode=-(-frames // config.action_repeat) if frames else None,
            notices=found,
        )
        self._workers: list[LocalEnv | SubprocessEnv] = []
        try:
            for index in range(config.num_envs):  # all processes start before one is waited for
                self._workers.append(self._make_worker(index))
            for index, worker in enumerate(self._workers):
                try:
                    worker.wait_until_ready()
                except EnvironmentFailed as failure:
                    raise EnvironmentCrashed(failure.format_message(name, index)) from None
        except BaseException:
            self.close()
            raise

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
        """See `EnvBackend.render`."""
        if not self._renders:
            return None
        first = self._workers[0]
        assert isinstance(first, LocalEnv)
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

    def _make_worker(self, index: int) -> LocalEnv | SubprocessEnv:
        if self._in_processes:
            return SubprocessEnv(self._make_local, f"{self.spec.name} {index}", self._timeout)
        # only environment 0 is rendered
        return self._make_local(render_mode="rgb_array" if self._renders and index == 0 else None)


def _probe(
    probe: LocalEnv, env_id: str
) -> tuple[dict[str, ArraySpec], ActionSpec, tuple[str, ...]]:
    """Make one environment for a moment, in this process; return its observations, actions and notices."""
    try:
        env = probe.make()
        parts = observation_space(env.observation_space, probe.config.image_size).items()
        action = action_spec(env.action_space)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id={env_id} needs a package that is missing: {error}") from error
    except UserError as error:
        raise UserError(f"env.id={env_id} {error}") from None
    except Exception as error:
        reason = failure_to_make(probe.registered, probe.config.kwargs or {}, error)
        raise UserError(f"env.id={env_id} {reason}") from error
    found = notices(env.observation_space)
    probe.terminate()
    return {key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts}, action, found
