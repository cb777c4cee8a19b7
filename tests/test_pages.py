"""Code in the README and the site can be used as shown: Python runs, and command lines compose."""

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from heapwatch.snapshots import command as snapshots
from heapwatch.watch.command import options
from reverie_export.command import OnnxConfig
from reverie_play.command import PlayConfig

from benchmarks import compression
from benchmarks.chaos import ChaosConfig
from benchmarks.suite.command import BenchConfig
from benchmarks.sweep import SweepConfig
from reverie.checkpoints.run_folder import check_change
from reverie.commands import certify, collect, episodes, evaluate, export, plan, plot
from reverie.commands.command_line import _flags
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs, with_experiment
from reverie.config.overrides import parse
from reverie.config.resolve import typed
from reverie.config.workflow import setting_types
from reverie.utils.errors import FlagParser

ROOT = Path(__file__).parents[1]
MADE = (
    "settings.md",
    "presets.md",
    *(f"notebooks/{path.stem}.md" for path in ROOT.glob("examples/notebooks/*.ipynb")),
)
# These are tested with the features they describe.
OTHERS = ("api.md", "find_a_leak.md", "robot.md", "your_data.md", "your_environment.md")
SCRIPTS = {
    "plan_memory": "plan",
    "certify_memory": "certify",
    "analyze_memory_snapshot": "heapwatch-snapshots",
}
COMMAND = re.compile(
    r"(?:^|[\s;(])(?:python scripts/(\w+)\.py|(?:reverie-)?((?<=reverie-)\w[\w-]*|heapwatch[\w-]*))"
    r"(?=\s|$)([^;|&]*)"
)


def nav(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from nav(value) if isinstance(value, list) else [value]


SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = ["README.md", *(f"docs/{name}" for name in nav(SITE["nav"]) if name not in MADE)]


HOOK = runpy.run_path(str(ROOT / "docs" / "hooks" / "settings.py"), run_name="settings")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each block."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", (ROOT / page).read_text(), re.M | re.S)
    return ((language, text) for _, language, text in found)


def command_lines(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each Reverie command in a block with its arguments, with placeholders as one argument."""
    for language, text in blocks(page):
        if language == "python":
            continue
        for typed_line in text.replace("\\\n", " ").splitlines():
            line = re.sub(r"<[^>]*>", "1", typed_line.replace("experiment=<...>", "experiment=dreamer"))
            if not line.lstrip().startswith(("#", "INFO", "WARNING", "git ")) and (
                found := COMMAND.search(line)
            ):
                script, command, rest = found.groups()
                given = rest.replace("$format", "own").replace("$SLURM_ARRAY_TASK_ID", "1")
                words = re.sub(r"[][]", "", given)
                yield command or SCRIPTS.get(script, script), shlex.split(words, comments=True)


def compose(arguments: list[str]) -> None:
    """Compose the configuration of a training command, as the command itself does."""
    flags = _flags([each for each in arguments if each != "..."])
    named = {item.key_or_group: item for item in parse(flags.overrides)}
    if "resume" in named:
        fixed = ("workflow", "run_dir", "resume")
        for item in named.values():
            if item.key_or_group not in fixed:
                check_change(item, fixed=fixed)
        return
    [*jobs] = compose_jobs(with_experiment(flags.overrides), multirun=flags.multirun)
    if not any(argument in ("device=cuda", "buffer.storage=cuda") for argument in arguments):
        typed(jobs[0])


def with_own(schema: type, prefix: str) -> Callable[[list[str]], None]:
    def check(arguments: list[str]) -> None:
        words = [each for each in arguments if each not in ("--help", "--ab")]
        _, others = own_settings(schema, words, "test", "", prefix)
        compose([each.replace("seed=1,2", "seed=1").replace("true,false", "true") for each in others])

    return check


def alone(schema: type) -> Callable[[list[str]], object]:
    return lambda arguments: own_settings(schema, arguments, "test", "")


def check_episodes(arguments: list[str]) -> None:
    word, *rest = arguments
    schemas = {"export": episodes.ExportConfig, "import": episodes.ImportConfig, "show": episodes.ShowConfig}
    own_settings(schemas[word], rest, "test", "")


def check_export(arguments: list[str]) -> None:
    has_format = any(each.startswith("format=") for each in arguments)
    own_settings(OnnxConfig if has_format else export.ExportConfig, arguments, "test", "")


CHECKS: dict[str, Callable[[list[str]], object]] = {
    "train": compose,
    "plan": with_own(plan.PlanConfig, "plan."),
    "certify": with_own(certify.CertifyConfig, "certify."),
    "sweep": with_own(SweepConfig, "sweep."),
    "chaos": with_own(ChaosConfig, "chaos."),
    "benchmark": with_own(BenchConfig, "bench."),
    "evaluate": alone(evaluate.EvaluateConfig),
    "export": check_export,
    "plot": plot._parse,
    "play": alone(PlayConfig),
    "collect": alone(collect.CollectorsConfig),
    "episodes": check_episodes,
    "heapwatch": lambda arguments: options().parse_args(arguments),
    "doctor": FlagParser().parse_args,
    "heapwatch-snapshots": snapshots._parser().parse_args,
    # This is tested with the package's networks.
    "make_pretrained": lambda arguments: None,
    "compression": lambda arguments: alone(compression.Settings)(
        # That Python is not installed here.
        [each for each in arguments if each != "torchrl=1"]
    ),
}


# The last page has its own module.
@pytest.mark.parametrize("page", [page for page in PAGES if Path(page).name != OTHERS[-1]])
def test_each_command_line_of_a_page_is_one(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command, arguments in command_lines(page):
        CHECKS[command](arguments)


@pytest.mark.parametrize("page", [page for page in PAGES if Path(page).name not in OTHERS])
def test_the_python_of_a_page_runs(page: str, empty_folder: Path) -> None:
    space: dict[str, object] = {"__name__": "page"}
    for language, text in blocks(page):
        if language == "python":
            exec(text.replace("total_timesteps=13_000", "total_timesteps=24, model='debug'"), space)


WIDTH = 110


def prose(page: str) -> Iterator[str]:
    """Yield the lines of a page that an editor wraps: not code, equations, tables, headings or images."""
    text = re.sub(r"^( *)(```|\$\$).*?^\1\2$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    return (line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "![", "[![")))


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_of_a_page_wraps_at_one_width(page: str) -> None:
    too_long = [line for line in prose(page) if len(line) > WIDTH]
    assert [line for line in too_long if " " in line.strip().removeprefix("- ")] == []


def test_the_readme_fits_on_a_few_screens_and_an_algorithm_page_on_two() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    pages = sorted((ROOT / "docs" / "algorithm").glob("*.md"))
    assert {f"docs/algorithm/{page.name}" for page in pages} <= set(PAGES)
    assert all(len(page.read_text().splitlines()) <= 120 for page in pages)


@pytest.mark.parametrize("page", [page for page in PAGES if "algorithm/" in page or "architecture" in page])
def test_the_files_that_explain_the_code_name_files_that_exist(page: str) -> None:
    named = set(re.findall(r"`([\w.]+/[\w./]+)`", (ROOT / page).read_text()))
    assert named
    roots = (ROOT, ROOT / "src", ROOT / "packages" / "heapwatch" / "src", ROOT / "src" / "orchestration")
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


def test_each_setting_is_once_on_its_page_with_its_meaning() -> None:
    page = HOOK["settings_page"]()
    entry = r"^### `([\w.]+)` \{#\1\}\n\n[^`\n]+, default `(.*?)`(?:, (.*))?\n\{ \.setting \}\n\n(.*)$"
    entries = re.findall(entry, page, re.MULTILINE)
    assert sorted(key for key, *_ in entries) == sorted(setting_types())
    composed = {
        key
        for each in ("dreamer_catch", "erl_pendulum")
        for key in HOOK["_flat"](compose_jobs([f"experiment={each}"])[0])
    }
    assert composed == set(setting_types())
    assert all(meaning.strip() for *_, meaning in entries)
    found = {key: (default, bounds) for key, default, bounds, _ in entries}
    assert found["env.image_size"] == ("64", "in [48, 256] and a multiple of 16")
    assert found["training.batch_size"] == ("16", "at least 1, at most 1000000")


def test_a_preset_is_shown_by_what_it_changes() -> None:
    changed = HOOK["changed"](["experiment=dreamer_catch"])
    assert (changed["training.total_timesteps"], changed["model.strided"]) == ("3800", "true")
    assert "training.keep_checkpoints" not in changed
    assert HOOK["changed"](["experiment=dreamer"])["training.batch_size"] == "8, on CUDA 16"
