"""Run a single Gymnasium environment, in this process or in a subprocess that may die or hang."""

import atexit
import contextlib
import copy
import multiprocessing
import os
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from ..utils.environment_variables import environment_variables
from ..utils.errors import CODE_FAULTS, UserError
from ..utils.parent import end_even_if_stuck
from ..utils.timestep import ArraySpec, EnvSpec
from ..utils.units import count_text
from .backend import EnvironmentFailed
from .config import EnvConfig
from .registered import failure_to_make, require_no_statistics, wrapped
from .spaces import (
    action_spec,
    as_array,
    convert_action,
    convert_observation,
    full_range,
    notices,
    observation_space,
)
from .suites import with_pixels

Request = int | NDArray[np.float32]
"""A seed that starts an episode, or an action (A,)."""

_PICTURE = None
"""Request for a rendered image."""

Record = tuple[dict[str, NDArray], float, bool, bool, dict[str, float]]
"""Observation, reward, terminated, truncated, and at the end of an episode the result of `numbers_of`."""

PICTURES = "rgb_array"
# A start may be this many times slower than a step, because all workers load packages simultaneously.
_START_PATIENCE = 10
_CLOSE_SECONDS = 5.0
# The smallest number that float32 rounds to infinity.
_FLOAT32_END = (2 - 2**-24) * 2.0**127


def as_number(reward: Any) -> float:
    """Return a reward as a number. Arrays and tensors with a single element are accepted.

    Raises:
        EnvironmentFailed: If the reward is not a single number that is finite in the replay buffer's float32.
    """
    # Strings are rejected, although `float` would parse them. Torch raises RuntimeError for some tensors.
    try:
        number = reward.item() if hasattr(reward, "item") else reward
        if not isinstance(number, str | bytes | bytearray) and abs(number := float(number)) < _FLOAT32_END:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise EnvironmentFailed(f"its reward is {reward!r}, which is not a single finite float32 number")


def numbers_of(info: Any, names: Sequence[str]) -> dict[str, float]:
    """Return those numbers with these names, such as `success` or `episode/r`, that `info` contains."""
    found = {}
    for name in names:
        value = info
        for key in [name] if isinstance(info, Mapping) and name in info else name.split("/"):
            value = value.get(key) if isinstance(value, Mapping) else None
        with contextlib.suppress(EnvironmentFailed):
            found[name] = as_number(value)
    return found


class RepeatedActions(gymnasium.Wrapper):
    """Repeats each action, at most until the episode ends, and sums the rewards."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the last observation, flags and info, and the sum of the rewards."""
        observation, total, terminated, truncated, info = None, 0.0, False, False, {}
        is_array = isinstance(action, np.ndarray)
        for _ in range(self._times):
            # A step may modify the array, but the next step still needs the original action.
            given = action.copy() if is_array else action
            observation, reward, terminated, truncated, info = self.env.step(given)
            total += as_number(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


@dataclass(eq=False)
class LocalEnv:
    """An environment in this process, created on the first request. Hangs are not detected.

    It is created from its registration, because subprocesses lack ids that were registered at run time.
    """

    registered: RegisteredSpec
    config: EnvConfig
    render_mode: str | None = None
    _env: gymnasium.Env | None = field(default=None, init=False)
    _request: Request = field(default=0, init=False)
    _has_begun: bool = field(default=False, init=False)

    def make(self) -> gymnasium.Env:
        """Return the environment. The first call creates it."""
        if self._env is None:
            # Environments must not share arguments, because one might modify a list or mapping.
            options = copy.deepcopy(dict(self.config.kwargs or {}))
            # Environments that cannot render need not accept this argument.
            if self.render_mode:
                options["render_mode"] = self.render_mode
            env = gymnasium.make(self.registered, max_episode_steps=self.config.time_limit, **options)
            for entry in self.config.wrappers:
                env = wrapped(env, entry)
            require_no_statistics(env)
            if not self.config.scale_bytes:
                env.observation_space = full_range(env.observation_space)
            repeat = self.config.action_repeat
            self._env = with_pixels(RepeatedActions(env, repeat) if repeat > 1 else env, self.config)
        return self._env

    def outline(self) -> tuple[EnvSpec, bool]:
        """Create the environment. Return its spec, and whether MuJoCo renders its image observations.

        Raises:
            UserError: If the environment cannot be created or has unsupported spaces. The caller prepends the
                id.
        """
        config = self.config
        try:
            env = self.make()
            parts = observation_space(env.observation_space, config.image_size)
            action = action_spec(env.action_space)
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"needs a package that is missing: {error}") from error
        except UserError:
            raise
        except CODE_FAULTS as error:
            raise UserError(failure_to_make(self.registered, config.kwargs or {}, error)) from error
        frames = config.time_limit or self.registered.max_episode_steps
        spec = EnvSpec(
            name=self.registered.id,
            observation={
                key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts.items()
            },
            action=action,
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
            longest_episode=-(-frames // config.action_repeat) if frames else None,
            notices=notices(env.observation_space),
            renders=PICTURES in env.metadata.get("render_modes", ()),
            info=config.info_names,
        )
        return spec, spec.has_image and hasattr(env.unwrapped, "mujoco_renderer")

    def wait_until_ready(self) -> None:
        """Do nothing, because there is only one process."""

    def send(self, request: Request) -> None:
        """Store a request."""
        self._request = request

    def receive(self) -> Record:
        """Execute the stored request: start an episode or act.

        Raises:
            EnvironmentFailed: If the environment raised an exception, or its observation is outside its
                space.
        """
        request, reward, terminated, truncated = self._request, 0.0, False, False
        numbers: dict[str, float] = {}
        try:
            env = self.make()
            if isinstance(request, int):
                observation, _ = env.reset(seed=request)
                self._has_begun = True
            else:
                action = convert_action(env.action_space, request)
                observation, reward, terminated, truncated, info = env.step(action)
                if terminated or truncated:
                    numbers = numbers_of(info, self.config.info_names)
            observation = convert_observation(env.observation_space, observation, self.config.image_size)
            return observation, as_number(reward), bool(terminated), bool(truncated), numbers
        except EnvironmentFailed:
            raise
        except CODE_FAULTS as error:
            raise _failure_of(error) from error

    def render(self) -> NDArray[np.uint8] | None:
        """Return an image, (height, width, 3), or `None` before the first episode.

        Raises:
            EnvironmentFailed: If the environment raised an exception, or returned anything else.
        """
        if not self._has_begun:
            return None
        try:
            picture = np.array(as_array(self.make().render()))
        except CODE_FAULTS as error:
            raise _failure_of(error) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            found = f"{picture.dtype} of shape {picture.shape}"
            raise EnvironmentFailed(f"it returned {found} instead of uint8 of (height, width, 3)")
        return picture

    def close_async(self) -> None:
        """Do nothing, because the environment is idle between calls."""

    def terminate(self) -> None:
        """Close the environment. Calling this again is safe."""
        if self._env is not None:
            with contextlib.suppress(*CODE_FAULTS):
                self._env.close()
            self._env = None


class SubprocessEnv:
    """A `LocalEnv` in a separate process. It counts as hung after `timeout` seconds, or never for 0."""

    def __init__(self, make: Callable[[], LocalEnv], name: str, timeout: float) -> None:
        # A forked worker would share the pages of the replay buffer and the device, and inherit thread locks.
        context = multiprocessing.get_context("spawn")
        # The wrapper supports any callable, but its type only allows functions that return Gymnasium
        # environments.
        portable: Any = CloudpickleWrapper
        self._pipe, theirs = context.Pipe()
        self._timeout = timeout
        self._outline: tuple[EnvSpec, bool] | None = None
        self._process = context.Process(target=_serve, args=(portable(make), theirs), name=name, daemon=True)
        with environment_variables({"OMP_NUM_THREADS": "1"}):
            self._process.start()
        theirs.close()
        # The process ignores SIGTERM, so multiprocessing would wait for it forever when exiting.
        atexit.register(self._process.kill)

    def outline(self) -> tuple[EnvSpec, bool]:
        """See `LocalEnv.outline`. This waits until the environment has been created.

        Raises:
            EnvironmentFailed: If its process died or timed out.
        """
        if self._outline is not None:
            return self._outline
        patience = self._timeout * _START_PATIENCE
        _limit(self._pipe, patience)
        late = f"its process was not ready after {count_text(patience, 'second')}"
        self._outline = outline = self._receive(late, "while it started ")
        _limit(self._pipe, self._timeout)
        return outline

    def wait_until_ready(self) -> None:
        """Wait until the environment has been created. Raise `EnvironmentFailed` if that fails."""
        try:
            self.outline()
        except UserError as error:
            raise EnvironmentFailed(f"it {error}") from error

    def send(self, request: Request) -> None:
        """Request a start or an action. This never fails: `receive` reports dead or hung processes."""
        with contextlib.suppress(OSError):
            self._pipe.send(request)

    def receive(self) -> Record:
        """Return the response, or raise `EnvironmentFailed`, after which only `terminate` may be called."""
        if self._outline is None:
            self.wait_until_ready()
        return self._receive(f"its process did not respond within env.worker_timeout={self._timeout:g} s")

    def render(self) -> NDArray[np.uint8] | None:
        """See `LocalEnv.render`. If a process does not respond, all later requests fail."""
        with contextlib.suppress(OSError):
            self._pipe.send(_PICTURE)
        answer: Any = self.receive()
        return answer

    def _receive(self, if_late: str, when: str = "") -> Any:
        try:
            answer = self._pipe.recv()
        except BlockingIOError:
            # A late response would be mistaken for the response to the next request.
            self._process.kill()
            raise EnvironmentFailed(if_late) from None
        except (EOFError, OSError):
            # The pipe closes shortly before the exit code is available.
            self._process.join(timeout=1)
            raise EnvironmentFailed(
                f"its process died {when}(exit code {self._process.exitcode}; negative codes are signals,"
                " and -9 often means that the system ran out of memory)"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close_async(self) -> None:
        """Close the pipe. The process exits at its next read."""
        self._pipe.close()

    def terminate(self) -> None:
        """Kill the process, after a few seconds of grace if `close_async` was called. Safe to call again."""
        if not self._pipe.closed:
            self._pipe.close()
            self._process.kill()
        self._process.join(timeout=_CLOSE_SECONDS)
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)


def _limit(pipe: Connection, seconds: float) -> None:
    """Make reads and writes raise `BlockingIOError` after `seconds` (if above 0). Polling would be slower."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        # This overrides socket.setdefaulttimeout.
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _serve(make: Callable[[], LocalEnv], pipe: Connection) -> None:
    """Serve requests until the pipe closes. This is the main function of the process."""
    _leave_signals_to_parent()
    end_even_if_stuck()
    env = make()
    with contextlib.suppress(EOFError, OSError):
        try:
            outline = env.outline()
        except UserError as error:
            pipe.send(error)
            return
        try:
            _leave_signals_to_parent()
            pipe.send(outline)
            while True:
                request = pipe.recv()
                try:
                    if request is _PICTURE:
                        answer = env.render()
                    else:
                        env.send(request)
                        answer = env.receive()
                        if isinstance(request, int):
                            _leave_signals_to_parent()
                except EnvironmentFailed as failure:
                    answer = failure
                pipe.send(answer)
        finally:
            env.terminate()


def _leave_signals_to_parent() -> None:
    """Ignore signals sent to the process group. This replaces any handlers of the environment."""
    # A handler is installed because child programs would inherit SIG_IGN.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)


def _failure_of(error: BaseException) -> EnvironmentFailed:
    """Convert `error`, the exception being handled, into an environment failure."""
    return EnvironmentFailed(f"it raised {type(error).__name__}: {error}", traceback.format_exc())
