"""Speed up functions with `torch.compile` or CUDA graphs."""

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
_STOPS = (signal.SIGINT, signal.SIGTERM)


def load_compiler() -> None:
    """Import torch's compiler and let it create its cache folder (2 s, 75 MB of memory).

    Raises:
        UserError: If the compiler cannot create the folder.
    """
    try:
        import torch._dynamo  # noqa: F401
    except OSError as error:
        raise UserError(
            f"torch's compiler cannot create its folder {error.filename or 'in TMPDIR'}: {error.strerror}. "
            "Set TORCHINDUCTOR_CACHE_DIR (or TMPDIR, its default location) to a writable folder."
        ) from error


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of a pure function that torch compiles on its first call, once per shape.

    If compilation fails, or there are too many shapes, the function runs eagerly from then on. A warning
    reports this, unless a signal stopped the compiler.
    """
    load_compiler()
    # Suppress the compiler's advice, because users cannot change the choices that it refers to.
    warnings.filterwarnings("ignore", module=r"torch\._inductor")
    # The compiler reads `.grad` of every input.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
    # The compiler creates an object of each autograd function.
    warnings.filterwarnings("ignore", r".*Function'> should not be instantiated", DeprecationWarning)
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    fast, is_possible = _compile(function), True

    def call(*args: Any) -> Any:
        nonlocal is_possible
        if is_possible:
            try:
                return fast(*args)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                is_possible = False
                if not _was_stopped(error):
                    name, reason = function.__qualname__, first_line(error)
                    _LOG.warning("torch.compile failed for %s, falling back to eager: %s", name, reason)
        return function(*args)

    return call


@cache
def why_not_compiled(device: str = "cpu") -> str | None:
    """Return why functions cannot be compiled for a device, or `None` if they can. This may take 10 s."""
    try:
        _compile(lambda x: x + 1)(torch.zeros(2, device=device))
    # A machine may lack a compiler, headers or a writable folder, so the error can be of any type.
    except Exception as error:
        return first_line(error)
    return None


class Compilations:
    """Counts the compilations in this process, and reports their start and end to `tell`.

    `tell` receives a text at each start and `None` at each end. Compilations after `settle` cost time
    and memory, and may recur. They are counted separately, and each logs a warning.
    """

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        # Only these private callbacks report compilations. This import loads the compiler.
        from torch._dynamo.callback import callback_handler

        self.count, self.late_count, self.seconds = 0, 0, 0.0
        self._tell, self._began, self._is_settled = tell, 0.0, False
        self._handler = callback_handler
        self._handler.register_start_callback(self._start)
        self._handler.register_end_callback(self._end)

    def settle(self) -> None:
        """Treat every later compilation as a recompilation, and end the compiler's processes.

        Call this after every joint update, because a recompilation starts new processes.
        """
        from torch._inductor.async_compile import shutdown_compile_workers

        self._is_settled = True
        shutdown_compile_workers()

    def tags(self) -> dict[str, float]:
        """Return the total counts by tag."""
        tags = {"compilations": self.count, "recompilations": self.late_count, "seconds": self.seconds}
        return {f"debug/compile/{name}": float(value) for name, value in tags.items()}

    def close(self) -> None:
        """Stop counting."""
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
            _LOG.warning("recompiled (did shapes change?); recompiling costs time and memory")


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that reports any compilation failure on its first call."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    # By default, the compiler silently falls back to eager execution.
    dynamo.fail_on_recompile_limit_hit = True
    # By default, a backward pass is only compiled when it first runs.
    functorch.force_non_lazy_backward_lowering = True
    options = {
        # Shapes and modules cannot change here. Acting is a tenth faster without checks at every call.
        "size_asserts": False,
        "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
        # A GPU has many kernels. With eight processes, the first update took 163 instead of 246 s. For the
        # few kernels of a CPU, processes would cost more time than they save.
        "compile_threads": 4 if torch.cuda.is_available() else 1,
    }
    return torch.compile(function, dynamic=False, options=options)


def _was_stopped(error: BaseException | None) -> bool:
    """Return whether an error comes from a compiler that SIGINT or SIGTERM stopped, like this process."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and -error.returncode in _STOPS:
            return True
        error = error.__cause__ or error.__context__
    return False


class CUDAGraphCall:
    """Calls `function` eagerly a few times, then captures its kernels and launches them as one CUDA graph.

    The eager calls select cuDNN's kernels and fill library caches, which must not happen during capture.
    Capture does not execute kernels, so every call takes effect exactly once. A graph launch never allocates
    or synchronizes. `generators` are all random generators of `function`. They advance with each call.

    `function` maps named tensors to named tensors, always with the same shapes and dtypes. It must not copy
    a value to the host or keep a new tensor. The next call overwrites its results.

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
        """Return `function(inputs)`. The input tensors may be on any device."""
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
        """Call `function` on the stream that will be captured, so that autograd records the same stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self._function({name: value.to(self._device) for name, value in inputs.items()})
        current.wait_stream(self._stream)
        return outputs

    def _capture(self, inputs: Mapping[str, Tensor]) -> None:
        """Capture the kernels of one call. If this fails, log a warning and keep calling eagerly."""
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
