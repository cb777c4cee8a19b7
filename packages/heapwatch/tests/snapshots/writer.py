"""Write snapshots like torch 2.13 and older versions, without a GPU."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

Fields = dict[str, Any]

# The allocator rounds up to multiples of this size.
UNIT = 512
SEGMENT = 2 * 2**20
# Bytes in each active block beyond the request.
ROUNDED_OFF = 100

INCIDENT_STEPS = range(1_000, 46_000, 1_000)
LARGE_BLOCKS = 17
# 17 blocks of this size are 0.17 GB.
LARGE_BLOCK = 19_531 * UNIT
FIRST_BLOCKS, LAST_BLOCKS = 8_695, 382_744
FIRST_SMALL, LAST_SMALL = 0.39e9, 9.31e9


def stack(*lines: str) -> list[Fields]:
    """Convert 'file:line:name' lines, innermost first, to frames."""
    parts = [line.split(":") for line in lines]
    return [{"filename": file, "line": int(number), "name": name} for file, number, name in parts]


TORCH_LINE = "torch/nn/modules/linear.py:134:forward"
LOOP = ("src/workflows/world_models/dreamer.py:88:collect_step", "src/commands/train.py:31:main")
OBSERVE = stack(TORCH_LINE, "src/models/rssm.py:142:observe", *LOOP)
ENCODE = stack(TORCH_LINE, "src/models/encoder.py:57:forward", *LOOP)
ACT = stack("src/models/heads.py:210:sample", *LOOP)
PARAMETERS = stack("src/orchestration/build.py:40:build", LOOP[-1])
LEAKING = [(OBSERVE, 0.6), (ENCODE, 0.25), (ACT, 0.15)]


def block(
    size: int, frames: list[Fields] | None = None, state: str = "active_allocated", address: int = 0
) -> Fields:
    """Return a block. An inactive block contains its last request, like in torch."""
    requested = size - ROUNDED_OFF
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames or [],
    }


def segment(
    blocks: list[Fields], *, small: bool = True, address: int = 0x7F0000000000, **others: object
) -> Fields:
    """Return a segment that consists of these blocks, with the keys of torch 2.13."""
    active = [one for one in blocks if one["state"] != "inactive"]
    held = [one for one in blocks if one["state"] == "active_allocated"]
    return {
        "device": 0,
        "address": address,
        "total_size": sum(one["size"] for one in blocks),
        "allocated_size": sum(one["size"] for one in held),
        "active_size": sum(one["size"] for one in active),
        "requested_size": sum(one["requested_size"] for one in active),
        "stream": 0,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
        **others,
    }


def snapshot(segments: list[Fields], events: list[Fields] | None = None) -> Fields:
    """Return a complete snapshot of torch 2.13, with `events` as its history."""
    return {
        "segments": segments,
        "device_traces": [events or []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 0},
        },
        "external_annotations": [
            {
                "stage": "START",
                "name": "Optimizer.step#LaProp.step",
                "device": 0,
                "time_us": 1_748_730_219_595_970,
            }
        ],
    }


def event(action: str, address: int = 0x7F0000000000, size: int = UNIT, **others: object) -> Fields:
    """Return an entry of the history. For an `oom`, the address is the free memory, like in torch."""
    place = {"device_free": 0} if action == "oom" else {"addr": address}
    common = {"action": action, "size": size, "stream": 0, "time_us": 1_748_730_219_595_970}
    return {**common, **place, "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), **others}


def write(folder: Path, step: int, data: object, protocol: int = 4) -> Path:
    """Save `data` as a step's snapshot with `pickle.dump`, like torch."""
    path = folder / f"snapshot_step_{step}.pickle"
    with path.open("wb") as file:
        pickle.dump(data, file, protocol)
    return path


def small_segments(size: int, count: int, frames: list[Fields]) -> list[Fields]:
    """Return segments of 2 MiB with `count` blocks of one size. The rest of each segment is inactive.

    The blocks are one dict that all segments reference, address included. A pickle stores it once, so 400,000
    of them are cheap.
    """
    whole, rest = divmod(count, SEGMENT // size)
    one = block(size, frames)
    segments = []
    for index in range(whole + bool(rest)):
        start = 0x7F0000000000 + index * SEGMENT
        number = SEGMENT // size if index < whole else rest
        left = SEGMENT - number * size
        gap = [block(left, state="inactive", address=start + number * size)] if left else []
        segments.append(segment([one] * number + gap, address=start))
    return segments


def filled(count: int, total: float, frames: list[Fields]) -> list[Fields]:
    """Return segments with `count` blocks of two neighboring sizes and a sum of `total` within 512 bytes."""
    if not count:
        return []
    size = int(total / count) // UNIT * UNIT
    larger = round((total - count * size) / UNIT)
    return small_segments(size, count - larger, frames) + small_segments(size + UNIT, larger, frames)


def incident(step: int, *, frames: bool = True, scale: float = 1.0) -> Fields:
    """Return the incident's snapshot at a step: the small pool grows by 202.7 KB and 8.5 blocks per step.

    A `scale` below 1 shrinks the small pool and its growth, so that it loads faster.
    """
    done = (step - INCIDENT_STEPS[0]) / (INCIDENT_STEPS[-1] - INCIDENT_STEPS[0])
    first = round((FIRST_BLOCKS - LARGE_BLOCKS) * scale)
    leaked = round((LAST_BLOCKS - FIRST_BLOCKS) * done * scale)
    leaked_bytes = (LAST_SMALL - FIRST_SMALL) * done * scale
    segments = [
        segment([block(LARGE_BLOCK, PARAMETERS if frames else None)], small=False)
        for _ in range(LARGE_BLOCKS)
    ]
    segments += filled(first, FIRST_SMALL * scale, PARAMETERS if frames else [])
    assigned = 0
    for index, (site, share) in enumerate(LEAKING):
        count = leaked - assigned if index == len(LEAKING) - 1 else round(leaked * share)
        assigned += count
        share_bytes = leaked_bytes * count / leaked if leaked else 0
        segments += filled(count, share_bytes, site if frames else [])
    return snapshot(segments)


def log(folder: Path, scalars: Mapping[int, Mapping[str, float]]) -> Path:
    """Write scalars by step and tag to a TensorBoard event file."""
    events = SummaryWriter(str(folder))
    for step, values in scalars.items():
        for tag, value in values.items():
            events.add_scalar(tag, value, step)
    events.close()
    return folder
