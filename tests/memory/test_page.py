"""The Python code of docs/find_a_leak.md runs unmodified."""

import re
import subprocess
import sys
from pathlib import Path

from heapwatch.watch.command import options

PAGE = (Path(__file__).parents[2] / "docs" / "find_a_leak.md").read_text()


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    library, tests = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text(
        f"{tests}\n\ndef test_library():\n    {library.replace(chr(10), chr(10) + '    ')}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout
    assert (tmp_path / "memory" / "watch.json").exists()


def test_every_option_of_the_page_is_one_and_every_option_is_on_it() -> None:
    names = {name for action in options()._actions for name in action.option_strings} - {"-h", "--help"}
    assert names == {name for name in re.findall(r"(?<=[ `])--?[a-z-]+", PAGE) if name in names}
