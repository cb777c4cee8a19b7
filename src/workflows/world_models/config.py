"""Settings of Dreamer's two learners: the world model and the controller."""

from dataclasses import dataclass, field

from ...utils.errors import UserError, did_you_mean, require_range

LOSS_SWITCHES = ("decoder", "reward", "continue", "kl")


@dataclass(kw_only=True, slots=True)
class KLConfig:
    """The two Kullback-Leibler losses between posterior and prior."""

    dynamics_scale: float = 1.0
    """Weight of KL(sg(posterior) || prior), which trains the prior."""

    representation_scale: float = 0.1
    """Weight of KL(posterior || sg(prior)), which makes the posterior predictable."""

    free_nats: float = 1.0
    """KL per step, in nats, below which neither loss has a gradient."""

    def __post_init__(self) -> None:
        require_range("world_model.kl", self, "dynamics_scale", "representation_scale", "free_nats", ge=0)


@dataclass(kw_only=True, slots=True)
class WorldModelConfig:
    """Settings of the world model's losses."""

    kl: KLConfig = field(default_factory=KLConfig)

    decoder_scale: float = 1.0
    """Weight of the decoder's losses. Observations of small numbers (the angle of a pole) need more than 1:
    else keeping them in the latents costs more KL than it saves squared error."""

    losses: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(LOSS_SWITCHES, True))
    """Switch for each loss: decoder, reward, continue, kl. A dict because `continue` is a Python keyword."""

    def __post_init__(self) -> None:
        for name in self.losses:
            if name not in LOSS_SWITCHES:
                raise UserError(
                    f"world_model.losses.{name} is not a loss; the switches are {', '.join(LOSS_SWITCHES)}."
                    + did_you_mean(name, LOSS_SWITCHES)
                )
        require_range("world_model", self, "decoder_scale", ge=0)
        self.losses = {name: self.losses.get(name, True) for name in LOSS_SWITCHES}


@dataclass(kw_only=True, slots=True)
class ControllerConfig:
    """Settings of the actor and the critic."""

    horizon: int = 15
    """Imagined steps from every replayed state."""

    discount_horizon: float = 333.0
    """Steps over which rewards count: gamma = 1 - 1 / discount_horizon."""

    return_lambda: float = 0.95
    """Weight of longer returns in the lambda-return, in [0, 1]."""

    entropy_scale: float = 3e-4
    """Weight of the actor's entropy, in nats."""

    actor_unimix: float = 0.01
    """Share of the uniform distribution mixed into discrete policies, in [0, 1)."""

    slow_critic_decay: float = 0.98
    """The slow critic keeps this share of itself at each update."""

    slow_critic_scale: float = 1.0
    """Weight of the critic's regression to the slow critic."""

    replay_value_scale: float = 0.3
    """Weight of the critic's loss on replayed states."""

    return_rate: float = 0.01
    """Rate of the moving average of the return percentiles."""

    return_low: float = 0.05
    """Lower percentile of returns, as a fraction."""

    return_high: float = 0.95
    """Upper percentile of returns, as a fraction."""

    def __post_init__(self) -> None:
        require_range("controller", self, "horizon", ge=1)
        require_range("controller", self, "discount_horizon", gt=1)
        require_range("controller", self, "actor_unimix", ge=0, lt=1)
        shares = ("return_lambda", "slow_critic_decay", "return_rate", "return_low", "return_high")
        require_range("controller", self, *shares, ge=0, le=1)
        require_range("controller", self, "entropy_scale", "slow_critic_scale", "replay_value_scale", ge=0)
        if self.return_low >= self.return_high:
            raise UserError(
                f"controller.return_low={self.return_low} must be below "
                f"controller.return_high={self.return_high}."
            )

    @property
    def discount(self) -> float:
        """Gamma: the discount per agent step."""
        return 1.0 - 1.0 / self.discount_horizon
