"""Write the summaries of every training run.

Report: https://github.com/google/trax/pull/409
Cause: the writers stay open, and each has a thread and a file.
Resolution: close each writer after its last summary.
"""

import tempfile

from torch.utils.tensorboard import SummaryWriter

FOLDER = tempfile.mkdtemp()


def train(number: int) -> SummaryWriter:
    writer = SummaryWriter(FOLDER)  # grows
    writer.add_scalar("loss", 0.5, number)
    return writer


def step(number: int) -> None:
    train(number)


def resolved(number: int) -> None:
    train(number).close()
