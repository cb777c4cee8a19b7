"""The public names of `import reverie` agree with docs/api.md."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

import reverie
from reverie import memory

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
MEMORY_NAMES = "Watch budget gpu_memory_stats graph_holders no_growth process_rss_mb track".split()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_the_public_names() -> None:
    assert sorted(SECTIONS) == dir(reverie)
    assert len(SECTIONS) <= 40


@pytest.mark.parametrize("name", dir(reverie))
def test_a_public_name_is_there_and_its_parameters_are_on_the_page(name: str) -> None:
    value = getattr(reverie, name)
    heading = SECTIONS[name].splitlines()[0]
    if "(" in heading and "(**" not in heading:
        assert all(
            re.search(rf"\b{parameter}\b", heading) for parameter in inspect.signature(value).parameters
        )
    if name in ("Agent", "Run", "EnvReport", "ReplayBuffer"):
        members = {member for member in dir(value) if not member.startswith("_")}
        assert all(f"`{member}" in SECTIONS[name] for member in members)


def test_the_blocks_of_the_page_run_one_after_the_other(empty_folder: Path) -> None:
    space: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, space)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'reverie' has no attribute 'lode'"):
        reverie.lode  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("typed", "meant"), [("lod", "load"), ("chek_env", "check_env"), ("Agnet", "Agent"), ("LOAD", "load")]
)
def test_a_misspelled_name_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{typed}'. Did you mean: '{meant}'"):
        getattr(reverie, typed)


def test_a_traceback_has_the_suggestion_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import reverie; reverie.lod"], capture_output=True, text=True
    )
    assert ended.stderr.count("Did you mean") == 1


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    script = "import reverie; reverie.check_env; import reverie.buffers; print(*dir(reverie))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.split() == sorted(SECTIONS)


def test_the_memory_tools_are_imported_on_first_use_and_listed() -> None:
    code = "import sys; from reverie import memory; listed = dir(memory)"
    code += "; first = 'heapwatch.watch' in sys.modules; from reverie.memory import *"
    code += "; print(*listed, first, Watch.__name__, graph_holders.__name__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [*MEMORY_NAMES, "False", "Watch", "find_graph_holders"]
    with pytest.raises(
        AttributeError, match=r"'reverie.memory' has no attribute 'budgte'. Did you mean: 'budget'"
    ):
        memory.budgte  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]


def documented_members(value: object) -> Iterator[tuple[str, object]]:
    """Yield a public name and, for our own classes, the public methods and properties."""
    yield "", value
    if inspect.isclass(value):
        for owner in value.__mro__:
            if owner.__module__.startswith("reverie."):
                for name, member in vars(owner).items():
                    is_code = inspect.isroutine(member) or isinstance(member, property | cached_property)
                    if is_code and not name.startswith("_"):
                        yield f".{name}", member


@pytest.mark.parametrize("name", dir(reverie))
def test_a_public_name_and_each_of_its_methods_has_a_docstring_of_its_own(name: str) -> None:
    for member, value in documented_members(getattr(reverie, name)):
        written = (value.__doc__ or "").strip()
        # A dataclass without a docstring gets its signature as docstring.
        assert written and not written.startswith(f"{getattr(value, '__name__', name)}("), name + member


HEAVY = ("ale_py", "av", "fsspec", "gymnasium", "hydra", "matplotlib", "numpy", "omegaconf", "PIL", "ray")
HEAVY += ("scipy", "tensorboard", "torch", "torch._dynamo", "wandb")
LOADING = {"ale_py", "gymnasium", "hydra", "numpy", "omegaconf", "PIL", "torch"}


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        ("__version__, reverie.UserError", set[str]()),
        ("RSSM, reverie.ReplayBuffer, reverie.WorldModel, reverie.EnvSpec", {"numpy", "torch"}),
        ("check_env", {"numpy", "gymnasium", "ale_py", "PIL"}),
        ("load('pretrained:catch')", LOADING),
    ],
)
def test_a_name_imports_what_it_needs(asked: str, needed: set[str]) -> None:
    code = f"import sys, reverie; reverie.{asked}; print([name for name in {HEAVY} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(shown.stdout)) == needed
