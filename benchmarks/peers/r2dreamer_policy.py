"""Measure one action per environment with r2dreamer's agent, with images and results in host memory."""

import torch
from r2dreamer_agent import build, compose, facts
from serve import Server
from tensordict import TensorDict

server = Server()
cfg = compose(server.options)
agent = build(server.options, cfg)
num_envs = server.options["num_envs"]
observation = TensorDict(
    {
        "image": torch.randint(256, (num_envs, 64, 64, 3), dtype=torch.uint8),
        "is_first": torch.zeros(num_envs, 1, dtype=torch.bool),
    },
    (num_envs,),
)
state = agent.get_initial_state(num_envs)


def step() -> None:
    """Choose actions, and copy the values to be stored to the host."""
    global state
    # This follows the loop of r2dreamer's trainer. The copy is needed, because acting overwrites the images
    # with floats.
    action, state = agent.act(observation.to(cfg.device).clone(), state)
    action.cpu()
    state.cpu()


server.ready("tensordict", **facts(server.options, agent))
for _ in range(20):
    step()
server.run(step)
