"""Settings of Dreamer's two learners: the world model and the controller."""

from dataclasses import dataclass, field
from enum import Enum

from ...utils.errors import UserError, did_you_mean, require_range, take_choices

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


class Objective(Enum):
    """What makes the states hold what is seen."""

    reconstruction = "reconstruction"
    """The decoder, whose gradient the model takes."""
    barlow = "barlow"
    """Predicted tokens of the encoder correlate with the seen ones, and with no other."""
    infonce = "infonce"
    """Predicted tokens are nearest to their own among all of the batch."""
    none = "none"
    """Reward, end and value alone."""


class DecoderUse(Enum):
    """Whose gradient the decoder gives."""

    auto = "auto"
    """`joint` for `objective=reconstruction`, else `detached`."""
    joint = "joint"
    """The model's and its own."""
    detached = "detached"
    """Its own alone, from an eighth of the windows: pictures and probes stay."""
    off = "off"
    """There is no decoder, and there are no pictures."""


@dataclass(kw_only=True, slots=True)
class BarlowConfig:
    """Settings of `objective=barlow`; `dims` is `infonce`'s too."""

    scale: float = 0.05
    """Weight of the loss."""

    redundancy_scale: float = 5e-4
    """Weight, in it, of correlations with other tokens."""

    dims: int = 0
    """Tokens that are predicted, random directions of all; 0 predicts all, each by itself. Correlations of
    more tokens than a batch has steps cannot all be small."""

    least_deviation: float = 1e-3
    """Tokens that change less over a batch are left out."""

    def __post_init__(self) -> None:
        names = ("scale", "redundancy_scale", "dims", "least_deviation")
        require_range("world_model.barlow", self, *names, ge=0)


@dataclass(kw_only=True, slots=True)
class WorldModelConfig:
    """Settings of the world model's losses."""

    objective: Objective = Objective.reconstruction
    """What makes the states hold what is seen."""

    decoder: DecoderUse = DecoderUse.auto
    """Whose gradient the decoder gives."""

    barlow: BarlowConfig = field(default_factory=BarlowConfig)

    harmony: bool = False
    """Learn the weights of decoder, reward and KL losses; `decoder_scale` and `kl`'s sum are not read."""

    kl: KLConfig = field(default_factory=KLConfig)

    decoder_scale: float = 1.0
    """Weight of the decoder's losses. Observations of small numbers (the angle of a pole) need more than 1:
    else keeping them in the latents costs more KL than it saves squared error."""

    losses: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(LOSS_SWITCHES, True))
    """Switch for each loss: decoder, reward, continue, kl. A dict because `continue` is a Python keyword."""

    def __post_init__(self) -> None:
        take_choices("world_model", self)
        for name in self.losses:
            if name not in LOSS_SWITCHES:
                raise UserError(
                    f"world_model.losses.{name} is not a loss; the switches are {', '.join(LOSS_SWITCHES)}."
                    + did_you_mean(name, LOSS_SWITCHES)
                )
        require_range("world_model", self, "decoder_scale", ge=0)
        if self.objective is Objective.reconstruction and self.decoder_use is not DecoderUse.joint:
            raise UserError(
                f"world_model.decoder={self.decoder_use.value} leaves world_model.objective=reconstruction "
                "nothing to learn from. Set world_model.objective=barlow, infonce or none."
            )
        if self.harmony and not self.kl.dynamics_scale + self.kl.representation_scale:
            raise UserError(
                "world_model.harmony=true weighs the KL losses by the ratio of their scales, and both are 0. "
                "Set world_model.kl.dynamics_scale or representation_scale above 0."
            )
        self.losses = {name: self.losses.get(name, True) for name in LOSS_SWITCHES}

    @property
    def decoder_use(self) -> DecoderUse:
        """Whose gradient the decoder gives: `decoder`, or what `auto` stands for."""
        if self.decoder is not DecoderUse.auto:
            return self.decoder
        return DecoderUse.joint if self.objective is Objective.reconstruction else DecoderUse.detached


@dataclass(kw_only=True, slots=True)
class ControllerConfig:
    """Settings of the actor and the critic."""

    horizon: int = 15
    """Imagined steps from every replayed state, at most 1000: the plan of a run rehearses each of them."""

    imagine_last: int = 0
    """Imagine from this many last states of each window, and regress the critic at these alone; 0 is all.
    The author's code calls it `imag_last`."""

    discount_horizon: float = 333.0
    """Steps over which rewards count: gamma = 1 - 1 / discount_horizon."""

    return_lambda: float = 0.95
    """Weight of longer returns in the lambda-return, in [0, 1]."""

    entropy_scale: float = 3e-4
    """Weight of the actor's entropy, in nats."""

    entropy_decay_from: int = 0
    """Updates of the actor after which `entropy_scale` falls as `entropy_decay_from` / updates; 0: never."""

    least_entropy_scale: float = 3e-4
    """Weight below which the decay does not go; a smaller one stays as it is."""

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
        require_range("controller", self, "horizon", ge=1, le=1000)
        require_range("controller", self, "imagine_last", ge=0)
        if self.imagine_last == 1:  # the return of a replayed state is made of what follows it
            raise UserError("controller.imagine_last=1 leaves no return to regress to. Set 2 or more, or 0.")
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
        """Gamma: the discount per agent step."""
        return 1.0 - 1.0 / self.discount_horizon
