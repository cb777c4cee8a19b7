"""One gradient step of sheeprl's `dreamer_v3_5` on a batch of random pixels, without its metrics."""

import hydra
import torch
from serve import Server
from sheeprl.algos.dreamer_v3_5.dreamer_v3_5 import train, update_target_critic
from sheeprl.algos.dreamer_v3_5.utils import Moments
from sheeprl_agent import ACTIONS, build, compose, num_parameters

server = Server()
cfg = compose(server.options)
fabric, (world_model, actor, critic, target_critic, _) = build(server.options, cfg)
optimizer = hydra.utils.instantiate(
    cfg.algo.optimizer,
    params=[*world_model.parameters(), *actor.parameters(), *critic.parameters()],
    _convert_="all",
)
optimizer = fabric.setup_optimizers(optimizer)
percentile = cfg.algo.actor.moments.percentile
moments = Moments(cfg.algo.actor.moments.decay, cfg.algo.actor.moments.max, percentile.low, percentile.high)

length, batch = cfg.algo.per_rank_sequence_length + cfg.algo.replay_context, cfg.algo.per_rank_batch_size
model = cfg.algo.world_model
generator = torch.Generator().manual_seed(0)
zeros = torch.zeros(length, batch, 1)
data = {
    "rgb": torch.randint(256, (length, batch, 3, 64, 64), dtype=torch.uint8, generator=generator),
    "actions": torch.eye(ACTIONS)[torch.randint(ACTIONS, (length, batch), generator=generator)],
    "rewards": torch.randn(length, batch, 1, generator=generator),
    "is_first": zeros,
    "terminated": zeros,
    "truncated": zeros,
    "deter": torch.zeros(length, batch, model.recurrent_model.recurrent_state_size, dtype=torch.float16),
    "stoch": torch.zeros(length, batch, model.stochastic_size, dtype=torch.uint8),
}
data = {name: values.to(fabric.device) for name, values in data.items()}


def update() -> None:
    """Run one gradient step and update the slow critic."""
    train(
        fabric,
        cfg,
        world_model,
        actor,
        critic,
        target_critic,
        optimizer,
        moments,
        dict(data),
        None,
        (ACTIONS,),
    )
    update_target_critic(critic, target_critic, cfg.algo.critic.tau)


server.ready("sheeprl", parameters=num_parameters(world_model, actor, critic))
update()
server.run(update)
