"""pytest plugin `heapwatch`: fail a test if repeated calls retain memory."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.logging import LogCaptureHandler


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

        decorate, function = no_growth(*marker.args, **marker.kwargs), pyfuncitem.obj
        # This refuses coroutine functions. They are no longer recognized once they are wrapped.
        decorate(function)

        @functools.wraps(function)
        def forgetful(**fixtures: Any) -> Any:
            result = function(**fixtures)
            # The log records of all calls would be growth.
            for handler in logging.getLogger().handlers:
                if isinstance(handler, LogCaptureHandler):
                    handler.clear()
            return result

        pyfuncitem.obj = decorate(forgetful)


@pytest.fixture(name="no_growth")
def no_growth_fixture() -> Callable[..., Any]:
    """Return `check(function, *arguments, steps=50, threshold_mb=0.1)`. It fails if memory grows."""
    from .checks import no_growth

    def check(function: Callable[..., Any], *args: Any, steps: int = 50, threshold_mb: float = 0.1) -> Any:
        return no_growth(steps=steps, threshold_mb=threshold_mb)(function)(*args)

    return check
