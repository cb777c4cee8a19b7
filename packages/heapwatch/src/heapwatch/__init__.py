"""Find the object that retains growing memory, in any Python program.

pytest must not warn that `heapwatch -m pytest` has already imported this package: PYTEST_DONT_REWRITE
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import budget as budget
    from .checks import no_growth as no_growth
    from .errors import UsageError as UsageError
    from .objects.graph_holders import find_graph_holders as graph_holders
    from .watch.watch import Watch as Watch
    from .watch.watch import track as track

__version__ = "0.1.0"
__all__ = ["UsageError", "Watch", "budget", "graph_holders", "no_growth", "track"]

# Each public name is imported on first use.
_HOMES = {
    "UsageError": "errors:UsageError",
    "Watch": "watch.watch:Watch",
    "budget": "checks:budget",
    "graph_holders": "objects.graph_holders:find_graph_holders",
    "no_growth": "checks:no_growth",
    "track": "watch.watch:track",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = resolve_name(f"{__name__}.{_HOMES[name]}")
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
