"""Checks on the loop's saved state and replay before training starts or resumes."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...buffers import EpisodeReplayBuffer
from ...config.dreamer import DreamerTraining
from ...envs import state_form
from ...utils.errors import UserError
from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec, TimeStep
from ...utils.units import count_text
from ..instruments import Instrument


def check_form(
    state: Mapping[str, Any], counted: Mapping[str, Any], updates_per_step: float, env: EnvSpec
) -> None:
    """Raise an error if a saved state does not match the run. Otherwise obscure errors would follow later.

    `counted` contains those entries of the run's own state that have a fixed structure.
    """
    environment = state["environment"]
    start_step = None if state["ratio"]["start_step"] is None else 0
    own = {
        "updates": 0,
        "ratio": {"start_step": start_step, "paid": 0, "updates_per_step": updates_per_step},
        "environment": {"starts": 0},
        **counted,
    }
    # Older checkpoints lack `info`.
    environment.get("arrival", {}).setdefault("info", TimeStep.empty(env).info)
    if "arrival" in environment and "starts" in environment:
        # Only the environment knows the structure of its own state.
        arrival = TimeStep.empty(env).arrays()
        own["environment"] = {**environment, "starts": 0, "arrival": arrival}
    # Collectors save only how often they were started.
    elif "starts" not in environment:
        own["environment"] = state_form(env, [len(actions) for actions in environment["actions"].values()])
    check_structure({name: state[name] for name in own}, own)


def require_windows(replay: EpisodeReplayBuffer) -> None:
    """Raise a `UserError` if the replay of an offline run does not contain a single window."""
    if not replay.can_sample:
        or_cross = "" if replay.config.cross_episodes else ", or set buffer.cross_episodes=true"
        raise UserError(
            f"training.offline=true has {count_text(replay.total_steps, 'record')}, but no window of "
            f"training.sequence_length={replay.window_length - 1}. Lower it, or prefill more "
            f"episodes{or_cross}."
        )


def first_times(training: DreamerTraining, step: int, instruments: Iterable[Instrument]) -> list[str]:
    """Return the first-time events that this process expects after `step`. Each may increase memory use."""
    joint = max(training.warmup_steps, training.first_update)
    due = {"first joint update": max(joint, step + 1)}
    if step < training.warmup_steps:
        due["first update"] = max(training.first_update, step + 1)
    intervals = {each.event: each.interval for each in instruments if each.event}
    intervals["first checkpoint"] = training.checkpoint_interval
    due |= {name: (step // interval + 1) * interval for name, interval in intervals.items() if interval}
    return [name for name, at in due.items() if at < training.total_timesteps]
