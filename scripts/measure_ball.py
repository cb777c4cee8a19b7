"""How well a Pong run draws the ball: `python scripts/measure_ball.py RUN_FOLDER [PICTURE.png]`.

Draws windows from the newest checkpoint's replay, reconstructs them, and compares the play area of both with
the median frame. Prints one JSON line; the picture has the truth above the reconstruction.
"""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.run_folder import load_run
from reverie.config.dreamer import DreamerTrainConfig
from reverie.envs import Suite, make_environment
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of
from reverie.utils.errors import FlagParser, UserError, exit_on_user_error
from reverie.utils.seeding import numpy_generator

WINDOWS = 64
BALL_CONTRAST = 40  # of 255: above noise, below the ball's own contrast to the field
LARGEST_BALL_PIXELS = 8  # more than that is a paddle at the edge of the play area
PLAY_AREA = (slice(11, 58), slice(12, 52))  # between the walls and between the paddles, in a 64 x 64 frame
NEAR = 2  # pixels
SHOWN = 10
SCALE = 3


def main() -> None:
    """Measure the run that the command line names."""
    parser = FlagParser(description="Measure how well a Pong run draws the ball; prints one line of JSON.")
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="its newest checkpoint is measured")
    parser.add_argument("picture", type=Path, nargs="?", metavar="PICTURE.png", help="truth above drawing")
    with exit_on_user_error():
        flags = parser.parse_args()
        check_picture(flags.picture)
        measure(flags.run, flags.picture)


def check_picture(picture: Path | None) -> None:
    """Refuse a picture that could not be written, before the work."""
    if picture is not None and (picture.suffix != ".png" or not picture.absolute().parent.is_dir()):
        raise UserError(f"{picture} must be a .png in a folder that exists.")


def measure(run_dir: Path, picture: Path | None) -> None:
    """Print how often the reconstruction's brightest spot is the ball."""
    truth, drawn, step = reconstruct(run_dir)
    background = np.median(truth, axis=0)
    true_contrast = np.abs(truth - background).max(-1)[:, *PLAY_AREA]
    drawn_contrast = np.abs(drawn - background).max(-1)[:, *PLAY_AREA]
    is_ball = true_contrast > BALL_CONTRAST
    frames = np.flatnonzero((is_ball.sum((1, 2)) > 0) & (is_ball.sum((1, 2)) <= LARGEST_BALL_PIXELS))
    if not len(frames):
        raise UserError(f"no frame of the {len(truth)} drawn from the replay of {run_dir} shows the ball.")
    found = [_near(np.argwhere(is_ball[i]).mean(0), _brightest(drawn_contrast[i])) for i in frames]
    result = {
        "step": step,
        "frames_with_ball": len(frames),
        "ball_is_brightest_spot_fraction": float(np.mean(found)),
        "ball_contrast_median": float(np.median(true_contrast[frames].max((1, 2)))),
        "drawn_contrast_at_ball_median": float(
            np.median([drawn_contrast[i][is_ball[i]].max() for i in frames])
        ),
    }
    print(json.dumps(result))
    if picture is not None:
        shown = frames[:: max(1, len(frames) // SHOWN)][:SHOWN]
        rows = [np.concatenate(list(images[shown]), axis=1) for images in (truth, drawn)]
        image = Image.fromarray(np.concatenate(rows).astype(np.uint8))
        image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST).save(picture)


def reconstruct(run_dir: Path) -> tuple[NDArray[np.int16], NDArray[np.int16], int]:
    """Return frames (N, 64, 64, 3) of replay, their reconstructions, and the step of the checkpoint."""
    config = load_run(str(run_dir))
    assert isinstance(config, DreamerTrainConfig)
    env = config.env
    if (env.suite, env.game, env.image_size) != (Suite.atari, "pong", 64):
        raise UserError(f"{run_dir} is no run of Pong in frames of 64 x 64; no other is measured.")
    with closing(make_environment(config.env, config.seed)) as environment:
        spec = environment.spec
    workflow, replay = (
        build_workflow(config, spec),
        build_replay(config, recipe_of(config).replay_spec(config, spec), run_dir),
    )
    checkpoint = latest_checkpoint(run_dir)
    workflow.load_state_dict(checkpoint.model(workflow.device))
    checkpoint.restore_replay(replay)
    if not replay.can_sample:
        raise UserError(f"{run_dir} has stored too few steps to draw from; train it longer.")
    batch = replay.sample(WINDOWS, numpy_generator(config.seed, "measure_ball")).to(workflow.device)
    world_model = workflow.world_model
    with torch.no_grad():
        _, observed = world_model.observe(batch, workflow.noise["report"])
        drawn = world_model.decoder.to_raw(world_model.decoder(observed.posterior))
    images = (batch.trained().observation["image"], drawn["image"])
    truth, drawn = (x.flatten(0, 1).cpu().numpy().astype(np.int16) for x in images)
    return truth, drawn, checkpoint.step


def _brightest(contrast: NDArray[np.int16]) -> NDArray[np.int64]:
    return np.array(np.unravel_index(contrast.argmax(), contrast.shape))


def _near(first: NDArray[np.float64], second: NDArray[np.int64]) -> bool:
    return bool((np.abs(first - second) <= NEAR).all())


if __name__ == "__main__":
    main()
