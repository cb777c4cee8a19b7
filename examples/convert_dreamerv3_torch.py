"""Convert episodes of NM512/dreamerv3-torch: `convert_dreamerv3_torch.py <train_eps> <new folder> [format]`.

The folders of dreamerv3-torch contain one npz file per episode, in which row t of `action` led to record t.
In Reverie's records, row t was chosen after seeing record t. The format is own, dreamerv3 or minari. Check
the result with `reverie-episodes show path=<new folder>`, and train on it with `buffer.prefill=<new folder>`.
"""

import sys
from pathlib import Path

import numpy as np

import reverie
from reverie.episodes import Format, spec_of, write_episodes

NO_OBSERVATION = ("action", "reward", "is_first", "is_last", "is_terminal", "discount", "logprob", "reset")


def is_one_hot(file: Path) -> bool:
    """Return whether all actions in a file are one-hot. Row 0 (before the first record) is all zeros."""
    # Only `action` is read from the file.
    with np.load(file) as arrays:
        taken = arrays["action"][1:]
    return bool(np.isin(taken, (0, 1)).all() and (taken.sum(axis=1) == 1).all())


def read(file: Path) -> reverie.EpisodeRecords:
    """Return the episode in a file. Keys with `log_` are ignored, as in dreamerv3-torch's training."""
    # NumPy rejects files with pickled objects.
    with np.load(file) as arrays:
        led = arrays["action"].astype(np.float32)
        shown = [name for name in arrays.files if name not in NO_OBSERVATION and "log_" not in name]
        return reverie.EpisodeRecords(
            {name: arrays[name] for name in shown},
            np.concatenate([led[1:], np.zeros_like(led[:1])]),
            arrays["reward"].astype(np.float32),
            bool(arrays["is_terminal"][-1]),
        )


if len(sys.argv) < 3:
    sys.exit(__doc__)
folder, target, *rest = sys.argv[1:]
files = sorted(Path(folder).glob("*.npz"))
if not files:
    sys.exit(f"{folder} is missing or contains no npz files. Give a folder such as <logdir>/train_eps.")
first = read(files[0])
action = reverie.ActionSpec(first.action.shape[1], is_discrete=all(map(is_one_hot, files)))
form = Format[rest[0] if rest else "own"]
# `map` reads one file at a time.
count = write_episodes(Path(target), form, map(read, files), spec_of(first, action))
print(f"wrote {count} episodes to {target}, actions: {action.text}")
