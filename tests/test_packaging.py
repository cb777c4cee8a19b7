"""What a user installs is whole: every module and every YAML file, under one name only."""

import configparser
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import reverie

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Distributions:
    """The built files."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist, and the wheel from that sdist, in a copy, since setuptools writes where it builds."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("src", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "build", "--no-isolation", str(copy)]  # isolation would need a network
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist], [wheel] = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    return Distributions(sdist, wheel)


def relative_files(folder: Path, *patterns: str) -> set[str]:
    """Return the files below the folder that match one of the patterns, as paths relative to it."""
    return {str(path.relative_to(folder)) for pattern in patterns for path in folder.rglob(pattern)}


def test_the_wheel_holds_the_code_and_the_configurations_and_nothing_else(built: Distributions) -> None:
    expected = {f"reverie/{name}" for name in relative_files(ROOT / "src", "*.py", "py.typed")}
    expected |= {f"reverie/configs/{name}" for name in relative_files(ROOT / "configs", "*.py", "*.yaml")}
    expected |= {"reverie/orchestration/pong/on_track.json", "reverie/play/page.html"}
    networks = ROOT / "src" / "pretrained"
    expected |= {
        f"reverie/pretrained/{name}" for name in relative_files(networks, "*.yaml", "*.json", "*.safetensors")
    }
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_the_sdist_holds_what_a_packager_needs_to_test_it(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {f"tests/{name}" for name in relative_files(ROOT / "tests", "*.py")} | {
        "scripts/train.py",
        "LICENSE",
    }
    assert expected <= names


def test_the_wheel_is_importable_away_from_the_repository(built: Distributions, tmp_path: Path) -> None:
    zipfile.ZipFile(built.wheel).extractall(tmp_path / "site")
    code = "import reverie, reverie.configs; print(reverie.__file__, reverie.configs.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    site = tmp_path / "site" / "reverie"
    assert done.stdout.split() == [str(site / "__init__.py"), str(site / "configs" / "__init__.py")]


def test_every_command_that_the_wheel_brings_can_be_called(built: Distributions) -> None:
    archive = zipfile.ZipFile(built.wheel)
    [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    groups = configparser.ConfigParser()
    groups.read_string(archive.read(entry_points).decode())
    commands = dict(groups["console_scripts"])
    assert sorted(commands) == [
        "reverie-analyze-snapshots",
        "reverie-certify",
        "reverie-collect",
        "reverie-doctor",
        "reverie-episodes",
        "reverie-evaluate",
        "reverie-export",
        "reverie-plan",
        "reverie-play",
        "reverie-plot",
        "reverie-probe",
        "reverie-train",
        "reverie-watch",
    ]
    assert all(callable(pkgutil.resolve_name(target)) for target in commands.values())
    assert pkgutil.resolve_name(groups["pytest11"]["reverie"]).no_growth_fixture


def test_the_wheel_has_the_version_that_the_code_tells(built: Distributions) -> None:
    assert built.wheel.name == f"reverie-{reverie.__version__}-py3-none-any.whl"


@pytest.mark.parametrize("name", ["src", "src.utils"])
def test_the_package_refuses_a_second_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match="Import this package as `reverie`, not as `src`"):
        importlib.import_module(name)
