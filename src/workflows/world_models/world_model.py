"""The world model: its networks, its losses on replayed sequences, and pictures of what it predicts."""

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
from ...utils.timestep import EnvSpec
from .config import WorldModelConfig

SEEN_STEPS = 5  # that the model sees before it predicts alone, as in the reference's report
SHOWN_SEQUENCES = 6


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder, reward and continue heads; the continue head's target carries the discount."""

    def __init__(self, env: EnvSpec, model: ModelConfig, config: WorldModelConfig, discount: float) -> None:
        super().__init__()
        self.config, self.discount = config, discount
        self.feature_size = model.deter + model.stoch * model.classes
        self.encoder = Encoder(env.observation, model)
        self.rssm = RSSM(env.action.size, self.encoder.size, model)
        self.decoder = Decoder(env.observation, model)
        self.reward = TwoHotHead(self.feature_size, model.reward_layers, model)
        self.continuation = ContinueHead(self.feature_size, model)

    def observe(self, batch: SequenceBatch, noise: Noise) -> tuple[Tensor, RSSMOutput]:
        """Return tokens, posteriors and priors of columns 1 to T, which start from the context of column 0.

        Without stored latents the window starts like an episode: state and previous action are zero.
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
        """Return rewards in raw units, and the probabilities that the episode continues, times gamma."""
        return self.reward.mean(self.reward(feature)), self.continuation(feature).sigmoid()

    def losses(
        self, steps: SequenceBatch, observed: RSSMOutput
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return each loss of `batch.trained()`, (B, T), before its scale, and detached 0-d metrics.

        Switched-off losses are absent. `dynamics` and `representation` are KL in nats, at least
        `kl.free_nats`; `decoder/<key>` are summed squared errors; `reward` and `continue` are cross-entropies
        in nats. Metrics are means in nats, summed over latents, the KL before it is clipped.
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
            # Summed over latents, clipped per step, averaged last; clamp has no gradient below the free nats.
            losses["dynamics"] = kl.clamp(min=free)
            losses["representation"] = categorical_kl(posterior, prior.detach()).clamp(min=free)
        if switches["decoder"]:
            decoder_losses = self.decoder.losses(observed.posterior, steps.observation)
            losses |= {f"decoder/{key}": loss for key, loss in decoder_losses.items()}
        if switches["reward"]:
            losses["reward"] = self.reward.loss(self.reward(feature), steps.reward)
        if switches["continue"]:
            logit = self.continuation(feature)
            losses["continue"] = self.continuation.loss(logit, steps.is_terminal.float(), self.discount)
        return losses, metrics

    def scales(self) -> dict[str, float]:
        """Return the weights of losses in the sum, by name; one that is not named has weight 1."""
        kl, keys = self.config.kl, [*self.decoder.image_channels, *self.decoder.vector_shapes]
        scales = {"dynamics": kl.dynamics_scale, "representation": kl.representation_scale}
        return scales | {f"decoder/{key}": self.config.decoder_scale for key in keys}


def open_loop_animations(world_model: WorldModel, batch: SequenceBatch, noise: Noise) -> dict[str, Tensor]:
    """Return for each image key truth, prediction and error, one below the other, sequences in a row.

    The first `SEEN_STEPS` frames of the prediction, with a green bar at the top, are reconstructions; the
    rest, with a red bar, is imagined from the recorded actions alone, wrongly where an episode starts in it.

    Returns:
        (T, 3 H, n W, 3) uint8 by image key, on the host; empty if nothing is an image or T <= `SEEN_STEPS`.
    """
    keys = list(world_model.decoder.image_channels)
    time = batch.reward.shape[1] - 1
    if not keys or time <= SEEN_STEPS:
        return {}
    shown = batch.select(slice(SHOWN_SEQUENCES), slice(None))
    seen = shown.select(slice(None), slice(SEEN_STEPS + 1))
    _, observed = world_model.observe(seen, noise)
    actions = shown.action[:, SEEN_STEPS:-1]
    seen_states = [observed.posterior.select((slice(None), step)) for step in range(SEEN_STEPS)]
    latent_noise = world_model.rssm.noise(noise, time - SEEN_STEPS, len(actions))
    states, _ = world_model.rssm.imagine(seen_states[-1], lambda step, _: actions[:, step], latent_noise)
    believed = LatentState.stack([*seen_states, *states[1:]], 1)
    predictions = world_model.decoder.to_raw(world_model.decoder(believed))
    truths = shown.trained().observation
    return {key: _stacked(truths[key], predictions[key]) for key in keys}


def _stacked(truth: Tensor, prediction: Tensor) -> Tensor:
    error = ((prediction.short() - truth.short() + 256) // 2).byte()
    prediction = prediction.clone()
    bar = max(1, prediction.shape[2] // 32)
    red, green = prediction.new_tensor(((255, 0, 0), (0, 255, 0)))[:, : prediction.shape[-1]]
    prediction[:, :SEEN_STEPS, :bar] = green
    prediction[:, SEEN_STEPS:, :bar] = red
    frames = torch.cat([truth, prediction, error], 2)  # (n, T, 3 H, W, C)
    frames = frames.permute(1, 2, 0, 3, 4).flatten(2, 3)
    return (frames if frames.shape[-1] == 3 else frames[..., :1].expand(*frames.shape[:-1], 3)).cpu()
