"""Probe a Pong world model: measure how well its states encode the games that its policy plays."""

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pong_probe.linear import auc, held_out_r2, imagine_along
from benchmarks.pong_probe.memory import ADDRESSES, BALL_OFFSET, pong_memory
from reverie.envs import EnvConfig, make_environment
from reverie.models import Decoder, LatentState, Noise
from reverie.utils.seeding import named_seed, torch_generator
from reverie.workflows.world_models import DreamerWorkflow

# Pixels of the frame around the center of the ball.
_PATCH = 2
# Columns of the screen.
_BETWEEN_PADDLES = (35.0, 125.0)
_DRAWN_CONTRAST = 0.5
_DECODED_AT_ONCE = _OF_MEDIAN = 200


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """The first T records of a game with T + 1 records, and the model's posterior states.

    The last record is excluded, because the emulator stops partway through its frames.
    """

    frames: NDArray[np.uint8]
    """(T, H, W, 3)."""

    memory: NDArray[np.uint8]
    """(T, 4) uint8 positions of the ball and paddles, in the order of `ADDRESSES`."""

    rewards: NDArray[np.float32]
    actions: torch.Tensor
    """(T, A) one-hot, on the model's device."""

    states: LatentState
    """Posteriors, (T, ...)."""

    episode_return: float


def play(workflow: DreamerWorkflow, env: EnvConfig, episodes: int, seed: int) -> list[PlayedEpisode]:
    """Play complete games one after another with sampled actions."""
    played: list[PlayedEpisode] = []
    with closing(make_environment(replace(env, num_envs=1), named_seed(seed, "probe"))) as environment:
        policy = workflow.eval_policy(1, seed, sample=True)
        step, records, total = environment.reset(), [], 0.0
        while len(played) < episodes:
            action = policy.act(step)
            total += step.reward[0]
            if step.is_last[0]:
                images, rewards, chosen, states = zip(*records, strict=True)
                frames, actions = np.stack(images), torch.stack(chosen)
                memory = pong_memory(env, frames, actions[:-1].argmax(-1).cpu().numpy())
                beliefs = LatentState.stack(list(states), 0)
                played.append(PlayedEpisode(frames, memory, np.array(rewards), actions, beliefs, total))
                records, total = [], 0.0
            else:
                image = step.observation["image"][0].copy()
                records.append((image, step.reward[0], policy.prev_action[0], policy.state.select(0)))
            step = environment.step(action)
    return played


@torch.no_grad()
def probe_episodes(
    workflow: DreamerWorkflow, played: list[PlayedEpisode], steps: int, seed: int
) -> dict[str, Any]:
    """Return `r2`, `drawn`, `auc` and counts for states imagined `steps` steps beyond the last frame seen.

    Raises:
        ValueError: If fewer than two games have a ball in play.
    """
    noise = Noise(torch_generator(seed, "probe", workflow.device), workflow.device)
    features, targets, drawn, rewards, predictions = [], [], [], [], []
    for episode in (each for each in played if len(each.frames) > steps):
        memory = episode.memory[steps:]
        states = imagine_along(workflow.world_model, episode.states, episode.actions, steps, noise)
        has_ball = memory[:, list(ADDRESSES).index("ball_y")] > 0
        features.append(states.feature.cpu().numpy()[has_ball])
        targets.append(memory[has_ball].astype(np.float64))
        if workflow.world_model.decoder is not None:
            drawn.append(_drawn(workflow.world_model.decoder, states, episode.frames, memory, steps))
        predictions.append(workflow.world_model.predict(states.feature)[0].cpu().numpy())
        rewards.append(episode.rewards[steps:])
    seen = [i for i, each in enumerate(features) if len(each)]
    if len(seen) < 2:
        raise ValueError("a ball is in play in fewer than two of these games")
    r2 = held_out_r2([features[i] for i in seen], [targets[i] for i in seen])
    reward, predicted = np.concatenate(rewards), np.concatenate(predictions)
    won, none, lost = (predicted[reward == value] for value in (1, 0, -1))
    ratios = np.concatenate(drawn) if drawn else np.empty(0)
    return {
        "r2": dict(zip(ADDRESSES, r2, strict=True)),
        "drawn": round(float((ratios >= _DRAWN_CONTRAST).mean()), 4) if len(ratios) else None,
        "auc": {"won_above_none": auc(won, none), "none_above_lost": auc(none, lost)},
        "frames_with_ball": sum(map(len, features)),
        "points": {"won": len(won), "lost": len(lost)},
    }


def _drawn(
    decoder: Decoder,
    states: LatentState,
    frames: NDArray[np.uint8],
    memory: NDArray[np.uint8],
    steps: int,
) -> NDArray[np.float64]:
    """Return the ball's contrast in each decoded frame as a fraction of its contrast in the observed frame.

    The contrast is relative to the median of the observed or decoded frames, in a patch around the ball that
    cannot contain a paddle. A decoder with a constant output therefore has no contrast.
    """
    truth = frames[steps:]
    x, y = (memory[:, i].astype(float) + offset for i, offset in enumerate(BALL_OFFSET))
    low, high = _BETWEEN_PADDLES
    has_ball = memory[:, list(ADDRESSES).index("ball_y")] > 0
    chosen = np.flatnonzero(has_ball & (x > low) & (x < high))
    columns, rows = (x * truth.shape[2] / 160).astype(int), (y * truth.shape[1] / 210).astype(int)
    some = np.arange(0, len(truth), max(1, len(truth) // _OF_MEDIAN))
    fields = [np.median(each, axis=0) for each in (truth[some], _decoded(decoder, states, some))]
    ratios = []
    for start in range(0, len(chosen), _DECODED_AT_ONCE):
        part = chosen[start : start + _DECODED_AT_ONCE]
        for image, i in zip(_decoded(decoder, states, part), part, strict=True):
            patch = tuple(slice(max(0, at - _PATCH), at + _PATCH + 1) for at in (rows[i], columns[i]))
            pairs = zip((truth[i], image), fields, strict=True)
            true, drawn = (each[patch] - field[patch] for each, field in pairs)
            ratios.append((true * drawn).sum() / np.maximum((true**2).sum(), 1.0))
    return np.array(ratios)


def _decoded(decoder: Decoder, states: LatentState, chosen: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Return the decoded frames of the chosen states, (n, H, W, 3)."""
    index = torch.from_numpy(chosen).to(states.deter.device)
    batch = LatentState(states.deter[index].unsqueeze(0), states.stoch[index].unsqueeze(0))
    return decoder.to_raw(decoder(batch))["image"][0].cpu().numpy()
