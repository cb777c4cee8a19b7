"""The names of an environment's actions, and the keys that select them."""

from contextlib import closing
from itertools import product

from reverie.envs import EnvConfig, make_single

IDLE = "NOOP"
_DIGITS = 10


def action_names(env: EnvConfig, count: int) -> list[str]:
    """Return the names that an environment has for its `count` actions (e.g. Atari), or their numbers."""
    with closing(make_single(env)) as one:
        meanings = getattr(one.unwrapped, "get_action_meanings", list)
        names = [str(name) for name in meanings()]
    return names if len(names) == count else [str(index) for index in range(count)]


def key_map(names: list[str]) -> dict[str, int]:
    """Map each combination of pressed keys (arrows and space, or digits) to an action. "" means no key.

    With Atari's names, every combination selects an action, and keys that the game does not support are
    ignored. In a game with only right and left, such as Pong, up and down also select these. Without a no-op
    action, digits select the first ten actions.

    >>> key_map(["NOOP", "FIRE", "UP", "UPFIRE"])["up+left+fire"]
    3
    >>> key_map(["0", "1"])
    {'0': 0, '1': 1}
    """
    if IDLE not in names:
        return {str(index): index for index in range(min(_DIGITS, len(names)))}
    instead = {} if {"UP", "DOWN"} & {*names} else {"UP": "RIGHT", "DOWN": "LEFT"}
    keys: dict[str, int] = {}
    for held in product(("", "up", "down"), ("", "left", "right"), ("", "fire")):
        up, right, fire = (key.upper() for key in held)
        up = instead.get(up, up)
        wanted = (up + right + fire, right + fire, up + fire, up + right, right, up, fire, IDLE)
        known = next(name for name in wanted if name in names)
        keys["+".join(filter(None, held))] = names.index(known)
    return keys
