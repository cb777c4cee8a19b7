"""What a run goes on from, beside the workflow and the replay, and what it must look like to be taken up."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.compatibility import MADE_WITH_KEY, made_with
from ...utils.durable_io import reading
from ...utils.seeding import global_state
from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec

if TYPE_CHECKING:
    from ..world_model_orchestrator import WorldModelOrchestrator


def loop_state(run: "WorldModelOrchestrator") -> dict[str, Any]:
    """Return all that a run goes on from, beside the workflow and the replay.

    What is due when follows from the step alone. The interval of the log that is under way goes on too.
    """
    return {
        MADE_WITH_KEY: made_with(run.config),
        "updates": run.updates,
        "ratio": run.owed.state_dict(),
        "environment": run.parts.environment.state_dict(),
        "episodes": run.tracker.state_dict(),
        "recorder": run.recorder.state_dict(),
        "means": run.means.state_dict(),
        "nonfinite": run.nonfinite.state_dict(),
        "best_return": run.best_return,
        "owes_evaluation": run.owes_evaluation,
        "global_generators": global_state(),
    }


def restore_loop(run: "WorldModelOrchestrator", checkpoint: Checkpoint) -> None:
    """Take up the state of the loop; environments and global generators follow in `run`.

    Raises:
        UserError: If a file holds what no run has written.
    """
    state = checkpoint.state()
    with reading(checkpoint.state_path):
        ratio = state["ratio"]
        own = {
            "updates": 0,
            "owes_evaluation": False,
            "ratio": {
                "start_step": None if ratio["start_step"] is None else 0,
                "paid": 0,
                "updates_per_step": run.owed.updates_per_step,
            },
            "episodes": run.tracker.state_dict(),
            "nonfinite": run.nonfinite.state_dict(),
        }
        _check(state, own, run.parts.environment.spec)
        run.step, run.updates = checkpoint.step, state["updates"]
        run.saved_step, run.owes_evaluation = run.step, state["owes_evaluation"]
        run.owed.load_state_dict(ratio)
        run.tracker.load_state_dict(state["episodes"])
        run.recorder.load_state_dict(state["recorder"])
        run.means.load_state_dict(state["means"])
        run.nonfinite.load_state_dict(state["nonfinite"])
        run.best_return = state["best_return"]


def _check(state: Mapping[str, Any], own: Mapping[str, Any], spec: EnvSpec) -> None:
    """Refuse what does not fit: numbers of another kind would fail some steps later, where nobody knows why.

    Args:
        state: As it was read.
        own: The same parts of a fresh loop, of those whose form never changes.
        spec: The environments of the run.

    Raises:
        ValueError: Naming the first thing that is wrong; also other errors of access to `state`.
    """
    check_structure({name: state[name] for name in own}, dict(own))
    environment, recorder = state["environment"], state["recorder"]
    lengths = [len(environment["actions"][name]) for name in sorted(environment["actions"])]
    check_structure(environment, _environment_form(spec, lengths))
    frames = None if recorder["frames"] is None else np.empty(recorder["frames"].shape, np.uint8)
    check_structure(recorder, {"wanted": False, "frames": frames})
    if frames is not None and frames.ndim != 4:
        raise ValueError(f"recorder/frames has {frames.ndim} axes instead of 4")
    if not isinstance(state["best_return"], float | None):
        raise ValueError("best_return is no number")


def _environment_form(spec: EnvSpec, lengths: list[int]) -> dict[str, Any]:
    """Return a state of environments whose open episodes have so many actions."""
    count = spec.num_envs
    observation = {key: np.empty((count, *each.shape), each.dtype) for key, each in spec.observation.items()}
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.empty(count, np.bool_))
    actions = [np.empty((length, spec.action.size), np.float32) for length in lengths]
    return {
        "next_episode": [0] * count,
        "seeds": [0] * count,
        "actions": {f"env{index:03d}": each for index, each in enumerate(actions)},
        "arrival": {"observation": observation, "reward": np.empty(count, np.float32), **flags},
    }
