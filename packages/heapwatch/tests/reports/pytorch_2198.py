"""Pass the hidden state of an LSTM from one batch to the next.

Report: https://github.com/pytorch/pytorch/issues/2198
Cause: the graph of each batch contains the graphs of all earlier batches, back to the first.
Resolution: detach the hidden state between batches.
"""

import torch


class LanguageModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(16, 32)
        self.hidden = torch.zeros(1, 8, 32), torch.zeros(1, 8, 32)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        output, self.hidden = self.lstm(text, self.hidden)  # grows
        return output


model = LanguageModel()


def step(number: int) -> None:
    model(torch.randn(20, 8, 16))


def resolved(number: int) -> None:
    step(number)
    model.hidden = model.hidden[0].detach(), model.hidden[1].detach()
