import torch
from lightning import Fabric
from omegaconf import OmegaConf
from sheeprl.algos.ppo.agent import build_agent
from sheeprl.algos.ppo.utils import prepare_obs
from sheeprl.utils.env import make_env
from sheeprl.utils.utils import dotdict

run = "logs/runs/ppo/CartPole-v1/2026-11-24_20-43-35_ppo_CartPole-v1_42/version_0"
cfg = dotdict(OmegaConf.to_container(OmegaConf.load(f"{run}/config.yaml"), resolve=True))
fabric = Fabric(accelerator="cpu", devices=1)
state = fabric.load(f"{run}/checkpoint/ckpt_41984_0.ckpt")
env = make_env(cfg, 0, 0, run, "play")()
player = build_agent(fabric, (env.action_space.n,), False, cfg, env.observation_space, state["agent"])[1]
observation, info = env.reset()
with torch.no_grad():
    actions = player.get_actions(prepare_obs(fabric, observation, cnn_keys=cfg.algo.cnn_keys.encoder), greedy=True)
action = actions[0].argmax(dim=-1).item()
print(action)
