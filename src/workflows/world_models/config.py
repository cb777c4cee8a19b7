"""Settings of Dreamer's two learners, the world model and the controller."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from ...utils.components import check_part
from ...utils.errors import UserError, did_you_mean, require_range, take_choices

LOSS_SWITCHES = ("decoder", "reward", "continue", "kl")


@dataclass(kw_only=True, slots=True)
class KLConfig:
    """The two Kullback-Leibler losses between posterior and prior."""

    dynamics_scale: float = 1.0
    """Weight of KL(sg(posterior) || prior). This loss trains the prior."""

    representation_scale: float = 0.1
    """Weight of KL(posterior || sg(prior)). This loss makes the posterior predictable."""

    free_nats: float = 1.0
    """KL per step, in nats, below which neither loss has a gradient."""

    def __post_init__(self) -> None:
        require_range("world_model.kl", self, "dynamics_scale", "representation_scale", "free_nats", ge=0)


class Objective(StrEnum):
    """Representation objective: how the states learn to encode observations."""

    reconstruction = "reconstruction"
    """Reconstruct observations with the decoder."""
    barlow = "barlow"
    """Predict tokens, each correlated with the same token of the encoder but not with its other tokens."""
    infonce = "infonce"
    """Predict tokens that identify their own step among the encoder's tokens of all steps in the batch."""
    none = "none"
    """Learn only from rewards, episode ends and values."""


class DecoderUse(Enum):
    """Which parameters the decoder's loss trains."""

    auto = "auto"
    """`joint` for `objective=reconstruction`, otherwise `detached`."""
    joint = "joint"
    """The world model and the decoder."""
    detached = "detached"
    """Only the decoder, on one eighth of the windows, so that pictures and probes stay available."""
    off = "off"
    """The model has no decoder and draws no pictures."""


@dataclass(kw_only=True, slots=True)
class BarlowConfig:
    """Settings of `objective=barlow`. `infonce` also uses `dims`."""

    scale: float = 0.05
    """Weight of the loss."""

    redundancy_scale: float = 5e-4
    """Weight of the correlations between different tokens within this loss."""

    dims: int = 0
    """Number of random projections of the tokens to predict. 0 predicts all tokens. If a batch has fewer
    steps than tokens, the tokens' correlations cannot all be small."""

    least_deviation: float = 1e-3
    """Tokens with a smaller standard deviation over the batch are ignored."""

    def __post_init__(self) -> None:
        names = ("scale", "redundancy_scale", "dims", "least_deviation")
        require_range("world_model.barlow", self, *names, ge=0)


@dataclass(kw_only=True, slots=True)
class WorldModelConfig:
    """Settings of the world model's losses."""

    objective: str = Objective.reconstruction
    """Representation objective: reconstruction, barlow, infonce, none, or `module:Class` of your own
    (docs/components.md). It determines how the states learn to encode observations."""

    decoder: DecoderUse = DecoderUse.auto
    """Which parameters the decoder's loss trains."""

    barlow: BarlowConfig = field(default_factory=BarlowConfig)

    harmony: bool = False
    """Learn the weights of the decoder, reward and KL losses. `decoder_scale` and the sum of the KL scales
    then have no effect."""

    kl: KLConfig = field(default_factory=KLConfig)

    decoder_scale: float = 1.0
    """Weight of the decoder's losses. Observations with small values (e.g. a pole's angle) require a weight
    above 1. Otherwise, encoding them costs more KL than it saves in squared error."""

    # This is a dict because `continue` is a Python keyword.
    losses: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(LOSS_SWITCHES, True))
    """Switches the losses decoder, reward, continue and kl on or off."""

    def __post_init__(self) -> None:
        take_choices("world_model", self)
        check_part("world_model.objective", self.objective)
        for name in self.losses:
            if name not in LOSS_SWITCHES:
                raise UserError(
                    f"world_model.losses.{name} is not a loss. Choose from {', '.join(LOSS_SWITCHES)}."
                    + did_you_mean(name, LOSS_SWITCHES)
                )
        require_range("world_model", self, "decoder_scale", ge=0)
        if self.objective == Objective.reconstruction and self.decoder_use is not DecoderUse.joint:
            raise UserError(
                f"world_model.decoder={self.decoder_use.value} does not train the world model, which "
                "world_model.objective=reconstruction needs. Set the objective to barlow, infonce or none."
            )
        if self.harmony and not self.kl.dynamics_scale + self.kl.representation_scale:
            raise UserError(
                "world_model.harmony=true needs the ratio of the KL scales, but both are 0. "
                "Set world_model.kl.dynamics_scale or world_model.kl.representation_scale above 0."
            )
        self.losses = {name: self.losses.get(name, True) for name in LOSS_SWITCHES}

    @property
    def decoder_use(self) -> DecoderUse:
        """The `decoder` setting, with `auto` resolved."""
        if self.decoder is not DecoderUse.auto:
            return self.decoder
        return DecoderUse.joint if self.objective == Objective.reconstruction else DecoderUse.detached


@dataclass(kw_only=True, slots=True)
class ControllerConfig:
    """Settings of the actor and the critic."""

    horizon: int = 15
    """Imagined steps per replayed state: at most 1000, because a run's memory plan simulates all of them."""

    imagine_last: int = 0
    """Number of final states of each window for imagination and the critic's replay loss. 0 uses all."""

    discount_horizon: float = 333.0
    """Effective horizon of the discount, in steps: gamma = 1 - 1 / discount_horizon."""

    return_lambda: float = 0.95
    """Weight of longer returns in the lambda-return, in [0, 1]."""

    entropy_scale: float = 3e-4
    """Weight of the actor's entropy, in nats."""

    entropy_decay_from: int = 0
    """Actor updates after which `entropy_scale` decays as `entropy_decay_from` / updates. 0 disables this."""

    least_entropy_scale: float = 3e-4
    """Weight at which the decay stops. Smaller weights are not decayed."""

    actor_unimix: float = 0.01
    """Weight of the uniform distribution mixed into discrete policies, in [0, 1)."""

    slow_critic_decay: float = 0.98
    """Decay rate, per update, of the moving average that forms the slow critic."""

    slow_critic_scale: float = 1.0
    """Weight of the critic's regression to the slow critic."""

    actor_loss: str = "reinforce"
    """Loss of the policy: `reinforce`, or `module:Class` of your own (docs/components.md)."""

    replay_value_scale: float = 0.3
    """Weight of the critic's loss on replayed states."""

    return_rate: float = 0.01
    """Rate of the moving average of the return percentiles."""

    return_low: float = 0.05
    """Lower percentile of returns, as a fraction."""

    return_high: float = 0.95
    """Upper percentile of returns, as a fraction."""

    def __post_init__(self) -> None:
        require_range("controller", self, "horizon", ge=1, le=1000)
        check_part("controller.actor_loss", self.actor_loss)
        require_range("controller", self, "imagine_last", ge=0)
        # A replayed state's return is computed from the steps after it, so a single state has no return.
        if self.imagine_last == 1:
            raise UserError("controller.imagine_last=1 is too short for a return. Set 2 or more, or 0.")
        require_range("controller", self, "discount_horizon", gt=1)
        require_range("controller", self, "actor_unimix", ge=0, lt=1)
        shares = ("return_lambda", "slow_critic_decay", "return_rate", "return_low", "return_high")
        require_range("controller", self, *shares, ge=0, le=1)
        require_range("controller", self, "entropy_decay_from", ge=0)
        scales = ("entropy_scale", "least_entropy_scale", "slow_critic_scale", "replay_value_scale")
        require_range("controller", self, *scales, ge=0)
        if self.return_low >= self.return_high:
            raise UserError(
                f"controller.return_low={self.return_low} must be below "
                f"controller.return_high={self.return_high}."
            )

    @property
    def discount(self) -> float:
        """Gamma, the discount per agent step."""
        return 1.0 - 1.0 / self.discount_horizon
