"""Measure the compression of stored latents from a winning Pong agent: latents.py <out.json>

Run it in the repository root. It compresses chunks of 48 records of one stream, with float16 and class
indices as in the replay, in several forms with zstd.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import zstandard

sys.path.insert(0, str(Path(__file__).parents[4]))

from reverie.checkpoints.weights import load_weights, networks_of
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import EnvConfig, make_environment
from reverie.orchestration.dreamer.recipe import build_workflow

ENVS, STEPS, CHUNK = 2, 1920, 48


def play() -> tuple[np.ndarray, np.ndarray]:
    """Return deter (envs, steps, 512) float16 and stoch (envs, steps, 32) uint8 of sampled play."""
    [job] = compose_jobs(["experiment=dreamer_ataripong", "device=cpu"])
    environment = make_environment(EnvConfig(game="pong", num_envs=ENVS), 0)
    workflow = build_workflow(typed(job, DreamerTrainConfig), environment.spec)
    load_weights("src/pretrained/pong/weights.safetensors", networks_of(workflow))
    torch.manual_seed(0)
    step, deter, stoch = environment.reset(), [], []
    for _ in range(STEPS):
        collected = workflow.collect_step(step)
        deter.append(collected.latent.deter.to(torch.float16).numpy())
        stoch.append(collected.latent.stoch.to(torch.uint8).numpy())
        step = environment.step(np.asarray(collected.action))
    environment.close()
    return np.stack(deter, 1), np.stack(stoch, 1)


def shuffled(words: np.ndarray) -> bytes:
    """Return all low bytes, followed by all high bytes."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 2).T).tobytes()


def changes(words: np.ndarray) -> np.ndarray:
    """Return each record XOR the previous one."""
    return np.concatenate([words[:1], words[1:] ^ words[:-1]])


FORMS = {
    "zstd": lambda words: words.tobytes(),
    "shuffled": shuffled,
    "shuffled, by number then record": lambda words: shuffled(np.ascontiguousarray(words.T)),
    "xor of neighbours, shuffled": lambda words: shuffled(changes(words)),
}


def main() -> None:
    """Write the bytes per record."""
    deter, stoch = play()
    rows = {"deter, as it is": deter.itemsize * deter.shape[2], "stoch, as it is": stoch.shape[2]}
    every = {1: "every record", 8: "every eighth"}
    for step, kept in every.items():
        chunks = [
            (deter[env, at : at + CHUNK : step], stoch[env, at : at + CHUNK : step])
            for env in range(ENVS)
            for at in range(0, STEPS, CHUNK)
        ]
        records = sum(len(numbers) for numbers, _ in chunks)
        for level in (3, 19):
            codec = zstandard.ZstdCompressor(level=level)
            for name, form in FORMS.items():
                size = sum(len(codec.compress(form(numbers.view(np.uint16)))) for numbers, _ in chunks)
                rows[f"deter, {kept}, {name}, level {level}"] = size / records
            size = sum(len(codec.compress(classes.tobytes())) for _, classes in chunks)
            rows[f"stoch, {kept}, level {level}"] = size / records
    result = {
        "records": ENVS * STEPS,
        "bytes_per_record": {name: round(size, 1) for name, size in rows.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
