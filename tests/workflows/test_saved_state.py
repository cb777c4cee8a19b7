"""A saved workflow continues acting and learning from its state."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.workflows.world_models import DreamerWorkflow

from .tiny import ACTIONS, make_arrival, make_batch, tiny_workflow


def saved(workflow: DreamerWorkflow) -> dict[str, Any]:
    return copy.deepcopy(workflow.state_dict())


def online(workflow: DreamerWorkflow) -> dict[str, Tensor | None]:
    return workflow.state_dict()["online"]


def test_acting_goes_on_bit_for_bit_in_the_middle_of_an_episode() -> None:
    first, second = tiny_workflow(), tiny_workflow()
    arrivals = [make_arrival(first, is_first=step == 0) for step in range(6)]
    for arrival in arrivals[:3]:
        first.collect_step(arrival)
    second.load_state_dict(saved(first))
    for arrival in arrivals[3:]:
        ours, theirs = first.collect_step(arrival), second.collect_step(arrival)
        np.testing.assert_array_equal(ours.action, theirs.action)
        assert torch.equal(ours.latent.deter, theirs.latent.deter)
        assert torch.equal(ours.latent.stoch, theirs.latent.stoch)


def test_without_the_state_of_acting_the_next_step_would_differ() -> None:
    first, second = tiny_workflow(), tiny_workflow()
    for step in range(3):
        first.collect_step(make_arrival(first, is_first=step == 0))
    second.load_state_dict(saved(first))
    second.world_model.rssm.set_online_state(None)
    arrival = make_arrival(first)
    ours, theirs = first.collect_step(arrival).latent.deter, second.collect_step(arrival).latent.deter
    assert not torch.equal(ours, theirs)


def test_a_state_from_before_the_first_step_takes_back_what_was_seen_since() -> None:
    workflow = tiny_workflow()
    before = saved(workflow)
    assert before["online"]["deter"] is None and before["online"]["stoch"] is None
    workflow.collect_step(make_arrival(workflow, is_first=True))
    assert online(workflow)["deter"] is not None
    workflow.load_state_dict(before)
    assert online(workflow)["deter"] is None
    assert torch.equal(workflow._prev_action, torch.zeros(2, ACTIONS))


def test_a_loaded_state_is_a_copy_of_the_one_that_goes_on() -> None:
    first, second = tiny_workflow(), tiny_workflow()
    first.collect_step(make_arrival(first, is_first=True))
    second.load_state_dict(first.state_dict())
    for name, value in online(second).items():
        theirs = online(first)[name]
        assert value is not None and theirs is not None and torch.equal(value, theirs)
        assert value.data_ptr() != theirs.data_ptr()


def test_a_workflow_for_another_number_of_environments_takes_all_but_the_state_of_acting() -> None:
    first = tiny_workflow()
    first.collect_step(make_arrival(first, is_first=True))
    first.update(make_batch(first))
    alone = DreamerWorkflow(replace(first.env, num_envs=1), first.config, first.device)
    alone.load_state_dict(saved(first))
    assert online(alone)["deter"] is None and alone._prev_action.shape == (1, ACTIONS)
    ours, theirs = first.world_model.state_dict(), alone.world_model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
