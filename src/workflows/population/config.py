"""Settings of a population of learners: its evolution, and TD3 of each member."""

from dataclasses import dataclass

from ...utils.errors import UserError, require_range
from ...utils.units import count_text

_LARGEST = 1e30  # of what multiplies or bounds weights, which are float32


@dataclass(kw_only=True, slots=True)
class PopulationConfig:
    """Settings of the population and of its evolution; `configs/workflow/population.yaml` sets them."""

    size: int = 16
    """Number of members. With 1 there is no evolution: TD3 alone."""

    evolution: bool = True
    """Whether members are selected, crossed and mutated; off leaves learners that share one replay."""

    gradient: bool = True
    """Whether members learn by gradient; off leaves evolution alone."""

    episodes: int = 1
    """Episodes of each member in a generation, without noise: their mean return is its fitness."""

    exploration_episodes: int = 1
    """Further episodes of each explorer in a generation, with action noise, for the replay alone. Explorers
    are all members without evolution, the gradient learner with it, and none without gradients."""

    elite_fraction: float = 0.2
    """Share of the members, the fittest, that evolution leaves as they are; at least one member."""

    tournament_size: int = 3
    """Members of which the fittest becomes a parent."""

    crossover_rate: float = 0.15
    """Probability that a child takes rows of weights from a second parent."""

    crossover_fraction: float = 0.3
    """Share of the rows of each weight matrix that it takes, at most."""

    mutation_rate: float = 0.9
    """Probability that a child is mutated."""

    mutation_fraction: float = 0.1
    """Share of the weights of each tensor of a mutated child that change, on average."""

    mutation_strength: float = 0.1
    """Standard deviation of a change, as a multiple of the weight."""

    super_mutation_rate: float = 0.05
    """Share of the changes that are 100 times as strong."""

    reset_rate: float = 0.05
    """Share of the changes that redraw the weight from a normal distribution of unit variance."""

    weight_limit: float = 100.0
    """No weight of a child is larger than this in magnitude."""

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
                f"{self.reset_rate} are shares of the same changes: together they must be at most 1."
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
                f"{count_text(self.size, 'member')} elites, which leaves none to evolve. "
                "Lower it, or set population.evolution=off."
            )

    @property
    def evolves(self) -> bool:
        """Whether there is evolution: it is on, and there are members to select from."""
        return self.evolution and self.size > 1

    @property
    def has_learner(self) -> bool:
        """Whether member 0 is the gradient learner: never mutated nor replaced, and injected."""
        return self.evolves and self.gradient

    @property
    def num_elites(self) -> int:
        """Members that evolution leaves as they are."""
        return max(1, round(self.elite_fraction * self.size))

    @property
    def num_explorers(self) -> int:
        """Number of members, the first ones, that also play with action noise."""
        if not self.gradient:
            return 0
        return 1 if self.evolves else self.size

    @property
    def num_rollouts(self) -> int:
        """Episodes of all members in a generation, which is the number of environments."""
        return self.size * self.episodes + self.num_explorers * self.exploration_episodes


@dataclass(kw_only=True, slots=True)
class TD3Config:
    """Settings of TD3, which each member learns by; the defaults are those of Fujimoto et al. 2018."""

    hidden_units: int = 256
    """Width of the two hidden layers of actor and critics; in the paper 400 and 300."""

    actor_learning_rate: float = 1e-3
    """Step size of Adam for the actors."""

    critic_learning_rate: float = 1e-3
    """Step size of Adam for the critics."""

    discount: float = 0.99
    """Gamma, per agent step, in [0, 1)."""

    tau: float = 0.005
    """Share of the networks that their target networks take over at each update, in (0, 1]."""

    policy_delay: int = 2
    """Updates of the critics for one of the actor and the targets."""

    target_noise: float = 0.2
    """Standard deviation of the noise on the target's action, where actions lie in [-1, 1]."""

    target_noise_clip: float = 0.5
    """The largest such noise."""

    exploration_noise: float = 0.1
    """Standard deviation of the noise of exploring episodes, where actions lie in [-1, 1]."""

    def __post_init__(self) -> None:
        require_range("td3", self, "hidden_units", ge=1, le=65_536)
        require_range("td3", self, "policy_delay", ge=1, le=1_000_000)
        require_range("td3", self, "actor_learning_rate", "critic_learning_rate", "tau", gt=0, le=1)
        require_range("td3", self, "target_noise", "target_noise_clip", "exploration_noise", ge=0)
        require_range("td3", self, "discount", ge=0, lt=1)
