"""pytest plugin `heapwatch`: fail a test if repeated calls retain memory."""

from collections.abc import Callable
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "no_growth(steps=50, threshold_mb=0.1): repeat the test and fail if memory in use grows."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Call a marked test repeatedly, with the same fixtures."""
    marker = pyfuncitem.get_closest_marker("no_growth")
    if marker is not None:
        # Only marked tests pay for these imports.
        from .checks import no_growth

        pyfuncitem.obj = no_growth(*marker.args, **marker.kwargs)(pyfuncitem.obj)


@pytest.fixture(name="no_growth")
def no_growth_fixture() -> Callable[..., Any]:
    """Return `check(function, *arguments, steps=50, threshold_mb=0.1)`. It fails if memory grows."""
    from .checks import no_growth

    def check(function: Callable[..., Any], *args: Any, steps: int = 50, threshold_mb: float = 0.1) -> Any:
        return no_growth(steps=steps, threshold_mb=threshold_mb)(function)(*args)

    return check
