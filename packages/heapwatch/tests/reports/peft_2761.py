"""Register a hook on every layer before a forward pass.

Report: https://github.com/huggingface/peft/pull/2761
Cause: the variable contains only the last handle, so the hooks of all other layers stay.
Resolution: keep all handles, and remove every hook after the forward pass.
"""

import functools

import torch


class XLora(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def register(self) -> list[torch.utils.hooks.RemovableHandle]:
        hook = functools.partial(lambda scalings, *_: None, torch.ones(10_000))
        return [each.register_forward_pre_hook(hook) for each in (self.first, self.last)]  # grows


model = XLora()


def step(number: int) -> None:
    model.register()[-1].remove()


def resolved(number: int) -> None:
    for handle in model.register():
        handle.remove()
