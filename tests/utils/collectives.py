"""Results of `Ranks` on two or three processes. `test_ranks.py` compares them with one process."""

import time
from typing import Any

import torch
from torch import Tensor

from reverie.utils.process_group import ProcessGroup
from reverie.utils.ranks import RankLost, Ranks

ROWS, WIDTH = 6, 4


def everything(ranks: Ranks) -> dict[str, Any]:
    """Return the result of each method on this rank. The last rank is lost at the end."""
    matrices = [torch.full((2, 3), float(ranks.index + 1)), torch.tensor(10.0 * ranks.index)]
    strided = torch.full((1, 2, 2, 2), float(ranks.index)).contiguous(memory_format=torch.channels_last)
    ranks.broadcast_([strided])
    found = {
        "sum": ranks.sum([ranks.index + 1, 0.1, 1e16 if ranks.is_first else 1.0]),
        "own rows": [ranks.part(ROWS), ranks.slice_of(ROWS).start, ranks.slice_of(ROWS).stop],
        "broadcast": strided,
        "text": ranks.text_of_first("première" if ranks.is_first else ""),
        "no text": ranks.text_of_first("" if ranks.is_first else "unheard"),
        "equal": ranks.are_equal([torch.zeros(2, 3).t(), torch.tensor(1.0)]),
        "unequal": ranks.are_equal([torch.zeros(2), torch.tensor(float(ranks.index))]),
        "minus zero": ranks.are_equal([torch.tensor(-0.0 if ranks.is_first else 0.0)]),
    }
    ranks.average_(matrices)
    return found | {"average": matrices} | gathered(ranks) | {"lost": loss_of_the_last(ranks)}


def gathered(ranks: Ranks) -> dict[str, Tensor]:
    """Return all rows, and the gradient of `loss` for this rank's rows, averaged like weight gradients."""
    whole, weight = inputs()
    weight.requires_grad_()
    # These rows are not contiguous.
    own = (whole[ranks.slice_of(ROWS)] @ weight).t().contiguous().t()
    rows = ranks.gather(own)
    # The first term uses all rows, the second is the mean over this rank's rows.
    (loss(rows) + own.square().mean()).backward()
    assert weight.grad is not None
    ranks.average_([weight.grad])
    return {"rows": rows.detach(), "gradient": weight.grad}


def inputs() -> tuple[Tensor, Tensor]:
    """Return the rows of all ranks, and a matrix."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(WIDTH, 3, generator=generator)


def loss(rows: Tensor) -> Tensor:
    """Return a number that is not a mean over rows, so each row's gradient depends on all rows."""
    return (rows.t() @ rows).square().sum() + rows.std(0).log().sum()


def loss_of_the_last(ranks: Ranks) -> str:
    """Return the error on other ranks when the last rank exits or, with two ranks, is silent for 5 s."""
    hasty = ProcessGroup(ranks.index, ranks.size, timeout=0.5 if ranks.size == 2 else 60.0)
    ranks.sum([0.0])
    if ranks.index == ranks.size - 1:
        time.sleep(5.0 if ranks.size == 2 else 0.0)
        return ""
    try:
        hasty.sum([0.0])
    except RankLost as error:
        return str(error)
    return "nobody was lost"
