"""Settings of a population of learners: evolution and TD3."""

from dataclasses import dataclass

from ...utils.errors import UserError, require_range
from ...utils.units import count_text

# Factors and bounds of weights stay below float32's maximum.
_LARGEST = 1e30


@dataclass(kw_only=True, slots=True)
class PopulationConfig:
    """Settings of the population and its evolution, set by `configs/workflow/population.yaml`."""

    size: int = 16
    """Number of members. A single member trains with TD3 only, without evolution."""

    evolution: bool = True
    """Select, cross and mutate members. If off, members learn independently with a shared replay buffer."""

    gradient: bool = True
    """Train members with gradient descent. If off, only evolution changes them."""

    episodes: int = 1
    """Noise-free episodes per member in each generation. Their mean return is the member's fitness."""

    exploration_episodes: int = 1
    """Additional episodes with action noise per explorer in each generation. They only fill the replay
    buffer. With evolution, only the gradient learner explores. Without evolution, all members explore, unless
    `gradient` is off."""

    elite_fraction: float = 0.2
    """Fraction of members (the fittest) that evolution leaves unchanged, but at least one member."""

    tournament_size: int = 3
    """Members per tournament. The fittest becomes a parent."""

    crossover_rate: float = 0.15
    """Probability that a child inherits rows of weights from a second parent."""

    crossover_fraction: float = 0.3
    """Maximum fraction of rows of each weight matrix inherited from the second parent."""

    mutation_rate: float = 0.9
    """Probability that a child is mutated."""

    mutation_fraction: float = 0.1
    """Average fraction of the weights that a mutation changes in each tensor."""

    mutation_strength: float = 0.1
    """Standard deviation of a change, as a multiple of the weight."""

    super_mutation_rate: float = 0.05
    """Fraction of the changes that are 100 times as large."""

    reset_rate: float = 0.05
    """Fraction of the changes that redraw the weight from a normal distribution with unit variance."""

    weight_limit: float = 100.0
    """Maximum magnitude of a child's weights."""

    def __post_init__(self) -> None:
        require_range("population", self, "size", "episodes", "tournament_size", ge=1, le=10_000)
        require_range("population", self, "exploration_episodes", ge=0)
        crossover = ("elite_fraction", "crossover_rate", "crossover_fraction")
        mutation = ("mutation_rate", "mutation_fraction", "super_mutation_rate", "reset_rate")
        require_range("population", self, *crossover, *mutation, ge=0, le=1)
        require_range("population", self, "mutation_strength", "weight_limit", gt=0, le=_LARGEST)
        if self.super_mutation_rate + self.reset_rate > 1:
            raise UserError(
                f"population.super_mutation_rate={self.super_mutation_rate} and population.reset_rate="
                f"{self.reset_rate} must add up to at most 1, because they are fractions of the same changes."
            )
        if not (self.evolution or self.gradient):
            raise UserError(
                "population.evolution=off with population.gradient=off learns nothing. Switch one of them on."
            )
        if self.size == 1 and not self.gradient:
            raise UserError(
                "population.size=1 with population.gradient=off learns nothing: one member cannot evolve. "
                "Set population.size=16 or population.gradient=on."
            )
        if self.evolves and self.num_elites == self.size:
            raise UserError(
                f"population.elite_fraction={self.elite_fraction} makes all "
                f"{count_text(self.size, 'member')} elites, so evolution has no effect. "
                "Lower it, or set population.evolution=off."
            )

    @property
    def evolves(self) -> bool:
        """Whether evolution is enabled and there are several members to select from."""
        return self.evolution and self.size > 1

    @property
    def has_learner(self) -> bool:
        """Whether member 0 is the gradient learner. It is injected but never mutated or replaced."""
        return self.evolves and self.gradient

    @property
    def num_elites(self) -> int:
        """Number of members that evolution leaves unchanged."""
        return max(1, round(self.elite_fraction * self.size))

    @property
    def num_explorers(self) -> int:
        """Number of members, counted from member 0, that also play episodes with action noise."""
        if not self.gradient:
            return 0
        return 1 if self.evolves else self.size

    @property
    def num_rollouts(self) -> int:
        """Total number of episodes in a generation. It equals the number of environments."""
        return self.size * self.episodes + self.num_explorers * self.exploration_episodes


@dataclass(kw_only=True, slots=True)
class TD3Config:
    """Settings of TD3 for each member. Defaults are from Fujimoto et al. 2018 unless stated otherwise."""

    hidden_units: int = 256
    """Width of both hidden layers of actors and critics (400 and 300 in the paper)."""

    actor_learning_rate: float = 1e-3
    """Adam's learning rate for the actors."""

    critic_learning_rate: float = 1e-3
    """Adam's learning rate for the critics."""

    discount: float = 0.99
    """Gamma, per agent step, in [0, 1)."""

    tau: float = 0.005
    """Rate at which the target networks follow the trained networks, in (0, 1]."""

    policy_delay: int = 2
    """Critic updates per update of the actor and the target networks."""

    target_noise: float = 0.2
    """Standard deviation of the noise added to target actions in [-1, 1]."""

    target_noise_clip: float = 0.5
    """Maximum magnitude of the target noise."""

    exploration_noise: float = 0.1
    """Standard deviation of the noise added to actions in [-1, 1] in exploration episodes."""

    def __post_init__(self) -> None:
        require_range("td3", self, "hidden_units", ge=1, le=65_536)
        require_range("td3", self, "policy_delay", ge=1, le=1_000_000)
        require_range("td3", self, "actor_learning_rate", "critic_learning_rate", "tau", gt=0, le=1)
        require_range("td3", self, "target_noise", "target_noise_clip", "exploration_noise", ge=0)
        require_range("td3", self, "discount", ge=0, lt=1)
