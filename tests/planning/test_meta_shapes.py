"""Cached results match torch's own: shapes, strides, dtypes and storages."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.planning.torch_modes import LiveBytes, MetaShapes


class Recorded(TorchDispatchMode):
    """Records the operators and the layouts of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else [result]
        self.calls.append(
            (str(func), [(t.shape, t.stride(), t.dtype, t.device) for t in results if isinstance(t, Tensor)])
        )
        return result


def train_on_images(net: nn.Module) -> None:
    """Train a small convolutional network on channels_last images for three in-place steps."""
    for step in range(3):
        x = torch.zeros(4, 3, 8, 8, device="meta").to(memory_format=torch.channels_last)
        loss = net(x).log_softmax(-1).pow(2 if step else 2.0).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad)
        net.zero_grad()


def test_a_net_gets_the_same_outlines_with_the_table_as_without() -> None:
    layers = [nn.Conv2d(3, 8, 3), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)]
    net = nn.Sequential(*layers).to("meta")
    with Recorded() as plain:
        train_on_images(net)
    with MetaShapes(), Recorded() as answered:
        train_on_images(net)
    assert len(plain.calls) > 100
    assert plain.calls == answered.calls


def test_numbers_of_different_types_are_different_calls() -> None:
    x = torch.zeros(3, dtype=torch.int64, device="meta")
    with MetaShapes():
        assert [(x * 1).dtype, (x * 1.0).dtype, (x * True).dtype] == [torch.int64, torch.float32, torch.int64]


def test_results_share_storage_where_torch_shares_it_and_nowhere_else() -> None:
    with MetaShapes(), LiveBytes() as counter:
        x = torch.zeros(2, 6, device="meta")
        views = [x.view(3, 4), x.t(), x[0], x.add_(1), torch.ops.aten._unsafe_view(x, [12])]
        assert counter.live == 48 and len(views) == 5
        copies = [x + 1, x + 1, x.clone()]
        assert counter.live == 48 * (1 + len(copies))


def test_real_tensors_are_computed() -> None:
    with MetaShapes():
        x = torch.arange(4.0)
        assert (x * 2).tolist() == (x * 2).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert x.add_(1).tolist() == [1.0, 2.0, 3.0, 4.0]
