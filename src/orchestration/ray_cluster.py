"""Start or join a Ray cluster, check that it is alive, and stop it without leftovers."""

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

from ..config.cluster import LEAST_OBJECT_STORE_MIB
from ..utils.errors import UserError, first_line
from ..utils.side_thread import call_with_timeout
from . import ray_reaper

_PROBE_SECONDS = 2.0
_REFUSED = "AuthenticationError"
_ANSWER_SECONDS = 10.0  # a live head of a busy machine answers sooner


class EngineFailed(RuntimeError):
    """The engine cannot continue; `resume=` continues from the newest checkpoint."""


class ClusterLost(EngineFailed):
    """The cluster is gone: its head, or its node on this machine."""


class WorkerDied(Exception):
    """A worker ended, or cannot be reached; the message is the first line of what Ray says."""


class Cluster:
    """A connection of this process to a Ray cluster; a process has one at a time.

    A cluster that is started here has `cpus` CPUs, listens on this machine alone, asks for a token that only
    its own processes know, and sends no usage statistics. Its files are in a new folder, deleted at the end.

    Args:
        address: `auto`, or that of a cluster to join; None starts one.
        cpus: Of a cluster that is started here.
        object_store_mib: Shared memory of a cluster that is started here, in MiB.
        setting: The key that users type for `address`.

    Raises:
        UserError: If there is no such cluster.
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
        # Ray reads the variables when it is imported, which this program may have done before.
        self.ray._raylet.Config.initialize("")
        self.ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        try:
            with _handlers_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's warnings about its next release
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
                    f"{setting}={address}: no cluster can be joined there ({reason}). "
                    "Start one by `ray start --head`, set RAY_AUTH_MODE=token in the environment if it wants "
                    f"a token, or set {setting}=null."
                ) from error
            return
        folder, self._reaper = new_folder()
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

    @property
    def cpus(self) -> list[int]:
        """CPUs of each node."""
        return self._resources("CPU")

    @property
    def object_store_bytes(self) -> int:
        """Bytes of the smallest object store of a node."""
        return min(self._resources("object_store_memory"))

    def _resources(self, name: str) -> list[int]:
        return [int(node["Resources"].get(name, 0)) for node in self.ray.nodes() if node["Alive"]]

    def get(self, reference: Any, *errors: type[Exception]) -> Any:
        """Return what a worker has returned, or raise what it raised: those of `errors` without Ray's frames.

        Raises:
            WorkerDied: If it did neither.
        """
        try:
            # A copy: Ray ends the process silently if it releases a view after its node has died.
            return copy.deepcopy(self.ray.get(reference))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, errors):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(first_line(error)) from error

    def require_alive(self) -> None:
        """Check that the head and this machine's node answer. Cost: 2 ms.

        Ray would end this process without warning a minute after the head is gone.

        Raises:
            ClusterLost: If one does not.
        """
        try:
            socket.create_connection(self._address, _PROBE_SECONDS).close()
            # In a thread: if the head dies before it answers, Ray waits until it ends this process.
            nodes = call_with_timeout(_ANSWER_SECONDS, self.ray.nodes)
        except (OSError, self.ray.exceptions.RayError) as error:
            raise ClusterLost(f"the Ray cluster is lost: its head does not answer ({error}).") from error
        if not any(node["NodeID"] == self._node and node["Alive"] for node in nodes):
            raise ClusterLost("the Ray cluster is lost: its node on this machine has died.")

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here; may be called twice."""
        with _handlers_kept():
            self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the run's signal handlers after the block: Ray's would exit at once on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():  # which alone has handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def set_variables() -> None:
    """Set what Ray's processes read from the environment, where nobody else has."""
    own = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without GPUs Ray warns of a change to come
        "RAY_worker_niceness": "0",  # Ray's default of 15 starves them next to any other process
    }
    for name, value in own.items():
        os.environ.setdefault(name, value)


def require_token(setting: str, address: str) -> None:
    """Let Ray send this machine's token to a cluster, and check that the cluster asks for that token.

    `RAY_AUTH_MODE=disabled` in the environment skips this. Cost: two processes that import Ray.

    Raises:
        UserError: If there is no token here, or the cluster refuses it or needs none. `setting` is the key
            that users type for `address`.
    """
    if os.environ.setdefault("RAY_AUTH_MODE", "token").lower() != "token":
        return
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    asked, generate = f"{setting}={address}", "Run `ray get-auth-token --generate` on the cluster's head"
    otherwise = "On a network that you trust, RAY_AUTH_MODE=disabled does without a token."
    if not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        raise UserError(
            f"{asked} needs a token, and this machine has none. {generate} before `ray start --head`, and "
            f"set RAY_AUTH_TOKEN here to its output. {otherwise}"
        )
    without, refusal = _refusal(address, "disabled"), _refusal(address, "token")
    if not without:
        raise UserError(
            f"{asked} asks for no token: whoever reaches its port can run programs here. {generate}, then "
            f"`ray stop` and `RAY_AUTH_MODE=token ray start --head`. {otherwise}"
        )
    if _REFUSED in refusal:
        raise UserError(
            f"{asked} refuses this machine's token. Set RAY_AUTH_TOKEN to the output of `ray get-auth-token` "
            "on the cluster's head."
        )
    if refusal or _REFUSED not in without:
        reason = (refusal or without).strip().splitlines()[-1]
        raise UserError(f"{asked}: no cluster can be joined there ({reason}).")


def _refusal(address: str, mode: str) -> str:
    """Return how Ray fails to connect in an authentication mode, "" if it connects."""
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    environment = os.environ | {"RAY_AUTH_MODE": mode}
    done = subprocess.run([*check, f"--address={address}"], capture_output=True, text=True, env=environment)
    return (done.stderr or f"exit code {done.returncode}") if done.returncode else ""


def new_folder() -> tuple[str, subprocess.Popen[bytes]]:
    """Return a folder for Ray's processes on this machine, and what ends them and deletes it after us.

    That is a process; it begins once its standard input is closed, at the latest when this process ends.
    """
    # Ray appends 75 characters for its sockets, whose names may have 107.
    usual = tempfile.gettempdir()
    parent = usual if len(f"{usual}/reverie-12345678") <= 30 else "/tmp"
    folder = tempfile.mkdtemp(prefix="reverie-", dir=parent)
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(ray_reaper.__file__), folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,  # that no Ctrl-C reaches
    )
    return folder, reaper


def check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at host:port; Ray itself would retry for 40 s and more."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
        except (UnicodeError, OverflowError) as error:  # a name that is too long, or a port beyond 65535
            raise OSError(str(error)) from error
