"""r2dreamer's own training loop on Pong, in cycles of 32 agent steps and one update."""

from types import SimpleNamespace
from typing import Any

import ale_py
from r2dreamer_agent import build, compose, facts
from serve import Server


def main() -> None:
    """Train until no more blocks are requested. The emulator's process imports this file without training."""
    server = Server()
    # One update per 32 agent steps.
    ratio = 0.5 if server.options["quick"] else 32
    cfg = compose(
        server.options,
        f"env.train_ratio={ratio}",
        "env.steps=1000000000",
        "buffer.max_size=20000",
        "trainer.update_log_every=1000000000",
    )
    agent = build(server.options, cfg)
    from buffer import Buffer
    from trainer import OnlineTrainer

    from envs import make_envs, parallel

    cycles = server.cycles("tensordict", "torchrl", "ale-py", **facts(server.options, agent))
    update = agent.update

    def updated(replay: Any) -> Any:
        """Run an update, and end a cycle."""
        metrics = update(replay)
        next(cycles)
        return metrics

    agent.update = updated
    silent = SimpleNamespace(scalar=_drop, video=_drop, write=_drop)
    parallel.Worker.initializers.append(take_bytes)
    train_envs, *_ = make_envs(cfg.env)
    OnlineTrainer(cfg.trainer, Buffer(cfg.buffer), silent, None, train_envs, None).begin(agent)


def take_bytes() -> None:
    """Make the emulator's process accept a setting's name as bytes, as older versions did."""

    class Interface(ale_py.ALEInterface):
        def setInt(self, key: bytes, value: int) -> None:
            super().setInt(key.decode(), value)

    ale_py.ALEInterface = Interface


def _drop(*_: Any, **__: Any) -> None:
    """Discard metrics, which Reverie's runs rarely write and sheeprl's runs disable."""


if __name__ == "__main__":
    main()
