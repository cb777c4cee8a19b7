"""Create a prompt session at each step.

Report: https://github.com/prompt-toolkit/python-prompt-toolkit/issues/1688
Versions: 3.0.20 to 3.0.36 (fixed in 3.0.52)
Install: pip install --target known/prompt_toolkit/site-packages prompt_toolkit==3.0.36
"""

from prompt_toolkit import PromptSession  # pyright: ignore[reportMissingImports]
from prompt_toolkit.input import DummyInput  # pyright: ignore[reportMissingImports]
from prompt_toolkit.output import DummyOutput  # pyright: ignore[reportMissingImports]


def step(number: int) -> None:
    PromptSession(input=DummyInput(), output=DummyOutput())
