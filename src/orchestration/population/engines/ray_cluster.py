"""Start or join a Ray cluster, check that it is alive, and stop it without leftovers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....config.population import RayConfig
from ....utils.errors import UserError
from . import ray_reaper
from .base import ClusterLost

_LONGEST_FOLDER = 30
"""Characters; Ray appends 75 more for its sockets, whose names may have 107."""

_SHORT_FOLDER = "/tmp"  # where every POSIX system has room for a socket
_PROBE_SECONDS = 2.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without GPUs Ray warns of a change to come
}


class Cluster:
    """A connection of this process to a Ray cluster; a process has one at a time.

    A cluster that is started here has `cpus` CPUs, listens on this machine alone, asks for a token that only
    its own processes know, and sends no usage statistics. Its files are in a new folder, which is deleted at
    the end.

    Args:
        config: Settings of the cluster.
        cpus: CPUs of a cluster that is started here.
        setting: The key that users type for `config.address`.

    Raises:
        UserError: If there is no such cluster.
    """

    def __init__(self, config: RayConfig, cpus: int, setting: str = "ray.address") -> None:
        self._reaper: subprocess.Popen[bytes] | None = None
        own = dict(_QUIET)
        if config.address is None:
            own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
            own["RAY_worker_niceness"] = "0"  # Ray's default of 15 starves them next to any other process
        for name, value in own.items():
            os.environ.setdefault(name, value)
        import ray

        self.ray: Any = ray
        try:
            with _handlers_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's warnings about its next release
                self._connect(config, cpus, setting)
        except BaseException:
            self.close()
            raise
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._node = ray.get_runtime_context().get_node_id()

    def _connect(self, config: RayConfig, cpus: int, setting: str) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if config.address is not None:
            try:
                _check_reachable(config.address)
                self.ray.init(address=config.address, **common)
            except (OSError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{setting}={config.address}: no cluster can be joined there ({_first_line(error)}). "
                    "Start one by `ray start --head`, set RAY_AUTH_MODE=token in the environment if it wants "
                    f"a token, or set {setting}=null."
                ) from error
            return
        folder = _new_folder()
        self._reaper = _start_reaper(folder)
        self.ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=config.object_store_mib * 2**20,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
            **common,
        )

    @property
    def cpus(self) -> list[int]:
        """CPUs of each node."""
        return [int(each.get("CPU", 0)) for each in self._resources()]

    @property
    def object_store_bytes(self) -> int:
        """Bytes of the smallest object store of a node."""
        return int(min(each.get("object_store_memory", 0) for each in self._resources()))

    def _resources(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def require_alive(self) -> None:
        """Check that the head and this machine's node answer. Cost: 2 ms.

        Ray would end this process without warning a minute after the head is gone.

        Raises:
            ClusterLost: If one does not.
        """
        try:
            socket.create_connection(self._address, _PROBE_SECONDS).close()
            is_alive = any(node["NodeID"] == self._node and node["Alive"] for node in self.ray.nodes())
        except (OSError, self.ray.exceptions.RayError) as error:
            raise ClusterLost(f"the Ray cluster is lost: its head does not answer ({error}).") from error
        if not is_alive:
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
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_folder() -> str:
    """Return a new folder whose path is short enough for sockets in it."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) + len("/reverie-12345678") <= _LONGEST_FOLDER else _SHORT_FOLDER
    return tempfile.mkdtemp(prefix="reverie-", dir=parent)


def _start_reaper(folder: str) -> "subprocess.Popen[bytes]":
    """Start the process that deletes the folder, in a separate session that no Ctrl-C reaches."""
    file = Path(ray_reaper.__file__)
    command = [sys.executable, "-I", "-S", str(file), folder, str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at host:port; Ray itself would retry for 40 s and more."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
