"""Import a package's public names on first use, because importing torch is slow."""

import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import INSTALL


def public_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package with lazily imported names.

    The package's stub `__init__.pyi` has a line `from .module import name as name` for each public name, so
    type checkers and editors read the same list.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi").read_text()
    found = re.findall(r"^from (\S+) import (\w+) as (\w+)$", stub, re.MULTILINE)
    homes = {name: (module, own_name) for module, own_name, name in found}

    def get(name: str) -> Any:
        """Import a public name."""
        if name not in homes:
            close = get_close_matches(name.lower(), names := {each.lower(): each for each in homes}, n=1)
            hint = f". Did you mean: {names[close[0]]!r}?" if close else ""
            # Python adds its own suggestion unless `name` is set.
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
        module, own_name = homes[name]
        try:
            value = getattr(import_module(module, package), own_name)
        except ModuleNotFoundError as error:
            if error.name == "heapwatch":
                raise ImportError(f"{error} (required by {package}). {INSTALL}") from error
            raise
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes), sorted(homes)
