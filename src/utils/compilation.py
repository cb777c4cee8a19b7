"""Functions made faster: compiled by torch, or launched as one CUDA graph."""

import logging
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .errors import UserError, first_line

_LOG = logging.getLogger(__name__)
COMPILING = "compiling for this machine"
_OPTIONS = {
    # Checks at every call of what cannot change here; without them a step of acting is a tenth faster.
    "size_asserts": False,
    "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
    # Kernels are few: further processes that compile cost more than they save, and they stay.
    "compile_threads": 1,
}


def load_compiler() -> None:
    """Import torch's compiler, which makes a folder then; a `UserError` if it cannot. Cost: 75 MB and 2 s."""
    try:
        import torch._dynamo  # noqa: F401
    except OSError as error:
        raise UserError(
            f"torch's compiler cannot make its folder {error.filename or 'in TMPDIR'}: {error.strerror}. Set "
            "TORCHINDUCTOR_CACHE_DIR, or TMPDIR, where it lies otherwise, to a folder that can be written to."
        ) from error


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pure function that is compiled at its first call, once for each shape.

    Where that fails, or for too many shapes, it runs as written from then on, after a warning; without one
    where Ctrl-C ended the compiler.
    """
    load_compiler()
    warnings.filterwarnings("ignore", module=r"torch\._inductor")  # advice about choices of its own
    # The compiler reads it of every tensor that it is given.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    fast, is_possible = _compile(function), True

    def call(*args: Any) -> Any:
        nonlocal is_possible
        if is_possible:
            try:
                return fast(*args)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                is_possible = False
                if not _was_interrupted(error):
                    name, reason = function.__name__, first_line(error)
                    _LOG.warning("torch.compile failed for %s, falling back to eager: %s", name, reason)
        return function(*args)

    return call


@cache
def why_not_compiled(device: str = "cpu") -> str | None:
    """Return why functions cannot be compiled for a device, None if they can; trying it may take 10 s."""
    try:
        _compile(lambda x: x + 1)(torch.zeros(2, device=device))
    except Exception as error:  # whatever a machine lacks: a compiler, headers, a folder to write to
        return first_line(error)
    return None


class Compilations:
    """Counts what this process compiles; `tell` is given words while it lasts, and None at its end.

    What is compiled after `settle` costs seconds, may never end, and keeps memory: it is counted separately,
    with a warning.
    """

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        from torch._dynamo.callback import callback_handler  # no other way to know; loads the compiler

        self.count, self.late_count, self.seconds = 0, 0, 0.0
        self._tell, self._began, self._is_settled = tell, 0.0, False
        self._handler = callback_handler
        self._handler.register_start_callback(self._start)
        self._handler.register_end_callback(self._end)

    def settle(self) -> None:
        """Expect no more of them from now on."""
        self._is_settled = True

    def tags(self) -> dict[str, float]:
        """Return the totals by tag."""
        return {
            "debug/compile/compilations": float(self.count),
            "debug/compile/recompilations": float(self.late_count),
            "debug/compile/seconds": self.seconds,
        }

    def close(self) -> None:
        """Count no more."""
        self._handler.remove_start_callback(self._start)
        self._handler.remove_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._began = time.monotonic()
        self._tell(COMPILING)

    def _end(self, _: Any) -> None:
        self.count += 1
        self.seconds += time.monotonic() - self._began
        self._tell(None)
        if self._is_settled:
            self.late_count += 1
            _LOG.warning("something was compiled again, which costs time and memory: have shapes changed?")


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what fails at its first call, and at no later moment, if it cannot be compiled."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    dynamo.fail_on_recompile_limit_hit = True  # else it would silently run as written
    functorch.force_non_lazy_backward_lowering = True  # else backward passes are compiled when they run
    return torch.compile(function, dynamic=False, options=_OPTIONS)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error comes from a compiler that SIGINT ended: Ctrl-C is for it, too."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode == -signal.SIGINT:
            return True
        error = error.__cause__ or error.__context__
    return False


class CUDAGraphCall:
    """Calls `function` as it is a few times, then records its kernels once and launches them as one graph.

    The first calls are real ones: they choose cuDNN's kernels and fill the caches of libraries, which must
    not happen inside a graph. Capturing runs nothing, so every call takes effect once. A graph allocates
    nothing and never waits. Random numbers continue the streams of `generators`, those that it draws from.

    `function` takes and returns tensors by name, always of the same shapes and dtypes. It must not ask the
    host for a value, and must keep no new tensor. The next call overwrites its results.

    Source: "CUDA graphs" in torch's notes on CUDA semantics.
    """

    EAGER_CALLS = 3

    def __init__(
        self,
        function: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        device: torch.device,
        generators: Sequence[torch.Generator],
        name: str,
    ) -> None:
        self._function, self._device, self._generators, self._name = function, device, generators, name
        self._eager_calls_left: float = self.EAGER_CALLS
        self._stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what `function` gives for `inputs`, tensors of any device."""
        if self.graph is None and self._eager_calls_left <= 0:
            self._capture(inputs)
        if self.graph is None:
            self._eager_calls_left -= 1
            return self._call_eagerly(inputs)
        for name, place in self._inputs.items():
            place.copy_(inputs[name], non_blocking=True)
        self.graph.replay()
        return self._outputs

    def _call_eagerly(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Call on the stream that will be captured, so that autograd's records of streams match."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self._function({name: value.to(self._device) for name, value in inputs.items()})
        current.wait_stream(self._stream)
        return outputs

    def _capture(self, inputs: Mapping[str, Tensor]) -> None:
        """Record the kernels of one call; where that is impossible, continue without it, and log it once."""
        places = {name: value.to(self._device, copy=True) for name, value in inputs.items()}
        graph, began = torch.cuda.CUDAGraph(), time.monotonic()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                outputs = self._function(places)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._eager_calls_left = float("inf")
            message = "%s cannot be captured as a CUDA graph here and runs kernel by kernel: %s"
            _LOG.warning(message, self._name, first_line(error))
            return
        self.graph, self._inputs, self._outputs = graph, places, outputs
        _LOG.info("captured %s as a CUDA graph in %.1f s", self._name, time.monotonic() - began)
