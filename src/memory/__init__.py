"""Counters, holders and growth of memory, for any PyTorch program: docs/find_a_leak.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import budget, no_growth
    from .objects.graph_holders import find_graph_holders as graph_holders
    from .watch.watch import Watch, track

__all__ = ["Watch", "budget", "graph_holders", "no_growth", "track"]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used; a training run uses none of them."""
    if name == "graph_holders":
        from .objects.graph_holders import find_graph_holders

        return find_graph_holders
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import checks
    from .watch import watch

    return getattr(checks if hasattr(checks, name) else watch, name)
