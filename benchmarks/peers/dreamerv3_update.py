"""One gradient step of danijar/dreamerv3 on a batch of random pixels on the device, without its replay.

The option `trace` sets a folder. One more step is traced after the last block, and `kernels.json` in that
folder contains the number of kernels on the GPU, or `null` on a CPU.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from dreamerv3_agent import JAXServer, batch_on_device, build, compose, num_parameters
from serve import commit_of


class Server(JAXServer):
    """Answers with the mean over a block, because JAX queues an update while the previous one runs."""

    def block(self, call: Callable[[], Any], seconds: float) -> list[float]:
        """Call a function for the given seconds, at least once, and return the mean seconds of a call."""
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() < start + seconds:
            call()
            calls += 1
        self.synchronize()
        return [(time.perf_counter() - start) / calls]

    def synchronize(self) -> None:
        """Wait for the device to finish all calls."""
        jax.block_until_ready(agent.params)


def update() -> None:
    """Run one gradient step."""
    global carry
    carry, _, _ = agent.train(carry, dict(batch))


def count_kernels(folder: str) -> int | None:
    """Trace one step, and return the number of kernels that ran on the GPU."""
    with jax.profiler.trace(folder):
        update()
        server.synchronize()
    [path] = Path(folder).rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    streams = [
        line
        for plane in planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
    ]
    names = [event.name for stream in streams for event in stream.events]
    return sum(not name.startswith(("Mem", "mem")) for name in names) if streams else None


server = Server()
config = compose(server.options)
agent = build(server.options, config)
carry = agent.init_train(config.batch_size)
batch = batch_on_device(agent, config)
start = time.perf_counter()
update()
server.synchronize()
server.ready(
    "elements",
    "ninjax",
    commit=commit_of(server.options["checkout"]),
    parameters=num_parameters(agent),
    first_update_s=time.perf_counter() - start,
)
server.run(update)
if "trace" in server.options:
    kernels = count_kernels(server.options["trace"])
    Path(server.options["trace"], "kernels.json").write_text(json.dumps(kernels))
