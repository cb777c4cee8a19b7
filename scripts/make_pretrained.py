"""Create the weights that ship with the package from a run, like `reverie-export` but without a model card.

python scripts/make_pretrained.py run=<run> out=src/pretrained/<name> commit=<of the run> trained_on=<machine>
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from reverie.commands.export import PAGE_FILE, ExportConfig, export_run
from reverie.commands.options import own_settings
from reverie.utils.errors import exit_on_user_error


@dataclass(kw_only=True, slots=True)
class Settings:
    """Settings of the export, typed as key=value."""

    run: str
    """Run folder (its newest checkpoint is used) or `pretrained:<name>`."""

    out: str
    """New folder for the files."""

    episodes: int = 20
    """Number of episodes behind the score in `card.json`."""

    commit: str
    """Commit that the run was trained with."""

    trained_on: str
    """Machine and time of training, as text."""


@exit_on_user_error()
def main() -> None:
    """Write `weights.safetensors`, `config.yaml` and `card.json`."""
    settings, _ = own_settings(Settings, sys.argv[1:], "make_pretrained", __doc__)
    asked = ExportConfig(run=settings.run, out=settings.out, episodes=settings.episodes)
    export_run(asked, {"commit": settings.commit, "trained_on": settings.trained_on})
    (Path(settings.out) / PAGE_FILE).unlink()


if __name__ == "__main__":
    main()
