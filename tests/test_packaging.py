"""The installed packages are complete: all modules and YAML files, under a single name."""

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
from types import ModuleType

import pytest
import reverie_export
import reverie_play

import reverie

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Distributions:
    """The files that were built."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist, and from it the wheel, in a copy, because setuptools writes to the source folder."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("src", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    # Isolation would need a network.
    command = [sys.executable, "-m", "build", "--no-isolation", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist], [wheel] = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="module")
def heapwatch_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel("heapwatch", tmp_path_factory.mktemp("heapwatch"))


def build_wheel(package: str, copy: Path) -> Path:
    """Build the wheel of one of `packages` in a copy."""
    shutil.copytree(ROOT / "packages" / package, copy, dirs_exist_ok=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (copy / "dist").glob("*.whl")
    return wheel


def run_installed(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the packages installed in a folder, without this Python's editable installations."""
    libraries = Path(pytest.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(libraries)])}
    # With -S, Python ignores the .pth files that define editable installations.
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True)


def install(site: Path, *wheels: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(site)]
    done = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_both_wheels_install_from_a_folder_and_reverie_uses_heapwatch(
    built: Distributions, heapwatch_wheel: Path, tmp_path: Path
) -> None:
    install(tmp_path, heapwatch_wheel, built.wheel)
    code = "import reverie.memory as m, heapwatch; print(heapwatch.__file__, m.Watch is heapwatch.Watch)"
    done = run_installed(tmp_path, code)
    assert done.stdout.split() == [str(tmp_path / "heapwatch" / "__init__.py"), "True"], done.stderr
    names = zipfile.ZipFile(heapwatch_wheel).namelist()
    source = ROOT / "packages" / "heapwatch" / "src"
    assert {name for name in names if ".dist-info/" not in name} == relative_files(
        source, "*.py", "*.html", "*.toml", "py.typed"
    )


@pytest.mark.parametrize(
    ("name", "package", "files"),
    [
        ("reverie-export", reverie_export, ("py.typed",)),
        ("reverie-play", reverie_play, ("py.typed", "page.html")),
    ],
)
def test_the_wheel_of_a_package_has_its_files_and_version(
    name: str, package: ModuleType, files: tuple[str, ...], tmp_path: Path
) -> None:
    wheel = build_wheel(name, tmp_path)
    module = package.__name__
    assert wheel.name == f"{module}-{package.__version__}-py3-none-any.whl"
    names = {each for each in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in each}
    assert names == relative_files(ROOT / "packages" / name / "src", "*.py", *files)


TRAIN = "import sys; from reverie.commands.entry import train; sys.argv.append('device=cpu')"


def test_without_heapwatch_one_sentence_tells_how_to_install_it(built: Distributions, tmp_path: Path) -> None:
    install(tmp_path, built.wheel)
    repair = "pip install -c constraints.txt -e packages/heapwatch -e ."
    done = run_installed(tmp_path, "import reverie.memory; reverie.memory.Watch")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: No module named 'heapwatch'") and last.endswith(repair)
    done = run_installed(tmp_path, f"{TRAIN}; train()")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: No module named 'heapwatch'") and repair in done.stderr


def test_without_the_page_one_sentence_tells_how_to_install_it(
    built: Distributions, heapwatch_wheel: Path, tmp_path: Path
) -> None:
    install(tmp_path, heapwatch_wheel, built.wheel)
    done = run_installed(tmp_path, "from reverie.commands.entry import play; play()")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: No module named 'reverie_play'")
    assert done.stderr.endswith(
        " pip install -c constraints.txt -e packages/heapwatch -e packages/reverie-play\n"
    )


def relative_files(folder: Path, *patterns: str) -> set[str]:
    """Return the files in a folder that match one of the patterns, as relative paths."""
    return {str(path.relative_to(folder)) for pattern in patterns for path in folder.rglob(pattern)}


def test_the_wheel_holds_the_code_and_the_configurations_and_nothing_else(built: Distributions) -> None:
    expected = {f"reverie/{name}" for name in relative_files(ROOT / "src", "*.py", "*.pyi", "py.typed")}
    expected |= {f"reverie/configs/{name}" for name in relative_files(ROOT / "configs", "*.py", "*.yaml")}
    expected |= {"reverie/orchestration/on_track/pong.json"}
    expected |= {"reverie/orchestration/on_track/published.json.gz"}
    expected |= {"reverie/commands/model_card.md", "reverie/utils/html_page.css"}
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
        "reverie-certify",
        "reverie-collect",
        "reverie-doctor",
        "reverie-episodes",
        "reverie-evaluate",
        "reverie-export",
        "reverie-plan",
        "reverie-play",
        "reverie-plot",
        "reverie-train",
    ]
    assert all(callable(pkgutil.resolve_name(target)) for target in commands.values())


def test_the_wheel_has_the_version_that_the_code_tells(built: Distributions) -> None:
    assert built.wheel.name == f"reverie-{reverie.__version__}-py3-none-any.whl"


@pytest.mark.parametrize("name", ["src", "src.utils"])
def test_the_package_refuses_a_second_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match="Import this package as `reverie`, not as `src`"):
        importlib.import_module(name)
