"""Run one Gymnasium environment, in this process or in a subprocess that may die or hang."""

import atexit
import contextlib
import copy
import multiprocessing
import os
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from ..utils.environment_variables import environment_variables
from ..utils.errors import UserError
from ..utils.parent import end_even_if_stuck
from ..utils.timestep import ArraySpec, EnvSpec
from ..utils.units import count_text
from .backend import EnvironmentFailed
from .config import EnvConfig
from .registered import CODE_FAULTS, failure_to_make, require_no_statistics, wrapped
from .spaces import (
    action_spec,
    as_array,
    convert_action,
    convert_observation,
    full_range,
    notices,
    observation_space,
)

Request = int | NDArray[np.float32]
"""A seed (start an episode with it) or an action (A,)."""

_PICTURE = None
"""What a process is sent for a picture."""

Record = tuple[dict[str, NDArray], float, bool, bool]
"""Observation, reward, terminated, truncated."""

PICTURES = "rgb_array"
_START_PATIENCE = 10  # limits of a step that a start may take: all workers load their packages at once
_CLOSE_SECONDS = 5.0
_FLOAT32_END = (2 - 2**-24) * 2.0**127  # the smallest number that float32 rounds to infinity


def as_number(reward: Any) -> float:
    """Return a reward as a number; an array or a tensor of one number counts as that number.

    Raises:
        EnvironmentFailed: If it is not a single number that is finite in float32, as the replay stores it.
    """
    try:
        number = reward.item() if hasattr(reward, "item") else reward
        # Python would read a text that spells a number.
        if not isinstance(number, str | bytes | bytearray) and abs(number := float(number)) < _FLOAT32_END:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last one
        pass
    raise EnvironmentFailed(f"its reward is {reward!r}, which is not a single finite float32 number")


class RepeatedActions(gymnasium.Wrapper):
    """Repeats each action, at most until the episode ends; rewards are summed."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the last observation, flags and info, and the sum of the rewards."""
        observation, total, terminated, truncated, info = None, 0.0, False, False, {}
        is_array = isinstance(action, np.ndarray)
        for _ in range(self._times):
            # A step may change the array in place; the next one needs the action as it was chosen.
            given = action.copy() if is_array else action
            observation, reward, terminated, truncated, info = self.env.step(given)
            total += as_number(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


@dataclass(eq=False)
class LocalEnv:
    """An environment in this process, made at the first request. Nothing notices when it hangs.

    It is made from its registration, not from its id: a subprocess does not know ids that were registered at
    run time. For the rest see `EnvConfig`.
    """

    registered: RegisteredSpec
    config: EnvConfig
    render_mode: str | None = None
    _env: gymnasium.Env | None = field(default=None, init=False)
    _request: Request = field(default=0, init=False)
    _has_begun: bool = field(default=False, init=False)

    def make(self) -> gymnasium.Env:
        """Return the environment, made at the first call."""
        if self._env is None:
            # an environment that renders nothing need not accept the argument
            # A copy for each environment: one that changes a list or mapping would change the others.
            options = copy.deepcopy(dict(self.config.kwargs or {}))
            if self.render_mode:
                options["render_mode"] = self.render_mode
            env = gymnasium.make(self.registered, max_episode_steps=self.config.time_limit, **options)
            for entry in self.config.wrappers:
                env = wrapped(env, entry)
            require_no_statistics(env)
            if not self.config.scale_bytes:
                env.observation_space = full_range(env.observation_space)
            repeat = self.config.action_repeat
            self._env = RepeatedActions(env, repeat) if repeat > 1 else env
        return self._env

    def outline(self) -> tuple[EnvSpec, bool]:
        """Make the environment; return its spec, and whether MuJoCo draws the pictures that it shows.

        Raises:
            UserError: If it cannot be made, or the model cannot take its spaces; the id is to stand before.
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
        )
        return spec, spec.has_image and hasattr(env.unwrapped, "mujoco_renderer")

    def wait_until_ready(self) -> None:
        """Nothing to wait for."""

    def send(self, request: Request) -> None:
        """Remember a request."""
        self._request = request

    def receive(self) -> Record:
        """Answer it: start an episode or act.

        Raises:
            EnvironmentFailed: If the environment raised, or gave an observation outside its space.
        """
        request, reward, terminated, truncated = self._request, 0.0, False, False
        try:
            env = self.make()
            if isinstance(request, int):
                observation, _ = env.reset(seed=request)
                self._has_begun = True
            else:
                action = convert_action(env.action_space, request)
                observation, reward, terminated, truncated, _ = env.step(action)
            observation = convert_observation(env.observation_space, observation, self.config.image_size)
            return observation, as_number(reward), bool(terminated), bool(truncated)
        except EnvironmentFailed:
            raise
        except CODE_FAULTS as error:
            raise _failure_of(error) from error

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture, (height, width, 3); None before the first episode.

        Raises:
            EnvironmentFailed: If the environment raised, or gave something else.
        """
        if not self._has_begun:
            return None
        try:
            picture = np.array(as_array(self.make().render()))
        except CODE_FAULTS as error:
            raise _failure_of(error) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            found = f"{picture.dtype} of shape {picture.shape}"
            raise EnvironmentFailed(f"it gives {found} instead of uint8 of (height, width, 3)")
        return picture

    def close_async(self) -> None:
        """Nothing runs between calls."""

    def terminate(self) -> None:
        """Close the environment; may be called twice."""
        if self._env is not None:
            with contextlib.suppress(*CODE_FAULTS):  # one that failed may fail to close too
                self._env.close()
            self._env = None


class SubprocessEnv:
    """A `LocalEnv` in its own process; `timeout` seconds without an answer count as hung, 0 waits forever."""

    def __init__(self, make: Callable[[], LocalEnv], name: str, timeout: float) -> None:
        # spawn: a forked worker would share the pages of replay and device with this process, and inherit the
        # locks that its threads hold
        context = multiprocessing.get_context("spawn")
        portable: Any = CloudpickleWrapper  # of any callable; its type knows makers of bare environments only
        self._pipe, theirs = context.Pipe()
        self._timeout = timeout
        self._outline: tuple[EnvSpec, bool] | None = None
        self._process = context.Process(target=_serve, args=(portable(make), theirs), name=name, daemon=True)
        with environment_variables({"OMP_NUM_THREADS": "1"}):
            self._process.start()
        theirs.close()
        atexit.register(self._process.kill)  # multiprocessing would wait for it forever: it ignores SIGTERM

    def outline(self) -> tuple[EnvSpec, bool]:
        """See `LocalEnv.outline`; waits until the environment is made.

        Raises:
            EnvironmentFailed: If its process died, or is late.
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
        """Wait until the environment is made; raises EnvironmentFailed if it cannot be."""
        try:
            self.outline()
        except UserError as error:
            raise EnvironmentFailed(f"it {error}") from error

    def send(self, request: Request) -> None:
        """Request a start or an action; never fails."""
        with contextlib.suppress(OSError):  # dead or hung: `receive` raises
            self._pipe.send(request)

    def receive(self) -> Record:
        """Return the answer; raises EnvironmentFailed if there is none: then only `terminate` is left."""
        if self._outline is None:
            self.wait_until_ready()
        return self._receive(f"its process gave no answer for env.worker_timeout={self._timeout:g} s")

    def render(self) -> NDArray[np.uint8] | None:
        """See `LocalEnv.render`; a process that gives no answer is dead for all further requests."""
        with contextlib.suppress(OSError):
            self._pipe.send(_PICTURE)
        answer: Any = self.receive()
        return answer

    def _receive(self, if_late: str, when: str = "") -> Any:
        try:
            answer = self._pipe.recv()
        except BlockingIOError:
            self._process.kill()  # a late answer would be taken for that to the next request
            raise EnvironmentFailed(if_late) from None
        except (EOFError, OSError):
            self._process.join(timeout=1)  # the pipe closes a moment before the exit code is known
            raise EnvironmentFailed(
                f"its process died {when}(exit code {self._process.exitcode}; a negative one is the signal"
                " that ended it, and -9 is often the system out of memory)"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close_async(self) -> None:
        """Close the pipe; the process ends when it next reads from it."""
        self._pipe.close()

    def terminate(self) -> None:
        """Kill the process, a few seconds after `close_async`. May be called twice."""
        if not self._pipe.closed:
            self._pipe.close()
            self._process.kill()
        self._process.join(timeout=_CLOSE_SECONDS)
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)


def _limit(pipe: Connection, seconds: float) -> None:
    """Let reading and writing raise BlockingIOError after `seconds`, 0 never; polling would cost more."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setblocking(True)  # regardless of socket.setdefaulttimeout
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _serve(make: Callable[[], LocalEnv], pipe: Connection) -> None:
    """Answer requests until the pipe closes; the main function of the process."""
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
    """Ignore signals to the whole process group, also where the environment has installed handlers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # programs started here would inherit SIG_IGN


def _failure_of(error: BaseException) -> EnvironmentFailed:
    """Return the exception `error`, which is being handled, as a failure of its environment."""
    return EnvironmentFailed(f"it raised {type(error).__name__}: {error}", traceback.format_exc())
