"""N environments from any suite, with explicit seeds, reproducible episodes and exact resumption."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from numpy.typing import NDArray

from ..utils.errors import UserError, first_line, with_place
from ..utils.timestep import EnvSpec, TimeStep
from ..utils.units import count_text
from .atari import AtariBackend, AtariEnv
from .backend import EnvBackend, EnvironmentCrashed, EnvironmentFailed, Restarts
from .catch import CATCH_ID
from .config import EnvConfig, Suite, Vectorization
from .episode_log import ActionLog, EpisodeLog, matches, replay_actions
from .gymnasium_vector import GymnasiumBackend
from .process_state import KeptState
from .registered import find_registration, validate_env
from .suites import suite_registration
from .workers import LocalEnv

if TYPE_CHECKING:
    from .native import NativeVector


class VectorEnvironment:
    """N environments that advance together by one record per call (see `utils/timestep.py`).

    A failed environment is replaced, and its episode is truncated, with its last observation and zero reward.
    `TimeStep.failed` excludes it from results.
    Seeds are derived from `run_seed` and the environment's number in the run, which starts at `first`.
    """

    def __init__(self, backend: EnvBackend, run_seed: int, max_restarts: int, first: int = 0) -> None:
        self.spec: EnvSpec = backend.spec
        self._backend = backend
        self._restarts = Restarts(backend, max_restarts, "is truncated")
        self._episodes = EpisodeLog(run_seed, self.spec.num_envs, self.spec.action.size, first)
        self._last: TimeStep | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes of the last step and the open episodes' actions, excluding emulators and workers."""
        return self._episodes.nbytes + (self._last.nbytes if self._last else 0)

    @property
    def planned_bytes(self) -> int | None:
        """Maximum of `nbytes`, or `None` if the length of an episode is unlimited."""
        steps = self.spec.longest_episode
        if steps is None:
            return None
        actions = self.spec.num_envs * ActionLog.most_bytes(self.spec.action.size, steps)
        return actions + TimeStep.empty(self.spec).nbytes

    def reset(self) -> TimeStep:
        """Abandon open episodes, start the next episode in every environment and return the first records."""
        zeros = np.zeros((self.spec.num_envs, self.spec.action.size), np.float32)
        return self._advance(zeros, self._episodes.begin(range(self.spec.num_envs)))

    def step(self, action: NDArray[np.float32]) -> TimeStep:
        """Act in every environment.

        Actions (N, A) are one-hot or in [-1, 1]. After a record with `is_last`, the next episode starts
        instead.

        Raises:
            EnvironmentCrashed: If environments failed more than `max_restarts` times. All environments are
                then closed, but the step has been completed, and `state_dict` returns the state after it.
                UserError: If an action is not finite.
        """
        # Such an action would be stored in replay and hidden by argmax. A product is faster than `isfinite`.
        if not math.isfinite(np.vdot(action, action)):
            repair = "Return to an earlier checkpoint, or lower the learning rate"
            raise UserError(f"{self.spec.name}: the policy chose an action that is not finite. {repair}.")
        is_last = self._require_last().is_last
        seeds = self._episodes.begin(np.flatnonzero(is_last).tolist()) if is_last.any() else {}
        return self._advance(action, seeds)

    def render(self) -> NDArray[np.uint8] | None:
        """See `EnvBackend.render`."""
        return self._backend.render()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `restore`: lists of integers, and arrays that are not modified later."""
        last = self._require_last()
        return self._episodes.state_dict() | {"arrival": last.arrays()}

    def restore(self, state: Mapping[str, Any]) -> tuple[TimeStep, list[str]]:
        """Replay the open episodes and return the step after which the state was saved.

        If a single bit differs from the stored observation or reward, the episode is truncated, or it
        continues from the new observation if it has no actions. This takes as long as replaying the longest
        open episode.

        Returns:
            The step, and one sentence for each environment that diverged.

        Raises:
            UserError: If the state was saved with a different number of environments.
            EnvironmentCrashed: See `step`.
        """
        self._episodes.load_state_dict(state)
        stored = TimeStep(**state["arrival"])
        running = np.flatnonzero(~stored.is_last).tolist()
        episodes = {index: self._episodes.open_episode(index) for index in running}
        step, diverged = replay_actions(self._restarts, self.spec, episodes)
        self._restarts.raise_if_crashed()
        diverged |= {index for index in episodes if not matches(step, stored, index)}
        amended = _amended(stored, step, diverged)
        self._last = replace(amended, failed=self._episodes.failed(amended))
        return self._last, [self._why_diverged(index) for index in sorted(diverged)]

    def close(self) -> None:
        """Release emulators and processes. Repeated calls are safe."""
        self._backend.close()

    def _advance(self, action: NDArray[np.float32], seeds: Mapping[int, int]) -> TimeStep:
        """Start episodes with `seeds`, and act in the other environments."""
        step, failures = self._restarts.step_or_reset(action, seeds)
        seen = (self._last or step).observation
        # A failed environment has no new record, so its episode is truncated with its last observation.
        for index in failures:
            step.set_observation(index, {key: value[index] for key, value in seen.items()})
            step.is_last[index] = not step.is_first[index]
            step.reward[index], step.is_terminal[index] = 0, False
        if failures:
            step = replace(step, failed=tuple(failures))
        self._episodes.add(action, step)
        self._last = step
        self._restarts.raise_if_crashed()
        return step

    def _why_diverged(self, index: int) -> str:
        """Return the warning about an environment that could not be restored."""
        number, steps = self._episodes.progress(index)
        what = f"{self.spec.name}: episode {number} of environment {index}"
        if steps == 0:
            return f"{what} restarted with a different first observation and continues from it."
        return (
            f"{what} could not be restored: replaying its seed and {count_text(steps, 'action')} gave a "
            "different result (the environment is not deterministic, or failed). The episode is "
            "truncated here."
        )

    def _require_last(self) -> TimeStep:
        assert self._last is not None, "call reset or restore first"
        return self._last


def _amended(stored: TimeStep, step: TimeStep, diverged: set[int]) -> TimeStep:
    """End diverged episodes in `stored` and return it. Episodes without actions get their new observation."""
    observation = {key: value.copy() for key, value in stored.observation.items()}
    amended = replace(stored, observation=observation, is_last=stored.is_last.copy())
    for index in diverged:
        amended.is_last[index] = not stored.is_first[index]
        if stored.is_first[index]:
            amended.set_observation(index, {key: each[index] for key, each in step.observation.items()})
    return amended


def make_environment(
    config: EnvConfig, run_seed: int, render: bool = False, first: int = 0
) -> "VectorEnvironment | NativeVector":
    """Return the environments of `config` before their first reset. See `make_backend` for errors."""
    if config.suite is Suite.vector:
        # Workers of other environments do not need torch.
        from .native import NativeVector

        validate_env(config)
        return NativeVector(config, run_seed)
    return VectorEnvironment(make_backend(config, render), run_seed, config.max_restarts, first)


def make_backend(config: EnvConfig, render: bool = False) -> EnvBackend:
    """Return the environments of `config`. With `render`, images are rendered if observations have none.

    Raises:
        UserError: If the environment is unknown, a package is missing, or its spaces are not supported.
    """
    validate_env(config)
    if config.suite is Suite.atari:
        return AtariBackend(config)
    return GymnasiumBackend(config, _registration_of(config), render)


def _registration_of(config: EnvConfig) -> RegisteredSpec:
    """Return the registration of an environment of any suite but Atari."""
    if config.suite in (Suite.dmc, Suite.crafter):
        return suite_registration(config)
    return find_registration(CATCH_ID if config.suite is Suite.catch else config.id)


def make_single(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Return one environment of `config` with Gymnasium's interface. Actions are repeated as in training.

    Raises:
        UserError: If the environment is unknown.
    """
    validate_env(config)
    if config.suite is Suite.vector:
        from .native import SingleEnv

        return SingleEnv(config)
    if config.suite is Suite.atari:
        return AtariEnv(config, render_mode)
    try:
        with KeptState(config.label, "when it was created"):
            return LocalEnv(_registration_of(config), config, render_mode).make()
    except UserError as error:
        raise UserError(f"{config.choice} {error}") from None


def spec_of(config: EnvConfig) -> EnvSpec:
    """Start one environment of `config` temporarily and return its spec.

    A vector environment, or a Gymnasium environment with `vectorization=sync`, also starts an episode and
    acts once, because it may be the user's own code.

    Raises:
        UserError: See `make_backend`, or if the first reset or step fails.
    """
    if config.suite is Suite.vector:
        from .native import NativeVector

        validate_env(config)
        with closing(NativeVector(config, run_seed=0)) as batch:
            batch.try_out()
            return batch.spec
    alone = replace(config, num_envs=1)
    try:
        backend = make_backend(alone)
    except EnvironmentCrashed as error:
        raise UserError(first_line(error)) from error
    with closing(backend) as one:
        if config.suite is Suite.gymnasium and config.vectorization is Vectorization["sync"]:
            _try_out(alone, one.spec)
        return replace(one.spec, num_envs=config.num_envs)


def _try_out(config: EnvConfig, spec: EnvSpec) -> None:
    """Raise `UserError` if an environment's first `reset` or `step` fails."""
    env = LocalEnv(_registration_of(config), config)
    action = np.zeros(spec.action.size, np.float32)
    try:
        for what, request in (("reset()", 0), ("step()", action)):
            try:
                env.send(request)
                with KeptState(config.label, f"in {what}"):
                    env.receive()
            except EnvironmentFailed as failure:
                reason = with_place(failure.__cause__) if failure.__cause__ else str(failure)
                repair = "Check it with reverie.check_env"
                raise UserError(
                    f"{config.choice} fails in its first {what}: {reason}. {repair}."
                ) from failure
    finally:
        env.terminate()
