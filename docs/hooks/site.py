"""Build pages from the code, rewrite links to files outside of the site, and render math as MathML."""

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from settings import presets_page, settings_page

_ROOT = Path(__file__).parents[2]
_MATH = re.compile(r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<tex>.*?)\\[\])]</(?P=tag)>', re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code."""
    for name, content in {"settings.md": settings_page(), "presets.md": presets_page()}.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let a link to a file of the repository that the site leaves out name that file instead."""
    pages = {file.src_uri for file in files if not file.inclusion.is_excluded()}
    folder = Path("docs", page.file.src_uri).parent

    def rewrite(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to("docs") and path.relative_to("docs").as_posix() in pages:
            return found[0]
        if not (_ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
        return f"`{path}`" if text.strip("`") in (target, str(path)) else f"{text} (`{path}`)"

    return _LINK.sub(rewrite, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Replace the TeX that arithmatex has marked by MathML, which browsers render without a script."""

    def render(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["tex"]).strip(), display=display)

    rendered = _MATH.sub(render, content)
    if 'class="arithmatex"' in rendered:
        raise PluginError(f"{page.file.src_uri} has math that is not rendered")
    return rendered
