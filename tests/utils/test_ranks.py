"""Sums, gathers and decisions of several processes match a single process's."""

from threading import Event, Thread

import pytest
import torch
from torch.distributed import HashStore

from reverie.utils.process_group import _heartbeat_key, _send_heartbeats
from reverie.utils.ranks import ALONE

from ..runs.ranks import FoundBySize, found_by_ranks
from .collectives import ROWS, inputs, loss

SIZES = (2, 3)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundBySize:
    return found_by_ranks(tmp_path_factory, "tests.utils.collectives", "float32", *SIZES)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return request.param


def test_numbers_are_added_up_in_float64(found: FoundBySize, size: int) -> None:
    for rank in found[size]:
        first, second, third = rank["sum"]
        assert first == sum(range(1, size + 1)) and second == pytest.approx(0.1 * size, rel=1e-15)
        # float32 is accurate to 1e9 at this size.
        assert third == pytest.approx(1e16 + size - 1, rel=1e-15)


def test_each_rank_has_its_own_share_of_the_rows(found: FoundBySize, size: int) -> None:
    shares = [rank["own rows"] for rank in found[size]]
    assert [row for _, start, stop in shares for row in range(start, stop)] == list(range(ROWS))
    assert {part for part, _, _ in shares} == {ROWS // size}


def test_tensors_of_any_shape_become_their_means(found: FoundBySize, size: int) -> None:
    for rank in found[size]:
        matrix, number = rank["average"]
        assert torch.equal(matrix, torch.full((2, 3), (size + 1) / 2))
        assert float(number) == pytest.approx(5.0 * (size - 1), rel=1e-6)


def test_all_have_the_tensors_and_the_text_of_the_first(found: FoundBySize, size: int) -> None:
    for rank in found[size]:
        assert torch.equal(rank["broadcast"], torch.zeros(1, 2, 2, 2))
        assert (rank["text"], rank["no text"]) == ("première", "")


def test_rows_are_gathered_in_the_order_of_the_ranks_and_have_the_gradient_of_one_process(
    found: FoundBySize, size: int
) -> None:
    whole, weight = inputs()
    weight.requires_grad_()
    rows = whole @ weight
    (loss(rows) + rows.square().mean()).backward()
    for rank in found[size]:
        torch.testing.assert_close(rank["rows"], rows.detach())
        torch.testing.assert_close(rank["gradient"], weight.grad)


def test_one_bit_makes_tensors_unequal(found: FoundBySize, size: int) -> None:
    for rank in found[size]:
        assert (rank["equal"], rank["unequal"], rank["minus zero"]) == (True, False, False)


def test_a_rank_that_is_silent_is_lost_in_time_and_one_that_ended_at_once(found: FoundBySize) -> None:
    silent, [first, second] = found[2][0]["lost"], [rank["lost"] for rank in found[3][:2]]
    assert silent.startswith("rank 0 of 2 lost another rank: ") and "imed out" in silent
    assert "rank 0 of 3 lost another rank: " in first and "rank 1 of 3 lost another rank: " in second
    assert "imed out" not in first + second


def test_a_rank_that_has_left_is_outside_the_store_when_python_ends() -> None:
    store, left = HashStore(), Event()
    heartbeats = Thread(target=_send_heartbeats, args=(store, 0, left))
    heartbeats.start()
    assert store.get(_heartbeat_key(0)) == b"0"
    left.set()
    heartbeats.join(10)
    assert not heartbeats.is_alive()


def test_a_process_alone_gets_what_it_gave() -> None:
    tensor = torch.arange(3.0, requires_grad=True)
    assert ALONE.gather(tensor) is tensor
    ALONE.average_([tensor])
    ALONE.broadcast_([tensor])
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    assert ALONE.sum([1, 2.5]) == [1, 2.5] and ALONE.text_of_first("a") == "a"
    assert ALONE.are_equal([tensor]) and ALONE.is_first and ALONE.slice_of(7) == slice(0, 7)
