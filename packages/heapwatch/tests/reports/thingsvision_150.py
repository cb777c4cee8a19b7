"""Keep the first token of every activation.

Report: https://github.com/ViCCo-Group/thingsvision/pull/150
Cause: the first token is a view, and keeps the activations of all tokens.
Resolution: clone the view.
"""

import torch


class Extractor:
    def __init__(self) -> None:
        self.features: list[torch.Tensor] = []

    def extract(self, is_cloned: bool) -> None:
        activations = torch.ones(2, 50, 100)
        cls_token = activations[:, 0]
        self.features.append(cls_token.clone() if is_cloned else cls_token)  # grows


extractor = Extractor()


def step(number: int) -> None:
    extractor.extract(is_cloned=False)


def resolved(number: int) -> None:
    extractor.extract(is_cloned=True)
