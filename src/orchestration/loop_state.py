"""What the saved state of a loop must look like before anything of it is taken up."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..utils.records import EnvSpec
from ..utils.state_files import require_same_form


def check_loop_state(state: Mapping[str, Any], own: Mapping[str, Any], spec: EnvSpec) -> None:
    """Refuse what does not fit: numbers of another kind would fail some steps later, where nobody knows why.

    Args:
        state: As it was read.
        own: The same parts of a fresh loop, of those whose form never changes.
        spec: The environments of the run.

    Raises:
        ValueError: Naming the first thing that is wrong; also other errors of access to `state`.
    """
    require_same_form({name: state[name] for name in own}, dict(own))
    environment, recorder = state["environment"], state["recorder"]
    lengths = [len(environment["actions"][name]) for name in sorted(environment["actions"])]
    require_same_form(environment, _environment_form(spec, lengths))
    frames = None if recorder["frames"] is None else np.empty(recorder["frames"].shape, np.uint8)
    require_same_form(recorder, {"wanted": False, "frames": frames})
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
