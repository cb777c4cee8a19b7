"""Each extra of pyproject.toml installs everything that its feature imports."""

import importlib.metadata as metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Folders that a package adds to sys.path stay visible: Ray brings copies of two packages this way.
HIDE = """import sys
from importlib.machinery import PathFinder
at_start = set(sys.path)
class Visible:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if path is not None or name not in {hidden!r}:
            return self.finder.find_spec(name, path, target)
        return PathFinder.find_spec(name, [each for each in sys.path if each not in at_start])
sys.meta_path[:] = map(Visible, sys.meta_path)
"""
RUN = """from reverie.commands import entry
def run(command, *arguments):
    sys.argv = [command, *arguments]
    getattr(entry, command)()
"""
FACTORY = """from reverie.envs import EnvConfig, Suite, make_environment
from reverie.envs.config import Observations
"""
FEATURES = {
    "": RUN + "run('train', 'experiment=dreamer_catch', 'training.total_timesteps=60', 'run_dir=run')\n"
    "run('evaluate', 'run=run', 'episodes=1', 'video=video.mp4'); run('plot', 'run', 'out=report.html')",
    "crafter": FACTORY + "make_environment(EnvConfig(suite=Suite.crafter, action_repeat=1), 0).reset()",
    "dmc": FACTORY + "make_environment(EnvConfig(suite=Suite.dmc, task='walker_walk', action_repeat=2,"
    " observations=Observations.both), 0).reset()",
    "hub": "import huggingface_hub.errors",
    "minari": "import h5py; from minari.dataset import minari_storage",
    "mujoco": FACTORY
    + "make_environment(EnvConfig(suite=Suite.gymnasium, id='Swimmer-v5', action_repeat=1), 0).reset()",
    "ray": "import ray",
    "s3": "import fsspec; fsspec.filesystem('s3', anon=True)",
    "wandb": "import wandb; wandb.init(mode='offline').finish()",
}


def installed_by(*requirements: str) -> set[str]:
    """Return the names of these packages and of all packages that they require."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        each = waiting.pop()
        if (key := (canonicalize_name(each.name), frozenset(each.extras))) in found:
            continue
        found.add(key)
        try:
            required = [Requirement(text) for text in metadata.requires(each.name) or ()]
        except metadata.PackageNotFoundError:
            continue
        extras = ("", *each.extras)
        waiting += [
            new
            for new in required
            if not new.marker or any(new.marker.evaluate({"extra": x}) for x in extras)
        ]
    return {name for name, _ in found}


@pytest.mark.parametrize("extra", FEATURES, ids=lambda extra: extra or "core")
def test_a_feature_needs_no_package_beyond_its_extra(extra: str, tmp_path: Path) -> None:
    allowed = installed_by(f"reverie[{extra}]" if extra else "reverie", "heapwatch", "pip", "setuptools")
    hidden = {
        module
        for module, packages in metadata.packages_distributions().items()
        if not allowed & {canonicalize_name(package) for package in packages}
    }
    assert "pytest" in hidden
    code = HIDE.format(hidden=hidden) + FEATURES[extra]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
