"""Callbacks that call `Watch.sample` in other trainers. Each library is imported only for its callback.

with Watch(folder="memory") as watch:
    trainer.fit(module, callbacks=[for_lightning(watch)])
"""

from typing import Any

from .watch import Watch


def for_lightning(watch: Watch) -> Any:
    """Return a `lightning.pytorch.Callback` that samples after each training batch."""
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]

    class Sampler(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            watch.sample(trainer.global_step)

    return Sampler()


def for_stable_baselines3(watch: Watch) -> Any:
    """Return a `stable_baselines3.common.callbacks.BaseCallback` that samples after each environment step."""
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]

    class Sampler(BaseCallback):
        def _on_step(self) -> bool:
            watch.sample(self.num_timesteps)
            return True

    return Sampler()


def for_transformers(watch: Watch) -> Any:
    """Return a `transformers.TrainerCallback` that samples after each optimizer step."""
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

    class Sampler(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.sample(state.global_step)

    return Sampler()
