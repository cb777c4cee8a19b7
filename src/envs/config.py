"""Settings of the environments; `configs/env/*.yaml` sets them."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..utils.errors import UserError, require_range


class Suite(Enum):
    """Source of environments."""

    atari = "atari"
    gymnasium = "gymnasium"
    catch = "catch"


# One after another in this process (best where a step costs less than a message), or each in its own process.
# The functional form, because `async` is a keyword.
Vectorization = Enum("Vectorization", {"sync": "sync", "async": "async"})


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """Settings of `make_environment`."""

    suite: Suite = Suite.atari
    """Source of the environment."""

    game: str = "pong"
    """Atari game in snake_case; used by suite atari."""

    id: str = "CartPole-v1"
    """Gymnasium id, `module:Name-v0` to import a module first; used by suite gymnasium."""

    kwargs: Any = None  # a mapping or null; OmegaConf replaces a typed mapping by none of its own
    """Arguments with which a Gymnasium environment is made, as in `env.kwargs.size=8`; null for none."""

    wrappers: list[Any] = field(default_factory=list)
    """Wrappers around a Gymnasium environment, the innermost first: a class as `module.Wrapper`, or with
    arguments as `{name: module.Wrapper, kwargs: {size: 8}}`."""

    num_envs: int = 1
    """Environments stepped together."""

    action_repeat: int = 4
    """How often each action is repeated; rewards are added up. The presets of Catch and Gymnasium have 1."""

    image_size: int = 64
    """Height and width of image observations, in pixels: a multiple of 16 from 48 to 256."""

    scale_bytes: bool = True
    """Scale uint8 images from the bounds of their space to 0..255, as images of other types are. Runs saved
    before this setting existed keep `false`, which reads their bytes as they are."""

    noop_max: int = 30
    """Most no-op frames at the start of an Atari episode; their number is drawn from the episode's seed."""

    sticky_actions: float = 0.0
    """Probability that an Atari frame repeats the action before; 0 as in Atari-100k."""

    full_action_space: bool = False
    """Whether all 18 Atari actions are offered instead of those that the game uses."""

    max_episode_frames: int = 108_000
    """Frames after which an Atari episode is truncated, no-ops apart; 108,000 are 30 minutes."""

    vectorization: Vectorization = Vectorization["sync"]
    """How Gymnasium environments run together: sync, or async with a process each."""

    time_limit: int | None = None
    """Frames after which a Gymnasium episode is truncated; null keeps the limit of the registered id."""

    worker_timeout: float = 60.0
    """Seconds without an answer after which a process of `vectorization=async` counts as hung; 0 waits
    forever. With `sync` a hang cannot be noticed."""

    max_restarts: int = 3
    """Gymnasium environments that may die, hang or raise before the run stops. Each is replaced by a new one,
    and its episode ends as truncated; a population plays it again."""

    def __post_init__(self) -> None:
        """Check the bounds of each field alone."""
        if not isinstance(self.kwargs, dict | None):
            raise UserError(f"env.kwargs must be a mapping, as by env.kwargs.size=8, got {self.kwargs}.")
        require_range("env", self, "num_envs", "action_repeat", "max_episode_frames", "time_limit", ge=1)
        if self.image_size not in range(48, 257, 16):  # here, before anything of that size is made
            limit = "env.image_size must be in [48, 256] and a multiple of 16"
            raise UserError(f"{limit}, got {self.image_size}. Set env.image_size=64.")
        require_range("env", self, "noop_max", "max_restarts", "worker_timeout", ge=0)
        require_range("env", self, "sticky_actions", ge=0, le=1)


def check_is_pong(env: EnvConfig, asked: str) -> None:
    """Refuse to probe what `pong_memory` cannot play again: another game, or one with chance in it.

    `asked` is what the user typed for it.
    """
    if (env.suite, env.game) != (Suite.atari, "pong"):
        name = env.game if env.suite is Suite.atari else env.suite.value
        raise UserError(f"{asked}: a probe reads the memory of Atari Pong, and this run plays {name}.")
    if env.sticky_actions:
        raise UserError(
            f"{asked}: a probe plays each game again, and env.sticky_actions={env.sticky_actions:g} is "
            "chance. Train with env.sticky_actions=0."
        )
