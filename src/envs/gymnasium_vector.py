"""N Gymnasium environments with one id, in this process or in separate subprocesses."""

import logging
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from numpy.typing import NDArray

from ..utils.errors import UserError
from ..utils.timestep import TimeStep
from .backend import EnvironmentCrashed, EnvironmentFailed, Failures, require_shapes
from .config import EnvConfig, Vectorization
from .process_state import KeptState
from .workers import PICTURES, LocalEnv, SubprocessEnv

# Number of steps between checks of the settings that do not affect updates.
_STEPS_BETWEEN_CHECKS = 20
_LOG = logging.getLogger(__name__)


# If the baselines were attributes, leak detection would reach the whole run through log handlers.
_BASELINES: "WeakKeyDictionary[GymnasiumBackend, dict[int, Any]]" = WeakKeyDictionary()


class GymnasiumBackend:
    """N environments with one registration.

    With `render`, the first environment renders images if it supports rendering and its observations contain
    no images.

    Raises:
        UserError: If a package for the environment is missing, or its spaces are not supported.
        EnvironmentCrashed: If a process does not start.
    """

    def __init__(self, config: EnvConfig, registered: RegisteredSpec, render: bool = False) -> None:
        self._make_local = partial(LocalEnv, registered, config)
        self._name, self._timeout = config.label, config.worker_timeout
        self._in_processes = config.vectorization is Vectorization["async"]
        self._renders = False
        self._steps = 0
        _BASELINES[self] = {}
        self._workers: list[LocalEnv | SubprocessEnv] = []
        if render:
            _do_without_a_screen()
        try:
            with self._keeping("when it was created"):
                self._probe(config.choice, render)
            # Start all processes before waiting for the first one, so that they start in parallel.
            for index in range(len(self._workers), config.num_envs):
                self._workers.append(self._make_worker(index))
            for index, worker in enumerate(self._workers):
                try:
                    worker.wait_until_ready()
                except EnvironmentFailed as failure:
                    raise EnvironmentCrashed(failure.format_message(self._name, index)) from None
        except BaseException:
            self.close()
            raise

    def _probe(self, choice: str, render: bool) -> None:
        """Create environment 0, read its spec and try to render. Close it unless it has its own process."""
        first = self._make_worker(0)
        self._workers.append(first)
        try:
            spec, is_drawn_by_mujoco = first.outline()
        except EnvironmentFailed as failure:
            raise EnvironmentCrashed(failure.format_message(self._name, 0)) from None
        except UserError as error:
            raise UserError(f"{choice} {error}") from error.__cause__
        self.spec = replace(spec, name=self._name)
        is_drawing = render and spec.renders and not spec.has_image
        if is_drawing or not self._in_processes:
            self._workers.pop().terminate()
        # MuJoCo shares the process's OpenGL context, so images turn black once another environment closes.
        self._in_processes |= is_drawn_by_mujoco
        if is_drawing:
            self._renders = self._try_to_render()

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """See `EnvBackend.step_or_reset`. Idle environments are skipped."""
        asked = [index for index in range(self.spec.num_envs) if index not in idle]
        step, failures = TimeStep.empty(self.spec), {}
        step.is_first[list(seeds)] = True
        self._steps += 1
        is_step = not seeds and self._steps % _STEPS_BETWEEN_CHECKS > 0
        with self._keeping("in step()" if is_step else "in reset() or step()", is_step):
            for index in asked:
                self._workers[index].send(seeds[index] if index in seeds else action[index])
            for index in asked:
                try:
                    observation, reward, terminated, truncated, numbers = self._workers[index].receive()
                    require_shapes(observation, self.spec)
                except EnvironmentFailed as failure:
                    failures[index] = failure
                    continue
                step.set_observation(index, observation)
                step.reward[index] = reward
                step.is_last[index], step.is_terminal[index] = terminated or truncated, terminated
                for name, number in numbers.items():
                    step.info[name][index] = number
        return step, failures

    def replace(self, index: int) -> None:
        """See `EnvBackend.replace`. The new process starts in the background."""
        with self._keeping("in close()"):
            self._workers[index].terminate()
        self._workers[index] = self._make_worker(index)

    def render(self) -> NDArray[np.uint8] | None:
        """See `EnvBackend.render`."""
        if not self._renders:
            return None
        try:
            with self._keeping("in render()"):
                return self._workers[0].render()
        except EnvironmentFailed as failure:
            raise UserError(f"render() of {self.spec.name} failed: {failure}.") from failure

    def close(self) -> None:
        """Close the environments and end their processes."""
        with self._keeping("in close()"):
            for worker in self._workers:
                worker.close_async()
            for worker in self._workers:
                worker.terminate()

    def _keeping(self, when: str, is_step: bool = False) -> AbstractContextManager[None]:
        """Return a context that protects this process from the environments that run in it."""
        if self._in_processes:
            return nullcontext()
        return KeptState(self._name, when, is_step=is_step, baselines=_BASELINES[self])

    def _make_worker(self, index: int, mode: str | None = None) -> LocalEnv | SubprocessEnv:
        if self._renders and index == 0:
            mode = PICTURES
        make = partial(self._make_local, render_mode=mode)
        return SubprocessEnv(make, f"{self._name} {index}", self._timeout) if self._in_processes else make()

    def _try_to_render(self) -> bool:
        """Return whether an environment that declares a render mode can be created with it."""
        drawing = self._make_worker(0, PICTURES)
        try:
            drawing.outline()
        except (UserError, EnvironmentFailed) as error:
            _LOG.warning("%s with render_mode=%s %s", self._name, PICTURES, error)
            return False
        finally:
            drawing.terminate()
        return True


def _do_without_a_screen() -> None:
    """Make SDL render to memory on machines without a screen. Otherwise SDL reports an error."""
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
