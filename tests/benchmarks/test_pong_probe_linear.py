"""The probe's numbers: literal values, a slow reference, and the order of imagined steps."""

import numpy as np
import pytest
import torch

from benchmarks.pong_probe.linear import RIDGE, auc, held_out_r2, imagine_along
from reverie.models import LatentState

from ..workflows.tiny import tiny_workflow


def test_auc_is_the_share_of_pairs_in_order_ties_half() -> None:
    assert auc(np.array([3.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(3.5 / 4)
    assert auc(np.array([1.0, 2.0]), np.array([0.0])) == 1.0
    assert auc(np.array([]), np.array([0.0])) is auc(np.array([0.0]), np.array([])) is None


def test_r2_is_one_for_explained_and_near_zero_for_unexplained_targets() -> None:
    chance = np.random.default_rng(0)
    fitted, held = (chance.standard_normal((count, 5)).astype(np.float32) for count in (400, 300))
    targets, wanted = (
        np.stack([each @ [1, 2, 0, 0, -3] + 7, chance.standard_normal(len(each))], 1)
        for each in (fitted, held)
    )
    said, noise = held_out_r2([fitted, held], [targets, wanted])
    assert said is not None and 0.98 < said <= 1.0
    assert noise is not None and -0.1 < noise < 0.05


def test_what_does_not_change_has_no_r2_and_features_that_do_not_explain_nothing() -> None:
    same, varied = np.ones((20, 3), np.float32), np.arange(20.0).reshape(20, 1)
    assert held_out_r2([same, same], [np.ones((20, 1)), np.ones((20, 1))]) == [None]
    assert held_out_r2([same, same], [varied, varied]) == [0.0]


def test_the_probe_minimises_squared_error_plus_the_penalty() -> None:
    chance = np.random.default_rng(1)
    inputs = chance.standard_normal((50, 3)) * [1, 5, 0.1] + 4
    targets = inputs @ np.array([[1.0], [0.2], [3.0]]) + chance.standard_normal((50, 1))
    centred = torch.tensor((inputs - inputs.mean(0)) / np.sqrt(inputs.var(0).mean()))
    wanted = torch.tensor(targets - targets.mean(0))
    weights = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = ((centred @ weights - wanted) ** 2).mean() + RIDGE * (weights**2).sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    left = ((centred @ weights.detach() - wanted) ** 2).sum() / (wanted**2).sum()
    features = inputs.astype(np.float32)
    [found] = held_out_r2([features, features], [targets, targets])
    assert found == pytest.approx(1 - float(left), abs=1e-4)


def test_imagined_states_follow_the_episode_s_own_actions_from_each_of_its_states() -> None:
    workflow = tiny_workflow()
    model, length = workflow.world_model, 7
    rssm, noise = model.rssm, workflow.noise["report"]
    start = rssm.initial(length)
    states = LatentState(torch.randn_like(start.deter), start.stoch)
    actions = torch.eye(workflow.env.action.size)[torch.arange(length) % workflow.env.action.size]
    assert imagine_along(model, states, actions, 3, noise).deter.shape[0] == length - 3
    core = rssm.core
    recurrent, action_weight = core.split_weights()
    # No random number is drawn before the first step's deter. Entry i continues state i with action i.
    once = imagine_along(model, states, actions, 1, noise)
    for i in range(length - 1):
        added = core.added(core.action_input(actions[i : i + 1], action_weight))
        state = states.select(slice(i, i + 1))
        projection = state.deter @ core.deter_weight.t()
        one, _ = core(
            state.deter, projection, state.flat_stoch, added, core.vectors(), core.weights(recurrent)
        )
        torch.testing.assert_close(once.deter[i : i + 1], one.flatten(1))
    assert torch.equal(imagine_along(model, states, actions, 0, noise).deter, states.deter)
