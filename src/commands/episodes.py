"""Show, export and import episodes: reverie-episodes show|export|import [key=value ...].

  reverie-episodes show path=<folder>                       summarize episodes in any format
  reverie-episodes export run=<run> to=<folder>             write the complete episodes of a run's replay
  reverie-episodes import path=<folder> to=<new folder>     check any format and convert it to Reverie's
  reverie-train buffer.prefill=<folder> ...                 start a run with these episodes
  reverie-train ... training.offline=true                   train only on them

Formats: own, dreamerv3 (danijar's) and minari. For dreamerv3-torch: examples/convert_dreamerv3_torch.py
For the settings of an action: reverie-episodes export --help
"""

import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from ..checkpoints.run_folder import checkpoint_of, load_run
from ..checkpoints.shards import checkpoint_of_rank
from ..config.schema import Device
from ..episodes import (
    MOST_CHOICES,
    EpisodeSpec,
    Format,
    find_action,
    find_episodes,
    require_new,
    spec_of,
    write_episodes,
)
from ..orchestration.trained import replay_of
from ..utils.errors import UserError, did_you_mean, exit_on_user_error, printable, require_range
from ..utils.ranks import ALONE
from ..utils.timestep import ActionSpec
from ..utils.units import count_text
from .options import own_settings


@dataclass(kw_only=True, slots=True)
class ShowConfig:
    """Settings of `reverie-episodes show`."""

    path: str
    """Folder or file of episodes, in any of the formats."""


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """Settings of `reverie-episodes export`."""

    run: str
    """Run folder. Its newest checkpoint is read."""

    to: str
    """New folder for the episodes."""

    format: Format = Format.own
    """Format to write."""


@dataclass(kw_only=True, slots=True)
class ImportConfig:
    """Settings of `reverie-episodes import`."""

    path: str
    """Folder or file of episodes, in any of the formats."""

    to: str
    """New folder for the episodes in Reverie's own format."""

    choices: int | None = None
    """Number of discrete actions, for files that do not include it, or null to infer it from the actions."""

    def __post_init__(self) -> None:
        require_range("", self, "choices", ge=1, le=MOST_CHOICES)


@exit_on_user_error()
def main(arguments: list[str] | None = None) -> None:
    """Run `reverie-episodes`. The exit code is 2 after a user error or for an invalid file."""
    word, *others = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    actions = {
        "show": (ShowConfig, _show),
        "export": (ExportConfig, _export),
        "import": (ImportConfig, _import),
    }
    if word in ("-h", "--help"):
        return print(__doc__, end="")
    if word not in actions:
        hint = did_you_mean(word, actions)
        raise UserError(f"{word} is not an action of reverie-episodes. Choose {', '.join(actions)}.{hint}")
    schema, action = actions[word]
    settings, _ = own_settings(schema, others, f"reverie-episodes {word}", __doc__)
    action(settings)


def _show(config: ShowConfig) -> None:
    episodes = find_episodes(Path(config.path))
    action = find_action(episodes)
    lengths, returns, parts = [], [], {}
    for episode in episodes.read(action):
        parts = spec_of(episode, action).observation
        lengths.append(len(episode.reward) - 1)
        returns.append(float(episode.reward.sum(dtype=np.float64)))
    rows = {
        "format": episodes.format.value,
        "episodes": f"{len(lengths):,}",
        "steps": f"{sum(lengths):,}, {np.mean(lengths):,.1f} per episode",
        **{f"observation {printable(key)}": f"{part.dtype} {part.shape}" for key, part in parts.items()},
        "action": action.text,
        "return": f"mean {np.mean(returns):.4g}, min {min(returns):.4g}, max {max(returns):.4g}",
    }
    if episodes.skipped_text:
        rows["skipped"] = printable(episodes.skipped_text)
    for name, text in rows.items():
        print(f"{name:<{max(map(len, rows))}}  {text}")


def _export(config: ExportConfig) -> None:
    require_new(Path(config.to))
    # Only the replay is read, which needs no classes of the run.
    run = load_run(config.run, device=Device.cpu, trust=True)
    folder = Path(config.run)
    # The first call finds the episodes of all ranks. Without a checkpoint, the second call raises the error.
    checkpoint = checkpoint_of_rank(run, folder, ALONE) or checkpoint_of(run, folder)
    replay, request = replay_of(checkpoint, run, folder)
    spec = EpisodeSpec(dict(request.observation), request.action)
    count = write_episodes(Path(config.to), config.format, replay.episodes(), spec)
    written = f"wrote {count_text(count, 'episode')} from step {checkpoint.step:,} to {config.to}"
    print(f"{written} (format={config.format.value})")


def _import(config: ImportConfig) -> None:
    require_new(Path(config.to))
    episodes = find_episodes(Path(config.path))
    action = ActionSpec(config.choices, True) if config.choices else find_action(episodes)
    read = episodes.read(action)
    first = next(read)
    spec = spec_of(first, action)
    count = write_episodes(Path(config.to), Format.own, chain([first], read), spec)
    written = f"wrote {count_text(count, 'episode')} of {episodes.format.value} to {config.to}"
    print(f"{written}, actions: {action.text}")
    if episodes.skipped_text:
        print(f"skipped: {printable(episodes.skipped_text)}")
