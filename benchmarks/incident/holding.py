"""Measure the memory retained by a stored loss and by a tensor made with `torch.from_numpy`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from heapwatch.objects.graph_holders import find_graph_holders
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.incident.acting import Actor, num_nodes
from benchmarks.incident.in_use import held_bytes
from reverie.config.population import PopulationTrainConfig
from reverie.orchestration.world_model_orchestrator import DreamerParts
from reverie.utils.timestep import EnvSpec
from reverie.utils.units import count_text
from reverie.workflows.population.members import Members, Sizes, Stacked
from reverie.workflows.population.td3 import TD3, Microbatch
from reverie.workflows.world_models import DreamerWorkflow

LossOf = Callable[[Members, Stacked, Microbatch], Tensor]
EPISODE_FRAMES = 100
_STACKED_FRAMES = 16
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class StoredLoss:
    """The loss of one update, stored in one of several ways."""

    kept: str
    held_bytes: int
    nodes: int
    """Autograd nodes kept alive by the loss."""


@dataclass(frozen=True, slots=True)
class KeptArray:
    """A part of an episode that is kept while the remainder is dropped."""

    kept: str
    shown_bytes: int
    """Bytes visible through the kept arrays and tensors, each byte counted once."""

    held_bytes: int


def held_by(parts: DreamerParts, batch_size: int) -> tuple[list[KeptArray], list[StoredLoss]]:
    """Act until the replay contains a batch, and measure the memory retained by kept frames and losses."""
    actor = Actor(parts)
    frames = _episode_frames(actor)
    while not parts.replay.can_sample:
        actor.act(1)
    return kept_arrays(frames), stored_losses(parts, batch_size)


def stored_losses(parts: DreamerParts, batch_size: int) -> list[StoredLoss]:
    """Measure the memory retained by the total loss of one update, for each way to store it.

    The replay must contain a batch. Parameters are not changed. Their gradients remain, as in a run, and do
    not count.
    """
    workflow = parts.workflow
    batch = parts.replay.sample(batch_size).to(workflow.device)

    def new_loss() -> Tensor:
        losses, _, _ = workflow.losses(batch, workflow.noise["update"])
        return workflow.total(losses)

    # This creates the gradients.
    new_loss().backward()
    return _stored_in_all_ways(workflow, new_loss)


def stored_losses_of_agents(config: PopulationTrainConfig, spec: EnvSpec) -> list[StoredLoss]:
    """Measure the memory retained by the losses of one agent of a population, for each way to store them.

    One agent and one batch are used, as in the incident report's trainer. In this project's populations, all
    members share a loss.
    """
    device = torch.device(config.device.value)
    members, td3 = Members(Sizes.of(spec, config.td3), 1, device), TD3(config.td3)
    shape = (1, config.training.batch_size)
    seen = torch.randn(*shape, members.sizes.observation, device=device)
    action = torch.zeros(*shape, members.sizes.action, device=device)
    nothing = torch.zeros(shape, device=device)
    piece = Microbatch(seen, action, nothing, seen, nothing.bool(), action)
    found: list[StoredLoss] = []
    for name, loss_of in (("critic", td3.critic_loss), ("actor", td3.actor_loss)):
        leaves = {key: each.requires_grad_() for key, each in members.networks[name].items()}

        def new_loss(loss_of: LossOf = loss_of, leaves: Stacked = leaves) -> Tensor:
            return td3.total(loss_of(members, leaves, piece))

        # This creates the gradients.
        new_loss().backward()
        stored = _stored_in_all_ways(members, new_loss)
        found += [replace(each, kept=f"{name}: {each.kept}") for each in stored]
    return found


def _stored_in_all_ways(owner: DreamerWorkflow | Members, new_loss: Callable[[], Tensor]) -> list[StoredLoss]:
    return [_stored_loss(owner, kept, lambda keep=keep: keep(new_loss())) for kept, keep in _WAYS.items()]


def kept_arrays(frames: NDArray[Any]) -> list[KeptArray]:
    """Measure the memory retained by parts of an episode, given as an array of frames."""
    frame, stacked = frames[:1].nbytes, frames[:_STACKED_FRAMES].nbytes
    one = "torch.from_numpy of one frame"

    def with_tensor() -> object:
        episode = frames.copy()
        return episode, torch.from_numpy(episode[:1])

    def after_many() -> object:
        episode = frames.copy()
        for _ in range(_ROUNDS):
            torch.from_numpy(episode[:1]).float()
        return episode

    makers: list[tuple[str, int, Callable[[], object]]] = [
        (f"the episode: an array of {count_text(len(frames), 'frame')}", frames.nbytes, frames.copy),
        (f"the episode and {one}", frames.nbytes, with_tensor),
        (f"the episode, {_ROUNDS} such tensors made and dropped", frames.nbytes, after_many),
        (f"{one} alone", frame, lambda: torch.from_numpy(frames.copy()[:1])),
        ("a NumPy view of one frame alone", frame, lambda: frames.copy()[:1]),
        (f"the clone() of {one}", frame, lambda: torch.from_numpy(frames.copy()[:1]).clone()),
        (
            f"torch.from_numpy of np.stack of {_STACKED_FRAMES} frames",
            stacked,
            lambda: torch.from_numpy(np.stack(list(frames.copy()[:_STACKED_FRAMES]))),
        ),
    ]
    host = torch.device("cpu")
    return [KeptArray(kept, shown, held_bytes(make, host)) for kept, shown, make in makers]


def _episode_frames(actor: Actor) -> NDArray[Any]:
    """Return the first environment's observations while acting, (100, ...) in their own dtype."""
    found = []
    for _ in range(EPISODE_FRAMES):
        found.append(next(iter(actor.arrival.observation.values()))[0])
        actor.act(1)
    return np.stack(found)


def _stored_loss(owner: DreamerWorkflow | Members, kept: str, make: Callable[[], object]) -> StoredLoss:
    held = held_bytes(make, owner.device)
    roots = {"workflow": owner, "kept": make()}
    return StoredLoss(kept, held, num_nodes(find_graph_holders(roots)))


def _after_backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def _after_retaining_backward(loss: Tensor) -> Tensor:
    loss.backward(retain_graph=True)
    return loss


_WAYS: dict[str, Callable[[Tensor], object]] = {
    "loss, before backward()": lambda loss: loss,
    "loss, after backward(retain_graph=True)": _after_retaining_backward,
    "loss, after backward()": _after_backward,
    "loss.detach()": lambda loss: _after_backward(loss).detach(),
    "loss.item()": lambda loss: _after_backward(loss).item(),
}
