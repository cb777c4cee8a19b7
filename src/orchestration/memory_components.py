"""What a run consists of, by name: what the memory tracker follows."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..utils.memory.tracker import Component
from .build import Parts


def components(parts: Parts, others: Mapping[str, Any]) -> dict[str, Component]:
    """Return the parts of a run with what each plans to hold; made for one sample and dropped.

    Gradients stand before the networks, and networks before the optimisers that reach them: a storage counts
    at its first owner.

    Args:
        parts: Environment, replay, workflow.
        others: Further objects of the loop by the name to show, such as `metrics`; their `planned_bytes`,
            where they have such, is what they may grow to.
    """
    workflow = parts.workflow
    modules = {"world_model": workflow.world_model, "controller": workflow.controller}
    found = {f"replay/{name}": _declared(nbytes) for name, nbytes in parts.replay.part_bytes().items()}
    found["replay"] = Component()
    found["online_state"] = Component((workflow.world_model.rssm._state, workflow._prev_action))
    found |= {f"gradients/{name}": Component(_gradients(module)) for name, module in modules.items()}
    found["normalizer"] = Component((workflow.controller.normalizer,))
    found |= {f"networks/{name}": Component(_tensors(module)) for name, module in modules.items()}
    found |= {
        f"optimizers/{name}": Component((optimizer.state_dict(),))
        for name, optimizer in workflow.optimizers.items()
    }
    found |= {name: Component() for name in ("gradients", "networks", "optimizers")}  # sums of their parts
    found["environment"] = Component((parts.environment,), parts.environment.planned_bytes)
    return found | {
        name: Component((held,), getattr(held, "planned_bytes", None)) for name, held in others.items()
    }


def _declared(nbytes: int) -> Component:
    return Component(planned_bytes=nbytes, declared_bytes=nbytes)


def _gradients(module: nn.Module) -> tuple[Any, ...]:
    return tuple(parameter.grad for parameter in module.parameters() if parameter.grad is not None)


def _tensors(module: nn.Module) -> tuple[Any, ...]:
    return (*module.parameters(), *module.buffers())
