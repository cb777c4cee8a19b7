"""The world model: networks, losses on replayed sequences, and animations of its predictions."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ...buffers import SequenceBatch
from ...models import (
    RSSM,
    ContinueHead,
    Decoder,
    Encoder,
    LatentState,
    ModelConfig,
    Noise,
    RSSMOutput,
    TwoHotHead,
    categorical_entropy,
    categorical_kl,
    unimix_log_probs,
)
from ...utils.components import make_part
from ...utils.ranks import ALONE, Ranks
from ...utils.timestep import EnvSpec
from .config import DecoderUse, WorldModelConfig
from .objectives import Harmony, TokenPrediction

# Number of observed steps before the open-loop prediction, as in the reference code's report.
SEEN_STEPS = 5
SHOWN_SEQUENCES = 6
# A detached decoder does not affect the world model, so it trains on only one in this many windows.
_DETACHED_EVERY = 8


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder, reward head, and continue head, whose target includes the discount.

    `prediction`, `harmony` and `decoder` are `None` if the settings disable them.

    Args:
        env: Observations and actions, such as `reverie.check_env(...).spec`.
        model: Network sizes. Defaults to size12m.
        config: Objective and weights of the losses. Defaults to DreamerV3's.
        discount: Gamma per agent step. DreamerV3 uses 1 - 1/333.
        ranks: Process group that divides the batch.
    """

    def __init__(
        self,
        env: EnvSpec,
        model: ModelConfig | None = None,
        config: WorldModelConfig | None = None,
        discount: float = 1 - 1 / 333,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        model, config = model or ModelConfig(), config or WorldModelConfig()
        self.config, self.discount, self.ranks = config, discount, ranks
        self.keys = list(env.observation)
        self.feature_size = model.deter + model.stoch * model.classes
        self.encoder: Encoder = make_part("model.encoder", model.encoder, env.observation, model)
        self.rssm = RSSM(env.action.size, self.encoder.size, model)
        self.decoder: Decoder | None = None
        if config.decoder_use is not DecoderUse.off:
            self.decoder = make_part("model.decoder", model.decoder, env.observation, model)
        reward = model.reward_head, self.feature_size, model.reward_layers, model
        self.reward: TwoHotHead = make_part("model.reward_head", *reward)
        self.continuation = ContinueHead(self.feature_size, model)
        sizes = self.feature_size, self.encoder.size
        self.prediction: TokenPrediction | None = make_part(
            "world_model.objective", config.objective, *sizes, config, ranks
        )
        self.harmony = Harmony() if config.harmony else None

    def observe(self, batch: SequenceBatch, noise: Noise) -> tuple[Tensor, RSSMOutput]:
        """Return tokens, posteriors and priors of columns 1 to T, starting from the context in column 0.

        Without stored latents, the window starts like an episode, with a zero state and previous action.
        """
        steps = batch.trained()
        is_first = steps.is_first
        if batch.context is None:
            start = self.rssm.initial(batch.reward.shape[0])
            is_first = torch.cat([torch.ones_like(is_first[:, :1]), is_first[:, 1:]], 1)
        else:
            stoch = F.one_hot(batch.context.stoch.long(), self.rssm.config.classes)
            start = LatentState(batch.context.deter.float(), stoch.float())
        tokens = self.encoder(steps.observation)
        latent_noise = self.rssm.noise(noise, *is_first.shape)
        return tokens, self.rssm.observe(tokens, batch.action[:, :-1], is_first, latent_noise, state=start)

    def predict(
        self, feature: Float[Tensor, "*batch feature"]
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Return rewards in raw units, and gamma times continuation probabilities (1 without their loss)."""
        reward = self.reward.mean(self.reward(feature))
        if not self.config.losses["continue"]:
            return reward, torch.full_like(reward, self.discount)
        return reward, self.continuation(feature).sigmoid()

    def losses(
        self, steps: SequenceBatch, tokens: Tensor, observed: RSSMOutput
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the unscaled losses of `batch.trained()`, (B, T), and detached 0-d metrics.

        Disabled losses are absent. `dynamics` and `representation` are KL divergences in nats, at least
        `kl.free_nats`. `decoder/<key>` are summed squared errors. A detached decoder only uses some windows.
        `reward` and `continue` are cross-entropies in nats. `barlow` or `infonce`, 0-d, is the loss of
        `TokenPrediction`. Metrics are means in nats, summed over latents. The KL metric is not clipped.
        """
        switches, feature = self.config.losses, observed.posterior.feature
        logits, unimix = (observed.posterior_logits, observed.prior_logits), self.rssm.config.latent_unimix
        posterior, prior = (unimix_log_probs(each, unimix) for each in logits)
        kl = categorical_kl(posterior.detach(), prior)
        metrics = {
            "posterior_entropy": categorical_entropy(posterior.detach()).sum(-1).mean(),
            "prior_entropy": categorical_entropy(prior.detach()).sum(-1).mean(),
            "kl": kl.detach().mean(),
        }
        losses: dict[str, Tensor] = {}
        if switches["kl"]:
            free = self.config.kl.free_nats
            # The sum over latents is clipped per step, then averaged. `clamp` stops gradients below the
            # limit.
            losses["dynamics"] = kl.clamp(min=free)
            losses["representation"] = categorical_kl(posterior, prior.detach()).clamp(min=free)
        if self.prediction is not None:
            name = self.config.objective.rpartition(":")[2]
            losses[name], found = self.prediction.loss(feature, tokens, steps)
            metrics |= found
        if self.decoder is not None and switches["decoder"]:
            state, truth, weight = observed.posterior, steps.observation, 1.0
            if self.config.decoder_use is DecoderUse.detached:
                few, weight = detached_windows(len(steps.reward), self.ranks)
                state, truth = state.detach().select(few), {key: each[few] for key, each in truth.items()}
            decoder_losses = self.decoder.losses(state, truth)
            losses |= {f"decoder/{key}": weight * loss for key, loss in decoder_losses.items()}
        if switches["reward"]:
            losses["reward"] = self.reward.loss(self.reward(feature), steps.reward)
        if switches["continue"]:
            logit = self.continuation(feature)
            losses["continue"] = self.continuation.loss(logit, steps.is_terminal.float(), self.discount)
        if self.harmony is not None:
            sigmas = self.harmony.log_sigma.items()
            metrics |= {f"harmony/{group}": s.detach().exp() for group, s in sigmas}
        return losses, metrics

    def scales(self) -> dict[str, float]:
        """Return the weights of losses by name, before `harmony` balances them. All others have weight 1."""
        kl = self.config.kl
        scales = {
            "dynamics": kl.dynamics_scale,
            "representation": kl.representation_scale,
            "barlow": self.config.barlow.scale,
        }
        if self.harmony is not None:
            # Harmony learns the weight of the KL group, so only the ratio of the two scales matters.
            both = kl.dynamics_scale + kl.representation_scale
            scales |= {name: scales[name] / both for name in ("dynamics", "representation")}
        else:
            scales |= {f"decoder/{key}": self.config.decoder_scale for key in self.keys}
        return scales

    def weighted(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean losses by name, scaled and balanced by `harmony`, except for the controller's."""
        scales = self.scales()
        terms = {name: scales.get(name, 1.0) * mean for name, mean in means.items()}
        return terms if self.harmony is None else self.harmony(terms)


def detached_windows(count: int, ranks: Ranks) -> tuple[slice, float]:
    """Return a rank's windows (out of `count`) that train a detached decoder, and the weight of their mean.

    The decoder learns from every eighth window of all ranks. Averaged over ranks, the weighted means equal
    the mean over all these windows. A rank without any such window uses one with weight 0.
    """
    first = (-ranks.index * count) % _DETACHED_EVERY
    own, every = (len(range(*each, _DETACHED_EVERY)) for each in ((first, count), (0, count * ranks.size)))
    return (slice(first, None, _DETACHED_EVERY) if own else slice(1)), ranks.size * own / every


def open_loop_animations(world_model: WorldModel, batch: SequenceBatch, noise: Noise) -> dict[str, Tensor]:
    """Return animations of truth, prediction and error (from top to bottom), with sequences side by side.

    The first `SEEN_STEPS` frames of the prediction, with a green bar at the top, are reconstructions. The
    others, with a red bar, are imagined only from recorded actions, and invalid after a new episode starts.

    Returns:
        (T, 3 H, n W, 3) uint8 on the host by image key. Empty without images or if T <= `SEEN_STEPS`.
    """
    decoder, time = world_model.decoder, batch.reward.shape[1] - 1
    keys = list(decoder.image_channels) if decoder is not None else []
    if decoder is None or not keys or time <= SEEN_STEPS:
        return {}
    shown = batch.select(slice(SHOWN_SEQUENCES), slice(None))
    seen = shown.select(slice(None), slice(SEEN_STEPS + 1))
    _, observed = world_model.observe(seen, noise)
    actions = shown.action[:, SEEN_STEPS:-1]
    seen_states = [observed.posterior.select((slice(None), step)) for step in range(SEEN_STEPS)]
    latent_noise = world_model.rssm.noise(noise, time - SEEN_STEPS, len(actions))
    states, _ = world_model.rssm.imagine(seen_states[-1], lambda step, _: actions[:, step], latent_noise)
    believed = LatentState.stack([*seen_states, *states[1:]], 1)
    predictions = decoder.to_raw(decoder(believed))
    truths = shown.trained().observation
    return {key: _stacked(truths[key], predictions[key]) for key in keys}


def _stacked(truth: Tensor, prediction: Tensor) -> Tensor:
    error = ((prediction.short() - truth.short() + 256) // 2).byte()
    prediction = prediction.clone()
    bar = max(1, prediction.shape[2] // 32)
    red, green = prediction.new_tensor(((255, 0, 0), (0, 255, 0)))[:, : prediction.shape[-1]]
    prediction[:, :SEEN_STEPS, :bar] = green
    prediction[:, SEEN_STEPS:, :bar] = red
    # The shape changes from (n, T, 3 H, W, C) to (T, 3 H, n W, C).
    frames = torch.cat([truth, prediction, error], 2)
    frames = frames.permute(1, 2, 0, 3, 4).flatten(2, 3)
    return (frames if frames.shape[-1] == 3 else frames[..., :1].expand(*frames.shape[:-1], 3)).cpu()
