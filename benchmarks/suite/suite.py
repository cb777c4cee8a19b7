"""The rows of the suite by name."""

from collections.abc import Callable
from functools import partial

from benchmarks.suite.bench import Bench
from benchmarks.suite.loops import collect, end_to_end, end_to_end_replay, environment
from benchmarks.suite.memory import memory
from benchmarks.suite.networks import policy, update
from benchmarks.suite.population import members_act, members_update
from benchmarks.suite.replay import replay_add, replay_fill, replay_sample
from benchmarks.suite.results import Result
from reverie.utils.errors import UserError, did_you_mean

Row = Callable[[Bench, str], list[Result]]

_SIZES = ("size1m", "size12m")

ROWS: dict[str, Row] = {
    **{f"update_{size}": partial(update, size=size) for size in _SIZES},
    **{f"update_strided_{size}": partial(update, size=size, strided=True) for size in _SIZES},
    **{
        f"policy_step_{size}_{count}": partial(policy, size=size, num_envs=count)
        for size in _SIZES
        for count in (1, 8)
    },
    "replay_add": replay_add,
    "replay_sample": replay_sample,
    "replay_fill": replay_fill,
    **{f"environment_{count}": partial(environment, num_envs=count) for count in (1, 8)},
    "collect": collect,
    "end_to_end": end_to_end,
    "end_to_end_replay_16x64": partial(end_to_end_replay, preset=False),
    "end_to_end_replay_preset": partial(end_to_end_replay, preset=True),
    **{f"members_update_{hidden}": partial(members_update, hidden=hidden) for hidden in (64, 256)},
    "members_act_64": partial(members_act, hidden=64),
    **{f"memory_{size}": partial(memory, size=size) for size in _SIZES},
}
"""Each row's function by name. The function receives the name."""


def chosen_rows(text: str | None) -> list[str]:
    """Return the requested rows, in the order of the suite.

    Args:
        text: Comma-separated names or prefixes of names, or `None` for all rows.

    Raises:
        UserError: If an entry matches no row.
    """
    if text is None:
        return list(ROWS)
    chosen: set[str] = set()
    for asked in text.split(","):
        found = [name for name in ROWS if name == asked] or [
            name for name in ROWS if name.startswith(asked + "_")
        ]
        if not found:
            raise UserError(
                f"bench.rows={asked} is not a row. Choose from {', '.join(ROWS)}.{did_you_mean(asked, ROWS)}"
            )
        chosen.update(found)
    return [name for name in ROWS if name in chosen]
