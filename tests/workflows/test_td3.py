"""TD3 with stacked members, compared with single members in plain PyTorch, and properties of stacking."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reverie.buffers import TransitionTable
from reverie.workflows.population.config import TD3Config
from reverie.workflows.population.members import Members, Sizes
from reverie.workflows.population.td3 import TD3, Microbatch, TrainPhase

SIZES = Sizes(observation=3, action=2, hidden=8)
CPU = torch.device("cpu")


def members_of(count: int, seed: int = 0) -> Members:
    torch.manual_seed(seed)
    members = Members(SIZES, count, CPU)
    # The targets differ, so that swapped networks are detected.
    for name in ("target_actor", "target_critic"):
        for tensor in members.networks[name].values():
            tensor.add_(0.1 * torch.randn(tensor.shape))
    return members


def microbatch_of(count: int, batch: int, seed: int = 1) -> Microbatch:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, batch)

    def normal(*width: int) -> Tensor:
        return torch.randn(*shape, *width, generator=generator)

    return Microbatch(
        observation=normal(3),
        action=normal(2).clamp(-1, 1),
        reward=normal(),
        next_observation=normal(3),
        is_terminal=normal() > 0.8,
        noise=normal(2),
    )


def modules_of(members: Members, row: int) -> dict[str, nn.Module]:
    kinds = {
        "actor": SIZES.actor,
        "critic": SIZES.critic,
        "target_actor": SIZES.actor,
        "target_critic": SIZES.critic,
    }
    modules: dict[str, nn.Module] = {}
    for name, make in kinds.items():
        modules[name] = make()
        modules[name].load_state_dict({key: each[row] for key, each in members.networks[name].items()})
    return modules


def plain_updates(
    members: Members, row: int, batches: list[Microbatch], config: TD3Config
) -> dict[str, nn.Module]:
    """Algorithm 1 of Fujimoto et al. 2018 for one member."""
    nets = modules_of(members, row)
    optimizers = {
        "critic": torch.optim.Adam(nets["critic"].parameters(), config.critic_learning_rate),
        "actor": torch.optim.Adam(nets["actor"].parameters(), config.actor_learning_rate),
    }
    for number, batch in enumerate(batches, start=1):
        seen, done, after = batch.observation[row], batch.action[row], batch.next_observation[row]
        with torch.no_grad():
            clip = config.target_noise_clip
            noise = (config.target_noise * batch.noise[row]).clamp(-clip, clip)
            action = (nets["target_actor"](after) + noise).clamp(-1, 1)
            future = nets["target_critic"](after, action).min(-1).values
            goes_on = 1 - batch.is_terminal[row].float()
            target = batch.reward[row] + config.discount * goes_on * future
        first, second = nets["critic"](seen, done).unbind(-1)
        loss = nn.functional.mse_loss(first, target) + nn.functional.mse_loss(second, target)
        optimizers["critic"].zero_grad()
        loss.backward()
        optimizers["critic"].step()
        if number % config.policy_delay:
            continue
        loss = -nets["critic"](seen, nets["actor"](seen))[:, 0].mean()
        optimizers["actor"].zero_grad()
        loss.backward()
        optimizers["actor"].step()
        with torch.no_grad():
            for name in ("actor", "critic"):
                pairs = zip(nets[f"target_{name}"].parameters(), nets[name].parameters(), strict=True)
                for target, trained in pairs:
                    target.copy_((1 - config.tau) * target + config.tau * trained)
    return nets


def assert_equal(members: Members, other: Members, rows: slice = slice(None)) -> None:
    for mine, theirs in zip(members.tensors(), other.tensors(), strict=True):
        assert torch.equal(mine, theirs[rows])


def test_every_member_learns_what_plain_td3_learns() -> None:
    config = TD3Config(hidden_units=8, policy_delay=2, tau=0.05)
    members, batches = members_of(3), [microbatch_of(3, 5, seed) for seed in range(6)]
    plain = [plain_updates(members, row, batches, config) for row in range(3)]
    for batch in batches:
        TD3(config).update(members, [batch])
    for row, nets in enumerate(plain):
        for name, module in nets.items():
            for key, expected in module.state_dict().items():
                torch.testing.assert_close(members.networks[name][key][row], expected, rtol=1e-4, atol=1e-6)


def test_accumulated_batches_are_one_large_batch() -> None:
    batches = [microbatch_of(2, 4, seed) for seed in range(6)]
    fields = ("observation", "action", "reward", "next_observation", "is_terminal", "noise")
    large = Microbatch(*(torch.cat([getattr(batch, name) for batch in batches], 1) for name in fields))
    config = TD3Config(hidden_units=8, policy_delay=1)
    together, apart, first_only = members_of(2), members_of(2), members_of(2)
    losses = TD3(config).update(together, [large])
    added = TD3(config).update(apart, batches)
    TD3(config).update(first_only, batches[:1])
    for name, loss in losses.items():
        torch.testing.assert_close(added[name], loss)
    for one, other in zip(together.tensors(), apart.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    gradients = [each.moments["critic"]["first"]["first.0.weight"] for each in (together, first_only)]
    assert not torch.allclose(*gradients, rtol=0.1)


def table() -> TransitionTable:
    """Return 50 transitions, from even rows to odd rows, so that each draw can be identified."""
    numbers = np.repeat(np.arange(50, dtype=np.float32), 2)
    seen = numbers[:, None] * np.array([0.01, -0.02, 0.03], np.float32)
    fields = {
        "observation.vector": seen + np.tile(np.array([0.0, 0.1], np.float32), 50)[:, None],
        "action": seen[:, :2].clip(-1, 1),
        "reward": seen[:, 0],
        "is_terminal": numbers % 7 == 0,
    }
    return TransitionTable(fields, np.arange(0, 100, 2))


def phase(*members: int, generation: int = 3) -> TrainPhase:
    return TrainPhase(seed=5, generation=generation, members=members, steps=4, accumulation=2, batch_size=6)


def test_a_group_of_members_learns_bit_for_bit_what_it_learns_among_all() -> None:
    config, whole = TD3Config(hidden_units=8), members_of(5)
    group = Members(SIZES, 2, CPU)
    group.load_rows(0, whole.rows(2, 4))
    losses = TD3(config).learn(whole, table(), phase(0, 1, 2, 3, 4))
    of_group = TD3(config).learn(group, table(), phase(2, 3))
    assert_equal(group, whole, slice(2, 4))
    assert all(torch.equal(of_group[name], losses[name][2:4]) for name in losses)
    assert group.updates == whole.updates == 4


def test_members_learn_from_batches_of_their_own_that_change_with_the_generation() -> None:
    config = TD3Config(hidden_units=8)
    twins = Members(SIZES, 2, CPU)
    twins.gather_members(torch.tensor([0, 0]))
    again = copy.deepcopy(twins)
    TD3(config).learn(twins, table(), phase(0, 1))
    TD3(config).learn(again, table(), phase(0, 1, generation=4))
    weights = twins.networks["critic"]["first.0.weight"]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights, again.networks["critic"]["first.0.weight"])


def test_a_truncated_episode_has_a_future_and_a_terminal_has_none() -> None:
    members, batch = members_of(1), microbatch_of(1, 4)
    reward, learner = 7.0, TD3(TD3Config(hidden_units=8, discount=0.5, target_noise=0.0))
    fields = {"reward": torch.full((1, 4), reward), "noise": batch.noise}
    given = {
        "observation": batch.observation,
        "action": batch.action,
        "next_observation": batch.next_observation,
    }
    with torch.no_grad():
        after = members.act(members.networks["target_actor"], batch.next_observation)
        future = members.q_values(members.networks["target_critic"], batch.next_observation, after).amin(-1)
        now = members.q_values(members.networks["critic"], batch.observation, batch.action)
    for is_terminal, target in ((True, torch.full((1, 4), reward)), (False, reward + 0.5 * future)):
        flags = torch.full((1, 4), is_terminal)
        loss = learner.critic_loss(
            members, members.networks["critic"], Microbatch(**given, **fields, is_terminal=flags)
        )
        torch.testing.assert_close(loss, (now - target[..., None]).square().mean(1).sum(-1))


def test_the_actors_loss_moves_no_critic() -> None:
    members, learner = members_of(2), TD3(TD3Config(hidden_units=8))
    leaves = {name: each.clone().requires_grad_() for name, each in members.networks["actor"].items()}
    learner.actor_loss(members, leaves, microbatch_of(2, 4)).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves.values())
    assert all(not tensor.requires_grad for tensor in members.tensors())


def test_nothing_that_lives_on_holds_a_graph() -> None:
    members = members_of(2)
    losses = TD3(TD3Config(hidden_units=8)).learn(members, table(), phase(0, 1))
    assert all(
        each.grad_fn is None and not each.requires_grad for each in (*members.tensors(), *losses.values())
    )


def test_a_member_that_is_not_finite_goes_back_alone() -> None:
    members = members_of(3)
    before = members.rows(0, 3)
    for tensor in members.networks["actor"].values():
        tensor.add_(1)
    next(iter(members.networks["critic"].values()))[1, 0] = torch.nan
    assert members.revert_nonfinite(before) == [1]
    changed = Members(SIZES, 3, CPU)
    changed.load_rows(0, before)
    for mine, old in zip(members.networks["actor"].values(), changed.networks["actor"].values(), strict=True):
        assert torch.equal(mine[1], old[1])
        assert torch.equal(mine[0], old[0] + 1) and torch.equal(mine[2], old[2] + 1)
    assert all(tensor.isfinite().all() for tensor in members.tensors())


def test_a_state_with_the_names_of_earlier_versions_is_loaded() -> None:
    members, other = members_of(2), members_of(2, seed=1)
    state = copy.deepcopy(other.state_dict())
    state["networks"] = {
        name.replace("target_", "slow_"): stacked for name, stacked in state["networks"].items()
    }
    members.load_state_dict(state)
    assert_equal(members, other)


def test_a_state_of_other_sizes_is_refused_and_changes_nothing() -> None:
    members, other = members_of(2), Members(Sizes(3, 2, 9), 2, CPU)
    before = members.rows(0, 2)
    with pytest.raises(ValueError, match="instead of"):
        members.load_state_dict(other.state_dict())
    same = Members(SIZES, 2, CPU)
    same.load_rows(0, before)
    assert_equal(members, same)


def test_rows_are_copies() -> None:
    members = members_of(2)
    rows = members.rows(0, 1)
    for tensor in members.tensors():
        tensor.zero_()
    assert any(each.abs().sum() > 0 for each in rows["networks"]["actor"].values())
