import torch
from hydra import compose, initialize
from hydra.utils import instantiate
from omegaconf import OmegaConf
from agent import Agent
from envs import make_atari_env
from utils import get_path_agent_ckpt

OmegaConf.register_new_resolver("eval", eval)
with initialize(version_base="1.3", config_path="../config"):
    cfg = compose(config_name="trainer")
env = make_atari_env(num_envs=1, device=torch.device("cpu"), **cfg.env.test)
agent = Agent(instantiate(cfg.agent, num_actions=env.num_actions)).eval()
agent.load(get_path_agent_ckpt("checkpoints", epoch=-1))
observation, info = env.reset()
memory = torch.zeros(1, agent.actor_critic.lstm_dim), torch.zeros(1, agent.actor_critic.lstm_dim)
with torch.no_grad():
    logits = agent.actor_critic.predict_act_value(observation, memory).logits_act
action = logits.argmax(-1)
