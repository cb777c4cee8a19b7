from glob import glob

import matplotlib.pyplot as plt
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

steps, curves = np.linspace(0, 4_096, 50), []
for run in glob("logs/runs/ppo/CartPole-v1/*seeds_*/version_0"):
    events = EventAccumulator(run, size_guidance={"scalars": 0})
    events.Reload()
    values = events.Scalars("Rewards/rew_avg")
    curves.append(np.interp(steps, [value.step for value in values], [value.value for value in values]))
mean, error = np.mean(curves, 0), np.std(curves, 0, ddof=1) / np.sqrt(len(curves))
plt.plot(steps, mean)
plt.fill_between(steps, mean - 2 * error, mean + 2 * error, alpha=0.3)
plt.savefig("seeds.png")
