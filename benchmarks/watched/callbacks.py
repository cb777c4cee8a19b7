"""Run a watch in the trainers of three libraries, each with a leak, and print a line of JSON for each.

    python benchmarks/watched/callbacks.py

Run this with a Python interpreter that has the libraries installed. Samples are frequent, because the purpose
is to show that the callbacks sample and that the report lists the leak, not to measure the overhead.
"""

import json
import tempfile
from collections.abc import Callable
from importlib.metadata import version

import lightning
import torch
from heapwatch.watch.callbacks import for_lightning, for_stable_baselines3, for_transformers
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList, ConvertCallback
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from reverie.memory import Watch

STEPS = 1500
KEPT: list[bytes] = []


def leak() -> None:
    """Retain 20 KB, as a leak would."""
    KEPT.append(bytes(20_000))


def of_lightning(watch: Watch) -> None:
    """Train a linear model with Lightning."""

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch, _):
            leak()
            return functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[for_lightning(watch)],
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(512, 16), torch.randn(512, 1)), batch_size=16))


def of_stable_baselines3(watch: Watch) -> None:
    """Train PPO on CartPole with Stable-Baselines3."""
    keeping = ConvertCallback(lambda *_: leak() or True)
    PPO("MlpPolicy", "CartPole-v1", n_steps=128, device="cpu").learn(
        STEPS, CallbackList([keeping, for_stable_baselines3(watch)])
    )


def of_transformers(watch: Watch) -> None:
    """Train a tiny GPT-2 with Hugging Face's Trainer."""

    class Leaking(Trainer):
        def training_step(self, *arguments, **options):
            leak()
            return super().training_step(*arguments, **options)

    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (64, 8))]
    shape = GPT2Config(
        vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=STEPS, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
        )
        model = GPT2LMHeadModel(shape)
        Leaking(model, options, train_dataset=data, callbacks=[for_transformers(watch)]).train()


def main() -> None:
    """Run all three trainers."""
    torch.set_num_threads(1)
    libraries: dict[str, Callable[[Watch], None]] = {
        "lightning": of_lightning,
        "stable_baselines3": of_stable_baselines3,
        "transformers": of_transformers,
    }
    for name, train in libraries.items():
        KEPT.clear()
        with Watch(seconds=0.01, share=0.5) as watch:
            train(watch)
        report = watch.report()
        print(
            json.dumps(
                {
                    "library": f"{name} {version(name)}",
                    "verdict": report.verdict,
                    "samples": report.samples,
                    "steps": report.steps,
                    "sources": [each.finding.sources for each in report.findings],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
