"""Imagination: rolling the prior forward under a policy."""

import torch
from torch import Tensor

from reverie.models import LatentState

from .plain import BATCH, plain_step, random_state
from .tiny import ACTION_SIZE, TINY, seeded, tiny_rssm


def test_imagination_is_the_plain_step_with_samples_of_the_prior() -> None:
    rssm = tiny_rssm()
    start, horizon = random_state(), 4
    actions = torch.randn(horizon, BATCH, ACTION_SIZE)
    noise = seeded(2).exponential(horizon, BATCH, TINY.stoch, TINY.classes)
    seen: list[LatentState] = []

    def policy(step: int, state: LatentState) -> Tensor:
        seen.append(state)
        return actions[step]

    states, taken = rssm.imagine(start, policy, noise)
    assert torch.equal(torch.stack(taken), actions) and len(states) == horizon + 1
    assert states[0] is start
    for t in range(horizon):
        state = states[t]
        assert seen[t] is state
        deter = plain_step(rssm.core, state.deter, state.flat_stoch, actions[t])
        torch.testing.assert_close(states[t + 1].deter.double(), deter, atol=1e-5, rtol=1e-4)
        probs = 0.99 * rssm.prior_logits(states[t + 1].deter).softmax(-1) + 0.01 / TINY.classes
        assert torch.equal(states[t + 1].stoch.argmax(-1), (probs / noise[t]).argmax(-1))


def test_a_table_of_all_actions_gives_what_each_action_gives() -> None:
    rssm = tiny_rssm()
    start, horizon = random_state(), 3
    actions = torch.eye(ACTION_SIZE)[torch.randint(ACTION_SIZE, (horizon, BATCH))]
    noise = seeded(2).exponential(horizon, BATCH, TINY.stoch, TINY.classes)
    table, plain = (
        rssm.imagine(start, lambda step, _: actions[step], noise, is_onehot=is_onehot)[0]
        for is_onehot in (True, False)
    )
    for one, other in zip(table, plain, strict=True):
        torch.testing.assert_close(one.deter, other.deter)
        assert torch.equal(one.stoch, other.stoch)
