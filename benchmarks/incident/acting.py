"""Measure the memory that acting retains per environment step, with and without `no_grad` and detaching."""

from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heapwatch.objects.graph_holders import GraphReport, find_graph_holders

from benchmarks.incident.in_use import settled_bytes
from reverie.config.dreamer import DreamerTrainConfig
from reverie.orchestration.dreamer.recipe import DreamerRecipe
from reverie.orchestration.world_model_orchestrator import DreamerParts
from reverie.testing.faults import Detached, act_with_graph, observe_detaching

WARM_UP_STEPS = 20
"""Environment steps before the first reading, because the first steps allocate memory permanently."""

_STATE = "workflow.world_model.rssm._state"


class Actor:
    """Acts and records, as a run's loop does between updates."""

    def __init__(self, parts: DreamerParts) -> None:
        self.parts = parts
        self.arrival = parts.environment.reset()

    def act(self, steps: int) -> None:
        """Step all environments `steps` times."""
        workflow, replay = self.parts.workflow, self.parts.replay
        for _ in range(steps):
            collected = workflow.collect_step(self.arrival)
            replay.add(self.arrival, collected.action, collected.latent if replay.stores_latents else None)
            self.arrival = self.parts.environment.step(collected.action)


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory between two steps."""

    steps: int
    """Steps since the first reading, summed over environments."""

    held_bytes: int
    """Bytes in use beyond the first reading."""

    nodes: int
    """Autograd nodes kept alive by the workflow."""


@dataclass(frozen=True, slots=True)
class ActingRow:
    """One combination of the two guards against graphs, `no_grad` and detaching."""

    no_grad: bool
    detached: Detached
    num_envs: int
    readings: tuple[Reading, ...]
    """Readings at the start, halfway and at the end."""

    holders: tuple[str, ...]
    """Paths of the tensors that retain a graph at the end."""

    given_back_bytes: int
    """Bytes freed at the end by clearing the RSSM's cached state."""

    @property
    def nodes_per_step(self) -> float:
        """Autograd nodes retained per step of all environments together."""
        return (self.readings[-1].nodes - self.readings[0].nodes) / self.readings[-1].steps

    @property
    def bytes_per_agent_step(self) -> float:
        """Bytes retained per step of one environment."""
        return self.readings[-1].held_bytes / (self.readings[-1].steps * self.num_envs)

    @property
    def state_has_graph(self) -> bool:
        """Whether `rssm._state` has a graph after a step."""
        return any(path.startswith(_STATE) for path in self.holders)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "no_grad": self.no_grad,
            "detached": self.detached.value,
            "nodes_per_step": self.nodes_per_step,
            "bytes_per_agent_step": self.bytes_per_agent_step,
            "state_has_graph": self.state_has_graph,
            "holders": list(self.holders),
            "given_back_bytes": self.given_back_bytes,
            "readings": [
                {"steps": each.steps, "held_bytes": each.held_bytes, "nodes": each.nodes}
                for each in self.readings
            ],
        }


def acting_rows(config: DreamerTrainConfig, steps: int) -> list[ActingRow]:
    """Measure each combination of the guards over `steps` steps, with a new run for each."""
    return [
        measure_acting(config, no_grad, detached, steps)
        for no_grad, detached in product((False, True), reversed(Detached))
    ]


def measure_acting(config: DreamerTrainConfig, no_grad: bool, detached: Detached, steps: int) -> ActingRow:
    """Build the components of a run, set the guards, act, and measure the retained memory."""
    with TemporaryDirectory() as folder:
        parts = DreamerRecipe().build(config, Path(folder))
        with closing(parts.environment):
            if not no_grad:
                act_with_graph(parts.workflow)
            observe_detaching(parts.workflow, detached)
            return _measure(parts, no_grad, detached, steps)


def _measure(parts: DreamerParts, no_grad: bool, detached: Detached, steps: int) -> ActingRow:
    workflow, actor = parts.workflow, Actor(parts)
    roots = {"workflow": workflow}
    actor.act(WARM_UP_STEPS)
    # Search for graphs before reading the bytes, because the first search in a process fills caches.
    found = find_graph_holders(roots)
    first_bytes = settled_bytes(workflow.device)
    readings = [Reading(0, 0, num_nodes(found))]
    for piece in (steps // 2, steps - steps // 2):
        actor.act(piece)
        held = settled_bytes(workflow.device) - first_bytes
        found = find_graph_holders(roots)
        readings.append(Reading(readings[-1].steps + piece, held, num_nodes(found)))
    holders = tuple(path for holder in found.holders for path in holder.paths)
    at_end = settled_bytes(workflow.device)
    workflow.world_model.rssm.set_online_state(None)
    given_back = at_end - settled_bytes(workflow.device)
    num_envs = parts.environment.spec.num_envs
    return ActingRow(no_grad, detached, num_envs, tuple(readings), holders, given_back)


def num_nodes(found: GraphReport) -> int:
    """Return the number of autograd nodes in all graphs."""
    return sum(holder.nodes for holder in found.holders)
