"""What docs/api.md says of `import reverie`."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reverie

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_the_public_names() -> None:
    assert sorted(SECTIONS) == sorted(reverie.__all__) == sorted(reverie._HOMES)
    assert len(reverie.__all__) <= 15


@pytest.mark.parametrize("name", reverie.__all__)
def test_a_public_name_is_there_and_its_parameters_are_on_the_page(name: str) -> None:
    value = getattr(reverie, name)
    assert value.__doc__
    if name in ("load", "check_env", "train", "WorldModel", "RSSM", "ReplayBuffer", "ReplaySpec", "EnvSpec"):
        heading = SECTIONS[name].splitlines()[0]
        assert all(
            re.search(rf"\b{parameter}\b", heading) for parameter in inspect.signature(value).parameters
        )
    elif name in ("Agent", "Run", "EnvReport"):
        members = {member for member in dir(value) if not member.startswith("_")}
        assert all(f"`{member}" in SECTIONS[name] for member in members)


def test_the_blocks_of_the_page_run_one_after_the_other(empty_folder: Path) -> None:
    space: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, space)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'reverie' has no attribute 'lode'"):
        reverie.lode  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]


def test_importing_reverie_imports_no_torch_and_takes_under_a_third_of_a_second() -> None:
    code = (
        "import sys, time; start = time.process_time(); import reverie;"
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    shown = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    seconds, *loaded = shown[-1].stdout.split()
    assert loaded == ["False", "False"]
    assert float(seconds) < 0.3
