"""The world model's updates of `divided.py`: as written by one process, compiled by several."""

import torch

from reverie.utils.ranks import Ranks
from reverie.workflows.world_models import CompiledDreamer

from .divided import UPDATES, WINDOWS, Found, learn, part
from .tiny import make_batch, tiny_workflow

PHASE = "update_world_model"  # it compiles one step and its gradient, which takes long enough


def everything(ranks: Ranks) -> Found:
    """Return what this rank makes of its part."""
    torch.manual_seed(0)
    written = tiny_workflow()
    batches = [make_batch(written, WINDOWS) for _ in range(UPDATES)]
    if ranks.size == 1:
        return learn(written, batches, PHASE)
    if ranks.is_first:  # the others find in torch's cache what one has compiled
        learn(CompiledDreamer(written.env, written.config, written.device), [part(batches[0], ranks)], PHASE)
    ranks.sum([0.0])
    compiled = CompiledDreamer(written.env, written.config, written.device, ranks=ranks)
    compiled.load_state_dict(written.state_dict())
    return learn(compiled, batches, PHASE)
