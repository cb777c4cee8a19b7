"""Processing of measured times, with known numbers."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks.suite.floors import Rates, Work, count_work
from benchmarks.suite.load import Load
from benchmarks.suite.process import ProcessVariant
from benchmarks.suite.results import Floor, table, timed_result
from benchmarks.suite.timing import Block, Local, interleave, pair_ratios

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
FLOOR = Floor(0.5, "a limit")
ANSWERS = """
import json, sys
print(json.dumps({"facts": {"told": json.loads(sys.argv[1])["told"]}}), flush=True)
for line in sys.stdin:
    print(json.dumps({"calls": [json.loads(line)["seconds"]], "facts": {"answered": True}}), flush=True)
"""


def clean(*seconds: float) -> Block:
    return Block(list(seconds), others_cpu=0.1)


def disturbed(*seconds: float) -> Block:
    return Block(list(seconds), others_cpu=0.2)


def test_disturbed_blocks_are_left_out_where_three_clean_ones_remain() -> None:
    blocks = [clean(1.0), disturbed(9.0), clean(2.0, 4.0), clean(3.0)]
    result = timed_result("row", "ours", blocks, threads=1, floor=FLOOR, derived={"steps/s": 10.0})
    assert (result.min, result.median, result.max, result.repetitions) == (1.0, 2.5, 4.0, 4)
    assert result.disturbed == 1 and result.derived == {"steps/s": 4.0}


def test_disturbed_blocks_count_where_too_few_clean_ones_remain() -> None:
    result = timed_result(
        "row", "ours", [clean(1.0), disturbed(9.0), clean(2.0), disturbed(8.0)], threads=1, floor=FLOOR
    )
    assert (result.median, result.max, result.repetitions, result.disturbed) == (5.0, 9.0, 4, 2)


def test_a_ratio_is_taken_round_by_round_and_only_of_clean_rounds() -> None:
    ours = [clean(1.0), clean(2.0), disturbed(7.0), clean(4.0)]
    theirs = [clean(3.0), clean(8.0), clean(7.0), clean(20.0)]
    assert pair_ratios(theirs, ours) == [3.0, 4.0, 5.0]


def test_the_cpu_time_of_others_is_the_machine_s_less_our_own() -> None:
    before, now = Load(clock=10.0, machine=100.0, own=20.0), Load(clock=12.0, machine=104.0, own=23.0)
    assert now.others_since(before) == 0.5
    assert Load(12.0, 100.0, 21.0).others_since(before) == 0.0


def test_variants_take_turns_after_each_has_warmed_up() -> None:
    calls: list[str] = []
    variants = [Local(name, lambda name=name: calls.append(name), warmup=2) for name in "ab"]
    blocks = interleave(variants, rounds=1, block_seconds=0.0)
    assert calls[:6] == list("aabbab")
    assert all(len(block.seconds) == 1 for taken in blocks.values() for block in taken)


def test_multiplications_and_additions_of_convolutions_and_products_are_counted() -> None:
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4)
    image, weight = torch.ones(1, 2, 8, 8), torch.ones(5, 2, 3, 3)
    work = count_work(lambda: ((a @ b).sum().backward(), F.conv2d(image, weight, padding=1)))
    # The forward pass, and the same amount for the gradient of `a`.
    product = 2 * 2 * 3 * 4
    assert work == Work(conv_flops=2 * 5 * 2 * 3 * 3 * 8 * 8, matmul_flops=2 * product)


def test_the_floor_is_all_work_at_the_best_rate_that_was_ever_seen() -> None:
    rates = Rates(matmul_flops_per_s=10.0, conv_flops_per_s=4.0, copy_bytes_per_s=3.0)
    assert rates.seconds_of(Work(conv_flops=8, matmul_flops=5)) == 1.3
    later = Rates(matmul_flops_per_s=5.0, conv_flops_per_s=26.0, copy_bytes_per_s=2.0)
    assert rates.best_of(later) == Rates(10.0, 26.0, 3.0)
    assert rates.best_of(later).seconds_of(Work(conv_flops=8, matmul_flops=5)) == 0.5


def test_a_peer_answers_from_its_own_process() -> None:
    peer = ProcessVariant("peer", [sys.executable, "-c", ANSWERS], {"told": 7})
    peer.warm_up()
    assert peer.block(0.25) == [0.25]
    assert peer.facts == {"told": 7, "answered": True, "first_call_s": 0.0}
    peer.close()


def test_a_peer_that_fails_is_told_by_the_last_line_of_its_errors() -> None:
    script = "import sys; sys.stderr.write('ImportError: no wheels'); raise SystemExit(3)"
    with pytest.raises(RuntimeError, match="peer ended without an answer: ImportError: no wheels"):
        ProcessVariant("peer", [sys.executable, "-c", script], {})


def test_a_peer_s_own_loop_is_timed_cycle_by_cycle() -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(PEERS)!r})
from serve import Server
cycles = Server().cycles("torch", name="loop")
while True:
    next(cycles)
    time.sleep(0.01)
"""
    peer = ProcessVariant("peer", [sys.executable, "-c", script], {"threads": 1})
    assert peer.facts["name"] == "loop" and peer.facts["versions"]["torch"] == torch.__version__
    assert len(peer.block(0.0)) == 1
    calls = peer.block(0.1)
    assert sum(calls[:-1]) < 0.1 <= sum(calls)
    peer.close()


def test_a_table_has_a_line_for_each_variant_with_units() -> None:
    ours = timed_result("update", "reverie", [clean(0.002)], threads=1, floor=FLOOR)
    theirs = timed_result("update", "sheeprl", [clean(0.004)], threads=1, floor=FLOOR, base=[clean(0.002)])
    heading, first, second = table([ours, theirs]).splitlines()
    assert heading.startswith("row     variant  median")
    assert first.split()[:3] == ["update", "reverie", "2"] and second.split()[:2] == ["sheeprl", "4"]
    assert " 2" in second and "500 ms" in second


def test_the_scripts_of_the_peers_never_import_reverie() -> None:
    scripts = sorted(PEERS.glob("*.py"))
    assert len(scripts) >= 6
    assert not [path.name for path in scripts if "import reverie" in path.read_text()]
