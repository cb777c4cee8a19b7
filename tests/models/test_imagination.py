"""Imagination: the prior rolled forward under a policy."""

import torch
from torch import Tensor

from reverie.models import LatentState

from .plain import BATCH, plain_step, random_state
from .tiny import ACTION_SIZE, TINY, seeded, tape, tiny_rssm


def test_imagination_is_the_plain_step_with_samples_of_the_prior() -> None:
    rssm = tiny_rssm()
    start, horizon = random_state(), 4
    actions = torch.randn(horizon, BATCH, ACTION_SIZE)
    noise = seeded(2).exponential(horizon, BATCH, TINY.stoch, TINY.classes)
    seen: list[LatentState] = []

    def policy(step: int, state: LatentState) -> Tensor:
        seen.append(state)
        return actions[step]

    states, taken = rssm.imagine(start, policy, horizon, tape(noise))
    assert torch.equal(taken, actions.transpose(0, 1)) and states.deter.shape == (
        BATCH,
        horizon + 1,
        TINY.deter,
    )
    assert torch.equal(states.deter[:, 0], start.deter) and torch.equal(states.stoch[:, 0], start.stoch)
    for t in range(horizon):
        state = states.select((slice(None), t))
        assert torch.equal(seen[t].feature, state.feature)
        deter = plain_step(rssm.core, state.deter, state.flat_stoch, actions[t])
        torch.testing.assert_close(states.deter[:, t + 1].double(), deter, atol=1e-5, rtol=1e-4)
        probs = 0.99 * rssm.prior_logits(states.deter[:, t + 1]).softmax(-1) + 0.01 / TINY.classes
        assert torch.equal(states.stoch[:, t + 1].argmax(-1), (probs / noise[t]).argmax(-1))
