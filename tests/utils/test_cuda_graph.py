"""Each call of a captured function matches the function's, draws the same numbers and allocates no memory."""

import logging

import pytest
import torch
from torch import Tensor

from reverie.utils.compilation import CUDAGraphCall

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


class Walk:
    """Adds its input and noise to a state, in place."""

    def __init__(self) -> None:
        self.state = torch.zeros(8, device=CUDA)
        self.generator = torch.Generator(CUDA).manual_seed(7)

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        noise = torch.rand(8, device=CUDA, generator=self.generator)
        self.state += inputs["step"] * noise
        return {"state": self.state.clone(), "noise": noise}


def captured(walk: Walk) -> CUDAGraphCall:
    return CUDAGraphCall(walk, CUDA, [walk.generator], "walk")


def test_captured_calls_are_the_eager_ones_bit_for_bit_noise_included() -> None:
    eager, walk = Walk(), Walk()
    call = captured(walk)
    for step in range(8):
        # This input is in host memory.
        inputs = {"step": torch.full((8,), float(step))}
        found = {name: value.clone() for name, value in call(inputs).items()}
        expected = eager({"step": inputs["step"].to(CUDA)})
        assert (call.graph is not None) is (step >= CUDAGraphCall.EAGER_CALLS)
        for name, value in expected.items():
            assert torch.equal(found[name], value), (step, name)
    assert torch.equal(walk.state, eager.state)
    assert torch.equal(walk.generator.get_state(), eager.generator.get_state())


def test_a_stream_of_noise_that_is_set_back_repeats_itself_in_a_graph() -> None:
    walk = Walk()
    call = captured(walk)
    inputs = {"step": torch.ones(8)}
    for _ in range(5):
        call(inputs)
    state = walk.generator.get_state()
    first = call(inputs)["noise"].clone()
    walk.generator.set_state(state)
    assert torch.equal(call(inputs)["noise"], first)


def test_captured_calls_never_ask_the_allocator() -> None:
    call, inputs = captured(Walk()), {"step": torch.ones(8, device=CUDA)}
    for _ in range(5):
        call(inputs)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        call(inputs)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_what_cannot_be_captured_goes_on_eagerly_with_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    def asks_the_host(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"double": inputs["x"] * (2.0 if bool(inputs["x"].sum() > 0) else 0.0)}

    call = CUDAGraphCall(asks_the_host, CUDA, [], "a question")
    with caplog.at_level(logging.WARNING):
        for value in range(1, 7):
            assert call({"x": torch.full((2,), float(value))})["double"].tolist() == [2.0 * value] * 2
    [message] = caplog.messages
    assert message.startswith("a question cannot be captured as a CUDA graph here and runs kernel by kernel:")
