"""Changes between two snapshots, and the growth of a series."""

from pathlib import Path
from typing import Any

import pytest
from heapwatch.leaks.verdict import TrendClass
from heapwatch.snapshots.command import TOP_SITES, top_sites
from heapwatch.snapshots.reader import Frame, Summary, read_summary, summarize
from heapwatch.snapshots.series import (
    NO_STACK,
    Growth,
    compare,
    find_snapshots,
    frame_lines,
    measure_growth,
    site_label,
)

from . import writer


def summary_of(*segments: dict[str, Any], step: int = 1) -> Summary:
    return summarize(writer.snapshot(list(segments)), Path("made.pickle"), step)


def growing(sizes: list[int], *, reserved: list[int] | None = None) -> Growth:
    """Return a series of snapshots with one active block of each size, 1,000 steps apart."""
    summaries = []
    for index, size in enumerate(sizes):
        segments = [writer.segment([writer.block(size, writer.OBSERVE)], small=False)]
        if reserved is not None:
            segments.append(writer.segment([writer.block(reserved[index], state="inactive")], small=False))
        summaries.append(summary_of(*segments, step=1_000 * index))
    return measure_growth(summaries)


def stack_of(frames: list[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in frames)


def test_a_comparison_sees_inside_segments_and_ignores_addresses() -> None:
    before = [
        writer.block(1_024, writer.OBSERVE, address=0),
        writer.block(512, writer.ENCODE, address=1_024),
        writer.block(2_048, writer.ACT, address=1_536),
        writer.block(256, writer.PARAMETERS, address=5_000),
    ]
    after = [
        # A moved block is not a change.
        writer.block(256, writer.PARAMETERS, address=0),
        writer.block(1_024, writer.OBSERVE, address=256),
        writer.block(512, writer.OBSERVE, address=1_280),
        writer.block(2_048, [], address=1_792),
        writer.block(1_024, writer.ACT, address=7_000),
        writer.block(1_024, writer.ACT, address=8_024),
    ]
    gap = writer.block(16_384, state="inactive")
    changes = compare(
        summary_of(writer.segment([*before, gap])).sites, summary_of(writer.segment([*after, gap])).sites
    )
    assert [
        (site_label(c.stack).split(" < ")[0], c.change, c.bytes_more, c.new_blocks, c.freed_blocks)
        for c in changes
    ] == [
        (NO_STACK, "new", 2_048, 1, 0),
        ("rssm.py:142 observe", "grown", 512, 1, 0),
        ("heads.py:210 sample", "same", 0, 2, 1),
        ("encoder.py:57 forward", "freed", -512, 0, 1),
    ]


def test_a_comparison_the_other_way_round_is_its_mirror() -> None:
    a = summary_of(*writer.incident(2_000, scale=0.01)["segments"]).sites
    b = summary_of(*writer.incident(9_000, scale=0.01)["segments"]).sites
    there, back = compare(a, b), compare(b, a)
    assert there
    assert {c.stack: (c.bytes_more, c.new_blocks, c.freed_blocks) for c in there} == {
        c.stack: (-c.bytes_more, c.freed_blocks, c.new_blocks) for c in back
    }
    assert compare(b, b) == []


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ([10_000_000 + 512 * 200 * i for i in range(45)], TrendClass.growing),
        ([10_000_000] * 45, TrendClass.flat),
        ([10_000_000 + 5_000_000 * (i % 3) for i in range(45)], TrendClass.flat),
        # This series is a warm-up.
        ([10_000_000 + min(i, 10) * 9_000_000 for i in range(45)], TrendClass.flat),
        ([10_000_000 + 512 * 200 * i for i in range(20)], TrendClass.undecided),
    ],
    ids=["leak", "flat", "sawtooth", "warm-up", "too few"],
)
def test_a_series_is_judged(sizes: list[int], verdict: TrendClass) -> None:
    assert growing(sizes).verdict is verdict


def test_the_slope_is_per_step_whatever_the_distance_of_the_snapshots() -> None:
    growth = growing([1_000_000 + 102_400 * i for i in range(45)])
    assert growth.bytes_per_step == pytest.approx(102.4)
    assert growth.active.slope_bytes_per_sample == pytest.approx(102_400)
    assert growth.blocks_per_step == 0
    assert growing([512]).bytes_per_step == 0


def test_reserved_memory_that_rises_over_flat_active_memory_is_no_leak() -> None:
    growth = growing([1_000_000] * 45, reserved=[1_000_000 + 2_097_152 * i for i in range(45)])
    assert growth.verdict is TrendClass.retention
    assert growth.active.verdict is TrendClass.flat


def test_snapshots_are_found_by_number_among_other_files(tmp_path: Path) -> None:
    for name in (
        "snapshot_step_10.pickle",
        "snapshot_step_9.pickle",
        "snapshot_step_2.pickle.part",
        "snapshot_step_09.pickle",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    assert list(find_snapshots(tmp_path)) == [9, 10]


def test_growth_by_call_site_is_exact(tmp_path: Path) -> None:
    steps = (1_000, 12_000, 23_000)
    for step in steps:
        writer.write(tmp_path, step, writer.incident(step, scale=0.05))
    growth = measure_growth([read_summary(path, step) for step, path in find_snapshots(tmp_path).items()])
    by_site = {site_label(site.stack).split(" < ")[0]: site for site in growth.sites}
    assert list(by_site) == ["rssm.py:142 observe", "encoder.py:57 forward", "heads.py:210 sample"]
    first, last = growth.summaries[0], growth.summaries[-1]
    assert sum(site.bytes_more for site in growth.sites) == last.active_bytes - first.active_bytes
    assert sum(site.new_blocks for site in growth.sites) == last.active_blocks - first.active_blocks
    assert growth.sites[0].bytes_more / (last.active_bytes - first.active_bytes) == pytest.approx(
        0.6, abs=1e-3
    )


def test_a_call_site_is_the_users_own_line() -> None:
    assert site_label(stack_of(writer.OBSERVE)) == (
        "rssm.py:142 observe < dreamer.py:88 collect_step < train.py:31 main"
    )
    assert site_label(stack_of(writer.stack(writer.TORCH_LINE))) == "linear.py:134 forward"
    assert site_label(()) == NO_STACK
    assert frame_lines(()) == [NO_STACK]


def test_without_a_line_of_python_the_frames_worth_showing_are_named() -> None:
    unwinder = Frame("??", 0, "torch::unwind::unwind()")
    other = Frame("x.cpp", 3, "make()")
    assert site_label((unwinder, other)) == "x.cpp:3 make()"
    assert frame_lines((unwinder, other)) == ["x.cpp:3 make()"]


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("??", "torch::unwind::unwind()"),
        ("??", "torch::CapturedTraceback::gather(bool, bool, bool)"),
        ("Module.cpp", "gather_with_cpp()"),
        ("??", "_start"),
        ("libc-start.c", "__libc_start_main_impl"),
        ("/usr/src/Python/ceval.c", "_PyEval_EvalFrameDefault"),
        ("/usr/src/Include/internal/pycore_ceval.h", "call_function"),
        ("/usr/src/Objects/call.c", "vectorcall_method"),
        ("/usr/src/Objects/methodobject.c", "cfunction_call"),
        ("/usr/src/Modules/main.c", "pymain_run_file"),
        ("/usr/src/Python/pythonrun.c", "run_mod"),
        ("/usr/src/Include/cpython/abstract.h", "vectorcall"),
        ("/pytorch/aten/src/ATen/core/boxing/KernelFunction.h", "call()"),
        ("/pytorch/build/aten/src/ATen/RegisterCUDA.cpp", "wrapper_mm()"),
        ("/pytorch/torch/csrc/autograd/RedispatchFunctions.h", "add()"),
    ],
)
def test_frames_of_unwinder_interpreter_and_dispatcher_are_not_shown(filename: str, name: str) -> None:
    other = Frame("restart.cpp", 3, "at::native::mm_start(Register)")
    assert frame_lines((Frame(filename, 0, name), other)) == [f"restart.cpp:3 {other.name}"]


def test_without_a_line_of_python_the_first_frame_outside_the_allocator_is_named() -> None:
    allocator = "c10::cuda::CUDACachingAllocator::Native::"
    inner = (
        Frame("CUDACachingAllocator.cpp", 0, f"{allocator}DeviceCachingAllocator::malloc(unsigned long)"),
        Frame("??", 0, f"{allocator}NativeCachingAllocator::allocate(unsigned long)"),
        Frame("??", 0, "at::TensorBase at::detail::_empty_generic<long>(long, c10::Allocator*)"),
        Frame("EmptyTensor.cpp", 0, "at::detail::empty_cuda(c10::ArrayRef<long>)"),
    )
    outer = Frame("??", 0, "at::(anonymous namespace)::structured_mm_out(long, c10::Allocator*)")
    caller = Frame("??", 0, "torch::autograd::Engine::thread_init(int)")
    label = f"??:0 {outer.name} < ??:0 {caller.name}"
    assert site_label((*inner, outer, caller)) == label
    assert site_label((outer, caller, *inner)).startswith(label)
    assert site_label(inner[:1]) == f"CUDACachingAllocator.cpp:0 {inner[0].name}"
    assert len(frame_lines((*inner, outer, caller))) == 6


def test_of_many_call_sites_those_that_shrank_most_are_shown_too() -> None:
    before = [writer.block(1_048_576, writer.stack("freed.py:1:f"))]
    after = [writer.block(512 * i, writer.stack(f"a.py:{i}:f")) for i in range(1, TOP_SITES + 6)]
    changes = compare(summary_of(writer.segment(before)).sites, summary_of(writer.segment(after)).sites)
    grown = [512 * i for i in range(TOP_SITES + 5, 6, -1)]
    assert [site.bytes_more for site in top_sites(changes)] == [*grown, -1_048_576]
