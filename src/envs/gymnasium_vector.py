"""N Gymnasium environments of one id, in this process or in one subprocess each."""

import logging
import os
import sys
from collections.abc import Collection, Mapping
from functools import partial

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..utils.errors import UserError, with_place
from ..utils.timestep import ArraySpec, EnvSpec, TimeStep
from .backend import EnvironmentCrashed, EnvironmentFailed, Failures
from .config import EnvConfig, Vectorization
from .registered import CODE_FAULTS, failure_to_make, find_registration
from .spaces import action_spec, notices, observation_space
from .workers import LocalEnv, SubprocessEnv

PICTURES = "rgb_array"
_LOG = logging.getLogger(__name__)


class GymnasiumBackend:
    """N environments of the id `env_id`, called `name` in messages.

    With `render` the first gives pictures, if no observation is one and the environment can draw them.

    Raises:
        UserError: If a package that the environment needs is missing, or the model cannot take its spaces.
        EnvironmentCrashed: If a process does not start.
    """

    def __init__(self, config: EnvConfig, env_id: str, name: str, render: bool = False) -> None:
        registered = find_registration(env_id)
        self._make_local = partial(LocalEnv, registered, config)
        self._timeout = config.worker_timeout
        frames = config.time_limit or registered.max_episode_steps
        limit = -(-frames // config.action_repeat) if frames else None
        self.spec, is_drawn_by_mujoco = _probe(self._make_local(), env_id, name, limit)
        # Gymnasium draws with MuJoCo in the context of OpenGL that is current in the process: once another
        # environment is closed, or what is left of it is freed, pictures are black.
        self._in_processes = is_drawn_by_mujoco or config.vectorization is Vectorization["async"]
        if render:
            _do_without_a_screen()
        self._renders = render and self.spec.renders and not self.spec.has_image and self._try_to_render()
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
        try:
            return self._workers[0].render()
        except EnvironmentFailed as failure:
            raise UserError(f"render() of {self.spec.name} fails: {failure}.") from failure

    def close(self) -> None:
        """Close the environments and end their processes."""
        for worker in self._workers:
            worker.close_async()
        for worker in self._workers:
            worker.terminate()

    def _make_worker(self, index: int) -> LocalEnv | SubprocessEnv:
        mode = PICTURES if self._renders and index == 0 else None
        make = partial(self._make_local, render_mode=mode)
        return (
            SubprocessEnv(make, f"{self.spec.name} {index}", self._timeout) if self._in_processes else make()
        )

    def _try_to_render(self) -> bool:
        """Return whether an environment that says that it can render can also be made so."""
        drawing = self._make_local(render_mode=PICTURES)
        try:
            drawing.make()
        except CODE_FAULTS as error:
            _LOG.warning("%s cannot be made to render: %s", self.spec.name, with_place(error))
            return False
        finally:
            drawing.terminate()
        return True


def _do_without_a_screen() -> None:
    """Let SDL draw into memory where there is no screen; it would look for one, and complain."""
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _probe(probe: LocalEnv, env_id: str, name: str, longest_episode: int | None) -> tuple[EnvSpec, bool]:
    """Make one environment for a moment, in this process.

    Return what it says of itself, and whether what it shows are pictures that MuJoCo draws.
    """
    try:
        env = probe.make()
        parts = observation_space(env.observation_space, probe.config.image_size)
        action = action_spec(env.action_space)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id={env_id} needs a package that is missing: {error}") from error
    except UserError as error:
        raise UserError(f"env.id={env_id} {error}") from None
    except CODE_FAULTS as error:
        reason = failure_to_make(probe.registered, probe.config.kwargs or {}, error)
        raise UserError(f"env.id={env_id} {reason}") from error
    finally:
        probe.terminate()
    spec = EnvSpec(
        name=name,
        observation={key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts.items()},
        action=action,
        num_envs=probe.config.num_envs,
        action_repeat=probe.config.action_repeat,
        longest_episode=longest_episode,
        notices=notices(env.observation_space),
        renders=PICTURES in env.metadata.get("render_modes", ()),
    )
    return spec, spec.has_image and hasattr(env.unwrapped, "mujoco_renderer")
