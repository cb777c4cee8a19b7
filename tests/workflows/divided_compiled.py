"""The world model's updates of `divided.py`, with the step of the scan compiled, in float32."""

import torch

from reverie.utils.ranks import Ranks
from reverie.workflows.world_models import CompiledDreamer

from .divided import UPDATES, WINDOWS, Found, learn
from .tiny import make_batch, tiny_workflow


def everything(ranks: Ranks) -> Found:
    """Return what this rank makes of its part."""
    torch.manual_seed(0)
    form = tiny_workflow()
    compiled = CompiledDreamer(form.env, form.config, form.device, ranks=ranks)
    compiled.load_state_dict(form.state_dict())
    return learn(compiled, [make_batch(form, WINDOWS) for _ in range(UPDATES)], "update_world_model")
