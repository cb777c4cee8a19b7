"""The memory limit is the tightest limit of all control groups."""

from pathlib import Path

import psutil
from heapwatch.counters.limits import (
    cgroup_memory,
    memory_available_bytes,
    memory_limit_bytes,
)

UNLIMITED_V1 = "9223372036854771712\n"


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(text)
    return folder


def test_the_lowest_limit_of_a_hierarchy_holds_in_v2(tmp_path: Path) -> None:
    group(tmp_path / "slice" / "job", memory_max="max\n")
    assert cgroup_memory(tmp_path, "0::/slice/job\n")[0] is None
    group(tmp_path, memory_max="9000\n")
    assert cgroup_memory(tmp_path, "0::/slice/job\n")[0] == 9000
    group(tmp_path / "slice", memory_max="8000\n")
    assert cgroup_memory(tmp_path, "0::/slice/job\n")[0] == 8000


def test_v1_groups_next_to_v2_are_read_including_their_number_for_no_limit(tmp_path: Path) -> None:
    group(tmp_path / "memory", memory_limit_in_bytes=UNLIMITED_V1)
    membership = "4:memory:/docker/abc\n3:cpu,cpuset:/docker\n0::/\n"
    assert cgroup_memory(tmp_path, membership)[0] is None
    # The container sees the host's path, but only some of its folders are mounted.
    group(tmp_path / "memory" / "docker", memory_limit_in_bytes="7000\n")
    assert cgroup_memory(tmp_path, membership)[0] == 7000
    group(tmp_path / "memory", memory_limit_in_bytes="5000\n")
    assert cgroup_memory(tmp_path, membership)[0] == 5000


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path, "") == (None, None)


def test_the_tightest_group_limits_free_memory_and_cache_is_not_used_memory(tmp_path: Path) -> None:
    group(
        tmp_path / "slice",
        memory_max="8000",
        memory_current="7500",
        memory_stat="anon 1\ninactive_file 200\n",
    )
    group(
        tmp_path / "slice" / "job", memory_max="2000", memory_current="100", memory_stat="inactive_file 40\n"
    )
    assert cgroup_memory(tmp_path, "0::/slice/job")[1] == 8000 - (7500 - 200)


def test_what_is_left_is_read_from_v1_and_is_never_negative(tmp_path: Path) -> None:
    statistics = "inactive_file 1\ntotal_inactive_file 50\n"
    folder = tmp_path / "memory"
    group(folder, memory_limit_in_bytes="1000", memory_usage_in_bytes="300", memory_stat=statistics)
    assert cgroup_memory(tmp_path, "4:memory:/")[1] == 1000 - (300 - 50)
    group(folder, memory_usage_in_bytes="1200")
    assert cgroup_memory(tmp_path, "4:memory:/")[1] == 0


def test_this_machine_has_no_more_than_its_physical_memory() -> None:
    limit = memory_limit_bytes()
    assert 0 < limit <= psutil.virtual_memory().total
    assert 0 < memory_available_bytes() <= limit
