"""Run a function as one CUDA graph: launched as a whole, it allocates nothing and never waits."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)

Tensors = dict[str, Tensor]


class CUDAGraphCall:
    """Calls `function` as it is a few times, then records its kernels once and launches them as one graph.

    The first calls are real ones: they choose cuDNN's kernels and fill the caches of libraries, which must
    not happen inside a graph. Capturing runs nothing, so every call, captured or not, takes effect once.
    Random numbers continue the streams of `generators`, those of `device` that it draws from.

    `function` takes and returns tensors by name, always of the same shapes and dtypes. It must read its
    inputs and all else on the device in place, must not ask the host for a value, and must keep no new
    tensor. The next call overwrites its results.

    Source: "CUDA graphs" in torch's notes on CUDA semantics.
    """

    EAGER_CALLS = 3

    def __init__(
        self,
        function: Callable[[Tensors], Tensors],
        device: torch.device,
        generators: Sequence[torch.Generator],
        name: str,
    ) -> None:
        self._function, self._device, self._generators, self._name = function, device, generators, name
        self._eager_calls_left: float = self.EAGER_CALLS
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: Tensors = {}
        self._outputs: Tensors = {}

    @property
    def is_captured(self) -> bool:
        """Whether calls launch the graph already."""
        return self._graph is not None

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensors:
        """Return what `function` gives for `inputs`, tensors of any device."""
        if self._graph is None and self._eager_calls_left <= 0:
            self._capture(inputs)
        if self._graph is None:
            self._eager_calls_left -= 1
            return self._call_eagerly(inputs)
        for name, place in self._inputs.items():
            place.copy_(inputs[name], non_blocking=True)
        self._graph.replay()
        return self._outputs

    def _call_eagerly(self, inputs: Mapping[str, Tensor]) -> Tensors:
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
            _LOG.warning(
                "%s cannot be captured as a CUDA graph here and runs kernel by kernel: %s",
                self._name,
                str(error).splitlines()[0],
            )
            return
        self._graph, self._inputs, self._outputs = graph, places, outputs
        _LOG.info("captured %s as a CUDA graph in %.1f s", self._name, time.monotonic() - began)
