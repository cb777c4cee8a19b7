"""Settings of the environments, set by `configs/env/*.yaml`."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..utils.errors import UserError, require_range


class Suite(Enum):
    """Source of environments."""

    atari = "atari"
    gymnasium = "gymnasium"
    catch = "catch"
    dmc = "dmc"
    crafter = "crafter"
    vector = "vector"


class Observations(Enum):
    """Observations of the DeepMind Control Suite: positions and velocities, an image, or both."""

    proprio = "proprio"
    pixels = "pixels"
    both = "both"


# Gymnasium's RecordEpisodeStatistics also reports episode/t. This duration would differ between equal runs.
_DETECTED = ("success", "is_success", "episode/r", "episode/l")
"""Numbers that are logged without being listed in `env.info`."""

# The functional form is needed because `async` is a keyword.
Vectorization = Enum("Vectorization", {"sync": "sync", "async": "async"})


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """Settings of `make_environment`."""

    suite: Suite = Suite.atari
    """Source of the environment."""

    game: str = "pong"
    """Atari game in snake_case. Used only by the atari suite."""

    id: str = "CartPole-v1"
    """Gymnasium id, or `module:Name-v0` to import a module first. Used by the gymnasium and vector suites."""

    task: str = "walker_walk"
    """Task of the DeepMind Control Suite as domain_task. Used only by the dmc suite."""

    observations: Observations = Observations.proprio
    """Observations of the DeepMind Control Suite: proprio, pixels or both. Used only by the dmc suite."""

    # The value is a mapping or null, but OmegaConf cannot replace a typed mapping with null.
    kwargs: Any = None
    """Arguments of the Gymnasium environment, e.g. `env.kwargs.size=8`, or null."""

    wrappers: list[Any] = field(default_factory=list)
    """Wrappers for a Gymnasium environment, innermost first. Each is a class, `module.Wrapper`, or a class
    with arguments, `{name: module.Wrapper, kwargs: {size: 8}}`."""

    info: list[str] = field(default_factory=list)
    """Numbers to log from the `info` of each episode's last step, e.g. [energy,goal/distance]. A slash
    selects an entry of a nested dict. `success`, `is_success`, `episode/r` and `episode/l` are always logged
    if they exist. Not supported by the atari suite and by populations."""

    num_envs: int = 1
    """Number of environments that are stepped together."""

    action_repeat: int = 4
    """Number of frames for which each action is repeated. Rewards are summed. Presets use 2 for the control
    suite, and 1 for Catch, Crafter and Gymnasium."""

    image_size: int = 64
    """Height and width of image observations, in pixels: a multiple of 16 from 48 to 256."""

    scale_bytes: bool = True
    """Scale uint8 images from the bounds of their space to 0..255, as is done for images of other types.
    `false` leaves bytes unchanged, as in runs saved before this setting existed."""

    noop_max: int = 30
    """Maximum number of no-op frames at the start of an Atari episode. The number depends on the seed."""

    sticky_actions: float = 0.0
    """Probability that an Atari frame repeats the previous action. Atari-100k uses 0."""

    full_action_space: bool = False
    """Offer all 18 Atari actions instead of only those that the game uses."""

    max_episode_frames: int = 108_000
    """Frames, excluding no-ops, after which an Atari episode is truncated. 108,000 frames last 30 minutes."""

    vectorization: Vectorization = Vectorization["sync"]
    """Run Gymnasium environments in this process (sync, best for fast steps), or each in its own (async)."""

    time_limit: int | None = None
    """Frames after which a Gymnasium episode is truncated. `null` keeps the limit of the registered id."""

    worker_timeout: float = 60.0
    """Timeout of `vectorization=async` processes in seconds, or 0 for none. `sync` cannot detect hangs."""

    max_restarts: int = 3
    """Number of times that Gymnasium environments may die, hang or raise an exception before the run stops. A
    failed environment is replaced. Its episode is truncated and has no return. Evaluations play another one,
    and a population repeats it."""

    def __post_init__(self) -> None:
        """Check the bounds of individual fields, before images of this size are allocated."""
        if not isinstance(self.kwargs, dict | None):
            raise UserError(f"env.kwargs must be a mapping, e.g. env.kwargs.size=8, got {self.kwargs}.")
        require_range("env", self, "num_envs", "action_repeat", "max_episode_frames", "time_limit", ge=1)
        if self.image_size not in range(48, 257, 16):
            limit = "env.image_size must be in [48, 256] and a multiple of 16"
            raise UserError(f"{limit}, got {self.image_size}. Set env.image_size=64.")
        require_range("env", self, "noop_max", "max_restarts", "worker_timeout", ge=0)
        require_range("env", self, "sticky_actions", ge=0, le=1)
        if self.suite is Suite.vector and (self.wrappers or self.action_repeat != 1):
            key = "env.wrappers" if self.wrappers else f"env.action_repeat={self.action_repeat}"
            repair = f"Omit it, and wrap the environment in the function that makes it, {self.choice}"
            raise UserError(f"{key} applies to single environments, but env=vector steps a batch. {repair}.")

    @property
    def info_names(self) -> tuple[str, ...]:
        """Names of all numbers that are logged if an environment reports them."""
        return tuple(dict.fromkeys((*self.info, *_DETECTED)))

    @property
    def label(self) -> str:
        """Name of the environment in messages: `atari/pong`, `dmc/walker_walk`, `CartPole-v1`, `catch`."""
        labels = {Suite.atari: f"atari/{self.game}", Suite.dmc: f"dmc/{self.task}"}
        labels |= dict.fromkeys((Suite.gymnasium, Suite.vector), self.id)
        return labels.get(self.suite, self.suite.value)

    @property
    def choice(self) -> str:
        """The setting that chooses the environment: `env.id=CartPole-v1`, `env.task=walker_walk`."""
        choices = dict.fromkeys((Suite.gymnasium, Suite.vector), f"env.id={self.id}")
        choices |= {Suite.dmc: f"env.task={self.task}"}
        return choices.get(self.suite, f"env={self.suite.value}")
