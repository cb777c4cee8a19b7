"""Measure one action per environment with sheeprl's player, with images and results in host memory."""

import numpy as np
import torch
from serve import Server
from sheeprl.algos.dreamer_v3_5.utils import prepare_obs
from sheeprl_agent import build, compose, num_parameters

server = Server()
cfg = compose(server.options)
fabric, (world_model, actor, critic, _, player) = build(server.options, cfg)
num_envs = server.options["num_envs"]
model = cfg.algo.world_model
observation = {"rgb": np.random.default_rng(0).integers(256, size=(num_envs, 3, 64, 64), dtype=np.uint8)}
player.init_states()


def step() -> None:
    """Choose actions, and copy the values to be stored to the host."""
    # This follows the loop of sheeprl's `main`.
    with torch.inference_mode():
        prepared = prepare_obs(fabric, observation, cnn_keys=cfg.algo.cnn_keys.encoder, num_envs=num_envs)
        actions = player.get_actions(prepared)
        classes = player.stochastic_state.view(
            1, num_envs, model.stochastic_size, model.discrete_size
        ).argmax(-1)
        torch.stack([action.argmax(dim=-1) for action in actions], dim=-1).cpu().numpy()
        torch.cat(actions, -1).cpu().numpy()
        player.recurrent_state.half().cpu().numpy()
        classes.cpu().numpy().astype(np.uint8)


server.ready("sheeprl", parameters=num_parameters(world_model, actor, critic))
for _ in range(20):
    step()
server.run(step)
