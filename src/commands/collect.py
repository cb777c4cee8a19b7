"""Collect experience on this machine for a learner on another one: reverie-collect address=<host>:<port>.

  ray get-auth-token --generate                               on the learner's machine, once
  RAY_AUTH_MODE=token ray start --head --num-cpus=0           on the learner's machine
  export RAY_AUTH_TOKEN=<output of the first command>         on each other machine
  reverie-collect address=10.0.0.1:6379 collectors=4          on each other machine, same version of Reverie
  reverie-train ... collect.collectors=8 collect.address=auto on the learner's machine

Anyone with the token can run any program on all these machines, so clusters must require a token.
RAY_AUTH_MODE=disabled joins a cluster without a token, on a trusted network.

The command joins the Ray cluster with one CPU per collector and waits. The learner can start one collector
(collect.collectors=) per CPU. The command ends on Ctrl-C or when the cluster ends, and does not leave any
files behind. The learner restarts lost collectors on other machines with free CPUs.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from ..orchestration.ray_cluster import check_reachable, new_folder, require_token, set_variables
from ..utils.errors import UserError, exit_on_user_error, require_package, require_range
from ..utils.units import count_text
from .options import own_settings

_SILENT_SECONDS = 8.0


@dataclass(kw_only=True, slots=True)
class CollectorsConfig:
    """Settings of `reverie-collect`, written as key=value."""

    address: str
    """Host and port of the cluster's head, printed by `ray start --head`."""

    collectors: int = 1
    """Maximum number of collectors on this machine. Each is a process with one CPU."""

    def __post_init__(self) -> None:
        if not self.address.rpartition(":")[2].isdecimal():
            raise UserError(f"address={self.address} has no port. Example: address=10.0.0.1:6379.")
        require_range("", self, "collectors", ge=1)


def collect(config: CollectorsConfig) -> None:
    """Join the cluster, and wait until it ends or the user presses Ctrl-C.

    Raises:
        UserError: If the address does not answer, the token is missing or wrong, or the cluster fails.
    """
    require_package("ray", "reverie-collect")
    address, count = config.address, config.collectors
    try:
        check_reachable(address)
    except OSError as error:
        repair = "Start one with `ray start --head`"
        raise UserError(f"address={address}: no Ray cluster responds ({error}). {repair}.") from error
    require_token("address", address)
    set_variables()
    folder, reaper = new_folder()
    options = [
        "--block",
        f"--address={address}",
        f"--num-cpus={count}",
        "--num-gpus=0",
        f"--temp-dir={folder}",
    ]
    log = os.path.join(folder, "reverie-collect.log")
    try:
        with open(log, "wb") as output:
            node = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            most = count_text(count, "collector")
            print(f"collecting for {address} with up to {most} (Ctrl-C to stop)", flush=True)
            _wait_for_end(node, address)
        raise UserError(f"address={address}: the cluster is lost or could not be joined: {_last_line(log)}")
    finally:
        reaper.communicate()


def _wait_for_end(node: "subprocess.Popen[bytes]", address: str) -> None:
    """Wait until the node ends or the cluster's head has not answered for several seconds.

    Ray itself would keep the node and its collectors for another minute.
    """
    answered = time.monotonic()
    while node.poll() is None and time.monotonic() - answered < _SILENT_SECONDS:
        with suppress(OSError):
            check_reachable(address)
            answered = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            node.wait(1.0)


def _last_line(log: str) -> str:
    with open(log, errors="replace") as file:
        return ([line.strip() for line in file if line.strip()] or ["Ray printed no message"])[-1]


@exit_on_user_error()
def main() -> None:
    """Run `reverie-collect` with the arguments of this process."""
    config, _ = own_settings(CollectorsConfig, sys.argv[1:], "reverie-collect", __doc__)
    collect(config)
