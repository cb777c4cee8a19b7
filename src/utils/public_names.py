"""Public names of a package that are imported on first use, because torch takes seconds to import."""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from .errors import INSTALL


def public_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `__getattr__` and `__dir__` of a package, which import and list its public names.

    Args:
        package: Name of the package.
        homes: Dotted path of each public name; one with a leading dot is relative to the package.
    """

    def get(name: str) -> Any:
        """Import a public name."""
        if name not in homes:
            close = get_close_matches(name.lower(), names := {each.lower(): each for each in homes}, n=1)
            hint = f". Did you mean: {names[close[0]]!r}?" if close else ""
            # With `name` set here, Python adds no suggestion of its own.
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
        module, _, own_name = homes[name].rpartition(".")
        try:
            value = getattr(import_module(module, package), own_name)
        except ModuleNotFoundError as error:
            if error.name == "heapwatch":
                raise ImportError(f"{error}, which {package} needs. {INSTALL}") from error
            raise
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)
