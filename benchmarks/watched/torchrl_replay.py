"""TorchRL's collector, replay with a LazyTensorStorage, and DQN loss on CartPole."""

import argparse

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import CatFrames, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.envs.transforms import Compose, UnsqueezeTransform
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10_000, help="optimiser steps")
parser.add_argument("--stack", type=int, default=64, help="frames in an observation")
steps, stack = vars(parser.parse_args()).values()

torch.set_num_threads(1)
torch.manual_seed(1)
frames = Compose(
    UnsqueezeTransform(dim=-2, in_keys=["observation"]),
    CatFrames(N=stack, dim=-2, in_keys=["observation"]),
    InitTracker(),
    StepCounter(),
)
env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), frames)
env.set_seed(1)
network = torch.nn.Sequential(torch.nn.Flatten(-2), MLP(4 * stack, 2, num_cells=[64, 64]))
actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
explorer = TensorDictSequential(actor, EGreedyModule(env.action_spec, annealing_num_steps=5_000))
loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
updater = SoftUpdate(loss_module, eps=0.99)
optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(8 * steps + 10_000), batch_size=64)

for data in Collector(env, explorer, frames_per_batch=64, total_frames=4 * steps):
    replay.extend(data.reshape(-1))
    for _ in range(16):
        loss = loss_module(replay.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updater.step()
