"""The world-model updates of `divided.py`, eager on one process and compiled on several."""

import torch

from reverie.utils.ranks import Ranks
from reverie.workflows.world_models import CompiledDreamer

from .divided import UPDATES, WINDOWS, Found, learn, part
from .tiny import make_batch, tiny_workflow

# It compiles only one step and its gradient, because compiling is slow.
PHASE = "update_world_model"


def everything(ranks: Ranks) -> Found:
    """Return the results of this rank for its part."""
    torch.manual_seed(0)
    written = tiny_workflow()
    batches = [make_batch(written, WINDOWS) for _ in range(UPDATES)]
    if ranks.size == 1:
        return learn(written, batches, PHASE)
    # The other ranks use the compiled code in torch's cache.
    if ranks.is_first:
        learn(CompiledDreamer(written.env, written.config, written.device), [part(batches[0], ranks)], PHASE)
    ranks.sum([0.0])
    compiled = CompiledDreamer(written.env, written.config, written.device, ranks=ranks)
    compiled.load_state_dict(written.state_dict())
    return learn(compiled, batches, PHASE)
