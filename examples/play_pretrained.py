"""Load the Pong agent that comes with Reverie, and play: `python examples/play_pretrained.py [steps]`."""

import sys

import reverie

agent = reverie.load("pretrained:pong", device="cpu")
env = agent.make_env()
observation, info = env.reset(seed=0)
score, step, ended = 0.0, 0, False
while not ended and step < (int(sys.argv[1]) if len(sys.argv) > 1 else 300):
    observation, reward, terminated, truncated, info = env.step(agent.act(observation))
    score, step, ended = score + float(reward), step + 1, terminated or truncated
print(f"{agent}: score {score:+g} at step {step}")
