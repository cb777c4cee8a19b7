import matplotlib.pyplot as plt
import numpy as np
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.results_plotter import ts2xy

steps = np.linspace(0, 10_000, 50)
curves = [np.interp(steps, *ts2xy(load_results(f"logs/{seed}"), "timesteps")) for seed in (1, 2, 3)]
mean, error = np.mean(curves, 0), np.std(curves, 0, ddof=1) / np.sqrt(len(curves))
plt.plot(steps, mean)
plt.fill_between(steps, mean - 2 * error, mean + 2 * error, alpha=0.3)
plt.savefig("seeds.png")
