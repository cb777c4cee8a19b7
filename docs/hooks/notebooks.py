"""Turn the notebooks of examples/ into pages of the site, with their outputs."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures of its outputs by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _fenced(source, ".python"))
        for output in _merged(cell.get("outputs", ())):
            if picture := output.get("data", {}).get("image/png"):
                name = f"{path.stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode(picture)
                parts.append(f"![Output of the cell above]({name})")
            elif text := _text_of(output):
                parts.append(_fenced(text, ".text .output"))
    return "\n\n".join(parts) + "\n", pictures


def _merged(outputs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the outputs of a cell, with the lines of a stream as one: a log writes each on its own."""
    for kind, group in groupby(outputs, lambda output: output.get("name")):
        if kind is None:
            yield from group
        else:
            yield {"output_type": "stream", "text": "".join("".join(each["text"]) for each in group)}


def _text_of(output: dict[str, Any]) -> str:
    """Return the text of an output, without the colours of a terminal."""
    text = (
        output["text"] if output["output_type"] == "stream" else output.get("data", {}).get("text/plain", "")
    )
    return _COLOURS.sub("", "".join(text)).rstrip()


def _fenced(text: str, classes: str) -> str:
    return f"````{{ {classes} }}\n{text}\n````"
