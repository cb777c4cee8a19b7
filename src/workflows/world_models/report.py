"""Draw open-loop predictions of the world model."""

import torch
from torch import Tensor

from ...buffers import SequenceBatch
from ...models import LatentState, Noise
from .world_model import WorldModel

SEEN_STEPS = 5
"""Steps that the model sees before it predicts alone (the reference's report shows 5 too)."""

SHOWN_SEQUENCES = 6


def open_loop_animations(world_model: WorldModel, batch: SequenceBatch, noise: Noise) -> dict[str, Tensor]:
    """Return for each image key truth, prediction and error, one below the other, sequences in a row.

    The first `SEEN_STEPS` frames of the prediction are reconstructions, the rest is imagined from the
    recorded actions alone; their frames are marked by a bar at the top of the prediction (green seen, red
    imagined). An episode that starts inside the imagined part is not known to the model: the picture then
    shows it being wrong.

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
    states, _ = world_model.rssm.imagine(
        observed.posterior.select((slice(None), -1)),
        lambda step, _: actions[:, step],
        time - SEEN_STEPS,
        noise,
    )
    believed = observed.posterior.concatenate(LatentState.stack(states[1:], 1), 1)
    predictions = world_model.decoder.to_raw(world_model.decoder(believed))
    truths = shown.trained().observation
    return {key: _stacked(truths[key], predictions[key]) for key in keys}


def _stacked(truth: Tensor, prediction: Tensor) -> Tensor:
    error = ((prediction.short() - truth.short() + 256) // 2).byte()
    prediction = prediction.clone()
    bar = max(1, prediction.shape[2] // 32)
    prediction[:, :SEEN_STEPS, :bar] = _colour((0, 255, 0), prediction)
    prediction[:, SEEN_STEPS:, :bar] = _colour((255, 0, 0), prediction)
    frames = torch.cat([truth, prediction, error], 2)  # (n, T, 3 H, W, C)
    frames = frames.permute(1, 2, 0, 3, 4).flatten(2, 3)
    return (frames if frames.shape[-1] == 3 else frames[..., :1].expand(*frames.shape[:-1], 3)).cpu()


def _colour(rgb: tuple[int, int, int], like: Tensor) -> Tensor:
    return torch.tensor(rgb, dtype=torch.uint8, device=like.device)[: like.shape[-1]]
