"""Draw the game beside the model's dream of it as an animation: dream.py <file.gif> [<run>] [<seed>].

The agent plays. Game and dream start at the same frame and receive the same actions. The dream restarts from
the game every `HORIZON` steps. Each pixel of 64 x 64 becomes 4 x 4 equal ones, without smoothing. All frames
share one palette, which keeps the file small.
"""

import argparse
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image
from reverie_play import DreamSession
from reverie_play.session import dreamer_with_pictures

from reverie.config.schema import Device
from reverie.orchestration.trained import load_agent
from reverie.utils.video import upscale

HORIZON = 45
"""Steps of a dream: three seconds of Pong."""

SKIPPED = 1
"""Number of times that the agent first plays 100 steps that are not drawn, so that the ball is in play."""

STEPS, SCALE, GAP, FPS, COLORS = 135, 4, 2, 15, 64


def draw(path: Path, run: str, seed: int) -> None:
    """Write the animation."""
    found, agent, _ = load_agent(run, Device.cpu)
    workflow, image = dreamer_with_pictures(agent, run)
    frames: list[np.ndarray] = []
    with closing(DreamSession(workflow, found.env, image, HORIZON)) as session:
        session.restart(seed)
        for _ in range(SKIPPED):
            session.skip()
        for _ in range(STEPS):
            pictures = session.step(None).pictures
            game, dream, _ = np.split(pictures, 3, axis=1)
            gap = np.full((len(game), GAP, game.shape[2]), 255, np.uint8)
            frames.append(np.concatenate([game, gap, dream], axis=1))
    palette = Image.fromarray(np.concatenate(frames)).quantize(COLORS)
    images = [
        Image.fromarray(upscale(frame, SCALE)).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 // FPS, loop=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("run", nargs="?", default="pretrained:pong")
    parser.add_argument("seed", nargs="?", type=int, default=0)
    draw(**vars(parser.parse_args()))
