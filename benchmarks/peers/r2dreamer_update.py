"""One gradient step of r2dreamer on a prepared batch of random pixels, without its replay."""

import torch
from r2dreamer_agent import ACTIONS, build, compose, facts
from serve import Server
from tensordict import TensorDict

server = Server()
cfg = compose(server.options)
agent = build(server.options, cfg)
shape = (cfg.batch_size, cfg.batch_length)
generator = torch.Generator().manual_seed(0)
no_flag = torch.zeros(*shape, 1, dtype=torch.bool)
data = TensorDict(
    {
        "image": torch.randint(256, (*shape, 64, 64, 3), dtype=torch.uint8, generator=generator),
        "action": torch.eye(ACTIONS)[torch.randint(ACTIONS, shape, generator=generator)],
        "reward": torch.randn(*shape, 1, generator=generator),
        "is_first": no_flag,
        "is_last": no_flag,
        "is_terminal": no_flag,
    },
    shape,
).to(cfg.device)
initial = agent.rssm.initial(cfg.batch_size)


class AtHand:
    """Replaces the replay in `Dreamer.update`."""

    def sample(self) -> tuple[TensorDict, None, tuple[torch.Tensor, torch.Tensor]]:
        """Return a copy of the batch, because the update replaces its images with floats."""
        return data.clone(recurse=False), None, initial

    def update(self, index: None, stoch: torch.Tensor, deter: torch.Tensor) -> None:
        """Discard the latents."""


at_hand = AtHand()
server.ready("tensordict", **facts(server.options, agent))
agent.update(at_hand)
server.run(lambda: agent.update(at_hand))
