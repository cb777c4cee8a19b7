"""Collect the outputs of all training steps until the epoch ends.

Report: https://github.com/sktime/pytorch-forecasting/pull/1924
Cause: each output contains the loss and the prediction with their graph.
Resolution: detach the tensors of an output before it is stored.
"""

import torch


class BaseModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(32, 32)
        self.training_step_outputs: list[dict[str, torch.Tensor]] = []

    def training_step(self) -> dict[str, torch.Tensor]:
        features = self.network(torch.randn(64, 32)).tanh()
        return {"loss": features.square().mean(), "prediction": features.mean()}


model = BaseModel()


def on_batch_end(log: dict[str, torch.Tensor]) -> None:
    model.training_step_outputs.append(log)  # grows


def step(number: int) -> None:
    on_batch_end(model.training_step())


def resolved(number: int) -> None:
    on_batch_end({name: value.detach() for name, value in model.training_step().items()})
