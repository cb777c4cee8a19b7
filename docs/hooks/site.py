"""Build pages from the code and the notebooks, link files of the repository, and render math as MathML."""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from notebooks import notebook_page
from settings import presets_page, settings_page

_ROOT = Path(__file__).parents[2]
_MATH = re.compile(r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<tex>.*?)\\[\])]</(?P=tag)>', re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
_HTTP, _SSH = (
    r"https?://(?:[^@/]*@)?(?P<host>[\w.:-]+)/",
    r"(?:ssh://)?\w+@(?P<ssh_host>[\w.-]+)(?::\d+)?[:/]",
)
_REMOTE = re.compile(rf"(?:{_HTTP}|{_SSH})(?P<name>[\w.~/-]+?)(?:\.git)?/?")


def repository_address(remote: str) -> str:
    """Return the web address of a git remote, or "" for a remote without one, such as a folder."""
    found = _REMOTE.fullmatch(remote.strip())
    return f"https://{found['host'] or found['ssh_host']}/{found['name']}" if found else ""


def on_config(config: Any) -> Any:
    """Link to the repository that this clone came from."""
    command = ["git", "-C", str(_ROOT), "remote", "get-url", "origin"]
    has_git = shutil.which("git") is not None
    remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout if has_git else ""
    config.repo_url = repository_address(remote) or None
    config.repo_name = config.repo_url.split("/", 3)[3] if config.repo_url else None
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code and the notebooks."""
    made: dict[str, str | bytes] = {"settings.md": settings_page(), "presets.md": presets_page()}
    for path in sorted((_ROOT / "examples" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"], pictures = notebook_page(path)
        made |= {f"notebooks/{name}": picture for name, picture in pictures.items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to files outside of the site at the repository, or show only their names without one.

    The home page uses the whole width. Front matter would say so too, but GitHub shows that as a table.
    """
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    pages = {file.src_uri for file in files if not file.inclusion.is_excluded()}
    folder = Path("docs", page.file.src_uri).parent

    def rewrite(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = Path(os.path.normpath(folder / target))
        if path.suffix == ".ipynb":
            return f"[{text}]({os.path.relpath(f'docs/notebooks/{path.stem}.md', folder)})"
        if path.is_relative_to("docs") and path.relative_to("docs").as_posix() in pages:
            return found[0]
        if not (_ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
        if config.repo_url:
            return f"[{text}]({config.repo_url}/blob/HEAD/{path.as_posix()})"
        return f"`{path}`" if text.strip("`") in (target, str(path)) else f"{text} (`{path}`)"

    return _LINK.sub(rewrite, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """List only the sections of the settings next to their page, not each of them."""
    if page.file.src_uri == "settings.md":
        for section in page.toc.items[0].children:
            section.children.clear()
    return context


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Replace the TeX that arithmatex has marked by MathML, which browsers render without a script."""

    def render(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["tex"]).strip(), display=display)

    rendered = _MATH.sub(render, content)
    if 'class="arithmatex"' in rendered:
        raise PluginError(f"{page.file.src_uri} has math that is not rendered")
    return rendered
