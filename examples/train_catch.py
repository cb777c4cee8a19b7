"""Train on Catch with a callback: `python examples/train_catch.py [steps]`.

All 3,800 steps take about ten CPU minutes.
"""

import sys

import reverie

returns: list[float] = []


def show(step: int, values: dict[str, float]) -> None:
    """Print the mean of the last 50 returns after every 50th episode. `values` is a line of metrics.jsonl."""
    if "episode/return" in values:
        returns.append(values["episode/return"])
        if len(returns) % 50 == 0:
            print(f"step {step:,}: {len(returns)} episodes, mean return {sum(returns[-50:]) / 50:+.2f}")


steps = int(sys.argv[1]) if len(sys.argv) > 1 else None
run = reverie.train("dreamer_catch", total_timesteps=steps, device="cpu", callback=show)
print(f"{run.agent}, {len(returns)} episodes, saved in {run.run_dir}")
