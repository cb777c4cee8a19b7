"""Acting and learning: what an update changes, the memory of acting, and that no graphs remain."""

import gc

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.models import LEARNERS
from reverie.workflows.world_models import DreamerWorkflow

from ..models.tiny import TINY
from .tiny import (
    ACTIONS,
    IMAGE,
    VECTOR,
    changed,
    make_arrival,
    make_batch,
    snapshot,
    tiny_workflow,
)

SWITCHES = {
    "decoder": ({"decoder/vector"}, ["decoder."]),
    "reward": ({"reward"}, ["reward."]),
    "continue": ({"continue"}, ["continuation."]),
    "kl": ({"dynamics", "representation"}, ["rssm.prior."]),
}


def count_graphs() -> int:
    """Return the number of live tensors with a graph."""
    gc.collect()
    return sum(issubclass(type(x), Tensor) and x.grad_fn is not None for x in gc.get_objects())


def update_count(workflow: DreamerWorkflow, name: str) -> float:
    return float(workflow.optimizers[name].updates)


def test_an_update_moves_every_network_and_the_slow_critic_a_little() -> None:
    workflow = tiny_workflow()
    before = snapshot(workflow.world_model), snapshot(workflow.controller)
    fast = snapshot(workflow.controller.critic)
    workflow.update(make_batch(workflow))
    assert changed(workflow.world_model, before[0]) == before[0].keys()
    assert changed(workflow.controller, before[1]) == before[1].keys()
    assert changed(workflow.controller.critic, fast) == fast.keys()
    for name, slow in workflow.controller.slow_critic.state_dict().items():
        start = before[1][f"slow_critic.{name}"]
        expected = 0.98 * start + 0.02 * workflow.controller.critic.state_dict()[name]
        torch.testing.assert_close(slow, expected, msg=lambda m, n=name: f"{n}: {m}")
    assert [update_count(workflow, name) for name in LEARNERS] == [1.0, 1.0, 1.0]


def test_an_update_of_the_world_model_leaves_the_controller_bit_identical() -> None:
    workflow = tiny_workflow()
    world_model, controller = snapshot(workflow.world_model), snapshot(workflow.controller)
    for _ in range(3):
        workflow.update_world_model(make_batch(workflow))
    assert not changed(workflow.controller, controller)
    assert changed(workflow.world_model, world_model) == world_model.keys()
    assert [update_count(workflow, name) for name in LEARNERS] == [3.0, 0.0, 0.0]
    assert all(p.grad is None for p in workflow.controller.parameters())


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learning_rate_of_its_own_scales_the_steps_of_one_learner_and_leaves_the_others(
    learner: str,
) -> None:
    moved = {}
    for name, rates in {"common": {}, "own": {f"{learner}_learning_rate": 1e-4}}.items():
        torch.manual_seed(0)
        workflow = tiny_workflow(rates=rates)
        before = [[p.detach().clone() for p in o.parameters] for o in workflow.optimizers.values()]
        metrics = workflow.update(make_batch(workflow)).metrics
        after = [o.parameters for o in workflow.optimizers.values()]
        moved[name] = [
            torch.cat([(a.detach() - b).flatten() for a, b in zip(*pair, strict=True)])
            for pair in zip(after, before, strict=True)
        ]
        shown = {each: float(metrics[f"{each}/learning_rate"]) for each in LEARNERS}
        assert shown == pytest.approx(dict.fromkeys(LEARNERS, 1e-3) | ({learner: 1e-4} if rates else {}))
    for name, common, own in zip(LEARNERS, moved["common"], moved["own"], strict=True):
        if name == learner:
            torch.testing.assert_close(own, 0.1 * common, rtol=0.02, atol=1e-7)
        else:
            assert torch.equal(own, common), name


@pytest.mark.parametrize("phase", ["update", "update_world_model"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_loss_that_is_switched_off_is_absent_and_its_network_stays_as_it_is(
    switch: str, phase: str
) -> None:
    workflow = tiny_workflow(switched_off=[switch])
    before = snapshot(workflow.world_model)
    absent, still = SWITCHES[switch]
    metrics = getattr(workflow, phase)(make_batch(workflow)).metrics
    everything = {f"loss/{name}" for names, _ in SWITCHES.values() for name in names}
    assert everything - metrics.keys() == {f"loss/{name}" for name in absent}
    expected = {name for name in before if not any(name.startswith(prefix) for prefix in still)}
    assert changed(workflow.world_model, before) == expected


@pytest.mark.parametrize("phase", ["update", "update_world_model"])
def test_an_update_leaves_no_graph_behind(phase: str) -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow)
    before = count_graphs()
    updated = getattr(workflow, phase)(batch)
    assert count_graphs() == before
    tensors = [*updated.metrics.values(), updated.deter, updated.stoch]
    assert not any(x.requires_grad for x in tensors)
    kept = workflow.losses(batch, workflow.noise["update"])
    # This shows that the count detects a graph.
    assert count_graphs() > before
    del kept


def test_an_update_returns_scalars_and_the_fresh_latents_as_the_replay_stores_them() -> None:
    workflow = tiny_workflow()
    updated = workflow.update(make_batch(workflow, batch=3, time=5))
    assert all(value.shape == () and bool(value.isfinite()) for value in updated.metrics.values())
    assert updated.deter.shape == (3, 5, TINY.deter) and updated.deter.dtype == torch.float32
    assert updated.stoch.shape == (3, 5, TINY.stoch) and updated.stoch.dtype == torch.uint8
    assert int(updated.stoch.max()) < TINY.classes


def test_many_updates_on_one_batch_lower_the_losses_of_the_world_model() -> None:
    workflow = tiny_workflow(is_perturbed=False)
    batch = make_batch(workflow)
    history = [workflow.update(batch).metrics for _ in range(60)]
    for name in ("loss/decoder/vector", "loss/reward", "loss/continue"):
        assert float(history[-1][name]) < 0.8 * float(history[0][name]), name


def test_equal_seeds_give_equal_updates() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        workflow = tiny_workflow()
        for _ in range(3):
            workflow.update(make_batch(workflow))
        results.append(snapshot(workflow.world_model) | snapshot(workflow.controller))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_a_restored_workflow_goes_on_bit_for_bit() -> None:
    first = tiny_workflow()
    batches = [make_batch(first) for _ in range(4)]
    for batch in batches[:2]:
        first.update(batch)
    second = tiny_workflow()
    second.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        ours, theirs = first.update(batch).metrics, second.update(batch).metrics
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert not changed(second.world_model, snapshot(first.world_model))
    assert not changed(second.controller, snapshot(first.controller))


@pytest.mark.parametrize("is_discrete", [True, False], ids=["discrete", "continuous"])
def test_acting_gives_actions_and_latents_without_a_graph_even_where_gradients_are_on(
    is_discrete: bool,
) -> None:
    workflow = tiny_workflow(IMAGE | VECTOR, is_discrete)
    before = count_graphs()
    with torch.enable_grad():
        steps = [workflow.collect_step(make_arrival(workflow, is_first=step == 0)) for step in range(3)]
        state = workflow.world_model.rssm._state
    assert state is not None and state.deter.grad_fn is None and state.stoch.grad_fn is None
    assert not any(x.requires_grad for x in (state.deter, state.stoch, *(c.latent.deter for c in steps)))
    assert count_graphs() == before
    collected = steps[-1]
    assert collected.action.dtype == np.float32 and collected.action.shape == (2, ACTIONS)
    assert torch.equal(collected.latent.deter, state.deter)
    assert torch.equal(collected.latent.stoch.long(), state.stoch.argmax(-1))
    assert not is_discrete or collected.action.sum(-1).tolist() == [1.0, 1.0]


def test_each_guard_of_acting_holds_alone() -> None:
    workflow = tiny_workflow()
    arrival = make_arrival(workflow, is_first=True)
    enabled: list[bool] = []
    handle = workflow.world_model.encoder.register_forward_hook(
        lambda *_: enabled.append(torch.is_grad_enabled())
    )
    workflow.collect_step(arrival)
    handle.remove()
    # This is the first guard.
    assert enabled == [False]
    noise = workflow.noise["collect"]
    _, returned = workflow.act(arrival, torch.zeros(2, ACTIONS), noise, noise, None)
    cached = workflow.world_model.rssm._state
    assert torch.is_grad_enabled() and cached is not None
    states = (cached.deter, cached.stoch, returned.deter, returned.stoch)
    # This is the second guard.
    assert not any(x.requires_grad for x in states)


def test_acting_remembers_its_last_action_and_an_episode_border_forgets_it() -> None:
    workflow = tiny_workflow()
    inputs: list[Tensor] = []
    core = workflow.world_model.rssm.core.action_in
    handle = core.register_forward_pre_hook(lambda _, args: inputs.append(args[0][:, 0].clone()))
    first = workflow.collect_step(make_arrival(workflow, is_first=True))
    workflow.collect_step(make_arrival(workflow))
    workflow.collect_step(make_arrival(workflow, is_first=True))
    handle.remove()
    assert torch.equal(inputs[0], torch.zeros(2, ACTIONS)) and torch.equal(inputs[2], torch.zeros(2, ACTIONS))
    assert torch.equal(inputs[1], torch.from_numpy(first.action))


def test_training_between_steps_does_not_touch_the_online_state() -> None:
    workflow = tiny_workflow()
    workflow.collect_step(make_arrival(workflow, is_first=True))
    state, draws = workflow.world_model.rssm._state, workflow.noise["collect"].get_state()
    workflow.update(make_batch(workflow))
    assert workflow.world_model.rssm._state is state
    assert torch.equal(workflow.noise["collect"].get_state(), draws)


def test_an_eval_policy_does_not_disturb_training() -> None:
    workflow = tiny_workflow()
    workflow.collect_step(make_arrival(workflow, is_first=True))
    state, previous = workflow.world_model.rssm._state, workflow._prev_action.clone()
    draws = {name: noise.get_state() for name, noise in workflow.noise.items()}
    before = snapshot(workflow.world_model)
    policy = workflow.eval_policy(num_envs=2, seed=1, sample=True)
    actions = [policy.act(make_arrival(workflow, is_first=step == 0)) for step in range(4)]
    assert [action.shape for action in actions] == [(2, ACTIONS)] * 4
    assert workflow.world_model.rssm._state is state and torch.equal(workflow._prev_action, previous)
    assert all(torch.equal(noise.get_state(), draws[name]) for name, noise in workflow.noise.items())
    assert not changed(workflow.world_model, before)
    assert not policy.state.deter.requires_grad


def test_policies_repeat_with_their_seed_and_follow_the_mode_when_asked() -> None:
    workflow = tiny_workflow(is_discrete=False)
    arrivals = [make_arrival(workflow, is_first=step == 0) for step in range(5)]

    def play(seed: int, sample: bool) -> np.ndarray:
        policy = workflow.eval_policy(num_envs=2, seed=seed, sample=sample)
        return np.stack([policy.act(arrival) for arrival in arrivals])

    np.testing.assert_array_equal(play(1, True), play(1, True))
    assert not np.array_equal(play(1, True), play(2, True))
    assert np.abs(play(1, False)).max() <= 1.0 < np.abs(play(1, True)).max()


def test_open_loop_pictures_stack_truth_prediction_and_error() -> None:
    workflow = tiny_workflow(IMAGE)
    batch = make_batch(workflow, batch=2, time=8)
    report = workflow.report(batch)
    assert report.keys() == {"image"}
    picture = report["image"]
    assert picture.shape == (8, 3 * 64, 2 * 64, 3) and picture.dtype == torch.uint8
    truth = batch.observation["image"][:, 1:]
    assert torch.equal(picture[:, :64], torch.cat([truth[0], truth[1]], 2))
    green, red = torch.tensor([0, 255, 0]), torch.tensor([255, 0, 0])
    assert all(torch.equal(picture[t, 64, 0].long(), green if t < 5 else red) for t in range(8))
    assert tiny_workflow(VECTOR).report(make_batch(tiny_workflow(VECTOR))) == {}
