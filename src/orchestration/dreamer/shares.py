"""What each of several ranks has of a run: its environments, its replay, its windows of every batch."""

import math
from dataclasses import replace

from ...config.dreamer import DreamerTrainConfig
from ...utils.errors import UserError
from ...utils.units import count_text


def check_share(config: DreamerTrainConfig, size: int) -> None:
    """Refuse a run that `size` ranks cannot share."""
    if size == 1:
        return
    values = {"env.num_envs": config.env.num_envs, "training.batch_size": config.training.batch_size}
    for key, value in values.items():
        if value % size:
            below, above = value // size * size, (value // size + 1) * size
            repair = f"Set {key}={f'{below} or {above}' if below else above}"
            if config.resume is not None:  # a resumed run cannot change these two
                common = math.gcd(*values.values())
                fitting = [str(number) for number in range(1, common + 1) if common % number == 0]
                repair = f"Continue the run with {' or '.join(fitting)} of them"
            problem = f"{key}={value} cannot be divided evenly among {count_text(size, 'rank')}"
            raise UserError(f"{problem}. {repair}.")
    do_without = "Leave it out, or do without torchrun"
    refused = {
        "buffer.prefill": (config.buffer.prefill is not None, do_without),
        "training.offline": (config.training.offline, "Set training.offline=false"),
        "checkpoint.mirror": (config.checkpoint.mirror is not None, "Set checkpoint.mirror=null"),
        "training.probe_interval": (config.training.probe_interval > 0, "Set training.probe_interval=0"),
        "collect.collectors": (config.collect.collectors > 0, do_without),
    }
    for key, repair in ((key, repair) for key, (is_set, repair) in refused.items() if is_set):
        raise UserError(f"{key} is for one process, and {count_text(size, 'rank')} share this run. {repair}.")


def share_of(config: DreamerTrainConfig, size: int) -> DreamerTrainConfig:
    """Return the part of a run that one of `size` ranks has, as a run of its own."""
    if size == 1:
        return config
    buffer, training = config.buffer, config.training
    return replace(
        config,
        env=replace(config.env, num_envs=config.env.num_envs // size),
        buffer=replace(
            buffer,
            capacity=buffer.capacity // size,
            memory_budget_gib=buffer.memory_budget_gib / size,
        ),
        training=replace(training, batch_size=training.batch_size // size),
    )
