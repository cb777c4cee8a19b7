"""Start or join a Ray cluster, check that it is alive, and stop it without leaving anything behind."""

import contextlib
import copy
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config.schema import LEAST_OBJECT_STORE_MIB
from ..utils.errors import UserError, first_line
from ..utils.side_thread import call_with_timeout
from . import ray_reaper

_PROBE_SECONDS = 2.0
_REFUSED = "AuthenticationError"
# Even on a busy machine, a live head answers within this time.
_ANSWER_SECONDS = 10.0


class EngineFailed(RuntimeError):
    """The engine cannot continue. `resume=` continues from the newest checkpoint."""


class ClusterLost(EngineFailed):
    """The cluster's head, or its node on this machine, is lost."""


class WorkerDied(Exception):
    """A worker exited or is unreachable. The message is the first line of Ray's error."""


class Cluster:
    """This process's connection to a Ray cluster. A process has only one at a time.

    A local cluster has `cpus` CPUs, listens only on this machine, requires a token that only its own
    processes have, and does not send usage statistics. Its files are in a new folder that is deleted at the
    end.

    Args:
        address: `auto`, the address of a cluster to join, or `None` to start a local one.
        cpus: Number of CPUs of a local cluster.
        object_store_mib: Shared memory of a local cluster in MiB.
        setting: Name of the user's setting for `address`, for messages.

    Raises:
        UserError: If the cluster cannot be joined or started.
    """

    def __init__(
        self,
        address: str | None,
        cpus: int,
        object_store_mib: int = LEAST_OBJECT_STORE_MIB,
        setting: str = "ray.address",
    ) -> None:
        self._reaper: subprocess.Popen[bytes] | None = None
        if address is None:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        set_variables()
        import ray

        self.ray: Any = ray
        # Ray reads these variables when it is imported, possibly earlier in this process.
        self.ray._raylet.Config.initialize("")
        self.ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        try:
            with _preserved_handlers(), warnings.catch_warnings():
                # Silence Ray's warning about its next release.
                warnings.simplefilter("ignore")
                self._connect(address, cpus, object_store_mib, setting)
        except BaseException:
            self.close()
            raise
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._node = ray.get_runtime_context().get_node_id()

    def _connect(self, address: str | None, cpus: int, object_store_mib: int, setting: str) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is not None:
            try:
                check_reachable(address)
                self.ray.init(address=address, **common)
            except (OSError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
                reason = first_line(error).rstrip(".")
                raise UserError(
                    f"{setting}={address}: cannot join a Ray cluster ({reason}). "
                    "Start one with `ray start --head`, set RAY_AUTH_MODE=token in the environment if it "
                    f"requires a token, or set {setting}=null."
                ) from error
            return
        folder, self._reaper = new_folder()
        try:
            self.ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=object_store_mib * 2**20,
                _temp_dir=folder,
                _node_ip_address="127.0.0.1",
                **common,
            )
        # Ray raises this type itself, e.g. if a busy machine takes longer than 30 s.
        except Exception as error:
            raise UserError(
                f"Ray did not start a cluster on this machine ({first_line(error).rstrip('.')}). Reduce the "
                f"load or the object store's size, or join a running cluster with {setting}=<address>."
            ) from error

    @property
    def cpus(self) -> list[int]:
        """The number of CPUs of each node."""
        return self._resources("CPU")

    @property
    def object_store_bytes(self) -> int:
        """Size in bytes of the smallest object store among all nodes."""
        return min(self._resources("object_store_memory"))

    def _resources(self, name: str) -> list[int]:
        return [int(node["Resources"].get(name, 0)) for node in self.ray.nodes() if node["Alive"]]

    def get(self, reference: Any, *errors: type[Exception]) -> Any:
        """Return a worker's result or raise its error. Errors of the types in `errors` omit Ray's frames.

        Raises:
            WorkerDied: If the worker died.
        """
        try:
            # Ray ends this process silently if it releases a view after its node has died, so make a copy.
            return copy.deepcopy(self.ray.get(reference))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, errors):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(first_line(error)) from error

    def require_alive(self) -> None:
        """Check that the head and this machine's node answer, in about 2 ms.

        Without this check, Ray would end this process without warning a minute after losing the head.

        Raises:
            ClusterLost: If the head or the node does not answer.
        """
        try:
            socket.create_connection(self._address, _PROBE_SECONDS).close()
            # If the head dies before it answers, Ray blocks until it ends this process, so use a thread.
            nodes = call_with_timeout(_ANSWER_SECONDS, self.ray.nodes)
        except (OSError, self.ray.exceptions.RayError) as error:
            raise ClusterLost(f"the Ray cluster is lost: its head does not answer ({error}).") from error
        if not any(node["NodeID"] == self._node and node["Alive"] for node in nodes):
            raise ClusterLost("the Ray cluster is lost: its node on this machine has died.")

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it is local. Repeated calls have no effect."""
        with _preserved_handlers():
            self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None


@contextlib.contextmanager
def _preserved_handlers() -> Iterator[None]:
    """Restore the run's signal handlers after the block, because Ray's exit immediately on SIGTERM."""
    # Only the main thread can set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def set_variables() -> None:
    """Set the environment variables of Ray's processes, unless the user has set them."""
    own = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # This silences a warning about a future change on machines without GPUs.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # With Ray's default niceness of 15, any other process starves the workers.
        "RAY_worker_niceness": "0",
    }
    for name, value in own.items():
        os.environ.setdefault(name, value)


def require_token(setting: str, address: str) -> None:
    """Make Ray send this machine's token to a cluster, and check that the cluster requires the same token.

    `RAY_AUTH_MODE=disabled` in the environment skips this. The check runs two processes that import Ray.
    `setting` is the name of the user's setting for `address`, for messages.

    Raises:
        UserError: If this machine has no token, or the cluster rejects it or accepts connections without one.
    """
    if os.environ.setdefault("RAY_AUTH_MODE", "token").lower() != "token":
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    asked, generate = f"{setting}={address}", "Run `ray get-auth-token --generate` on the cluster's head"
    otherwise = "On a trusted network, RAY_AUTH_MODE=disabled works without a token."
    if not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        raise UserError(
            f"{asked} needs a token, but this machine has none. {generate} before `ray start --head`, and "
            f"set RAY_AUTH_TOKEN on this machine to its output. {otherwise}"
        )
    without, refusal = _refusal(address, "disabled"), _refusal(address, "token")
    if not without:
        raise UserError(
            f"{asked} does not require a token, so anyone who reaches its port can run programs on this "
            f"machine. {generate}, then `ray stop` and `RAY_AUTH_MODE=token ray start --head`. {otherwise}"
        )
    if _REFUSED in refusal:
        raise UserError(
            f"{asked} rejects this machine's token. Set RAY_AUTH_TOKEN to the output of `ray get-auth-token` "
            "on the cluster's head."
        )
    if refusal or _REFUSED not in without:
        reason = (refusal or without).strip().splitlines()[-1]
        raise UserError(f"{asked}: cannot join a Ray cluster ({reason}).")


def _refusal(address: str, mode: str) -> str:
    """Return Ray's error on connecting in this authentication mode, or "" if it succeeds."""
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    environment = os.environ | {"RAY_AUTH_MODE": mode}
    done = subprocess.run([*check, f"--address={address}"], capture_output=True, text=True, env=environment)
    return (done.stderr or f"exit code {done.returncode}") if done.returncode else ""


def new_folder() -> tuple[str, subprocess.Popen[bytes]]:
    """Return a folder for Ray's processes on this machine, and a process that cleans up after the cluster.

    The cleanup starts when the standard input of that process closes, which happens at the latest when this
    process ends.
    """
    # Ray appends 75 characters for its sockets, and socket paths are limited to 107.
    usual = tempfile.gettempdir()
    parent = usual if len(f"{usual}/reverie-12345678") <= 30 else "/tmp"
    folder = tempfile.mkdtemp(prefix="reverie-", dir=parent)
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(ray_reaper.__file__), folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        # Ctrl-C does not reach processes in other sessions.
        start_new_session=True,
    )
    return folder, reaper


def check_reachable(address: str) -> None:
    """Raise an `OSError` if host:port does not answer, because Ray itself would retry for over 40 s."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
        except (UnicodeError, OverflowError) as error:
            # The host name is too long, or the port is above 65535.
            raise OSError(str(error)) from error
