"""Warnings of a GPU driver that pages, for given numbers."""

import pytest
import torch

from reverie.memory.paging import driver_paging_warning, is_windows_driver, paging_warning

GB = 1_000_000_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_cuda_there_is_no_warning() -> None:
    assert driver_paging_warning() is None


def test_more_than_the_card_has_means_that_the_driver_is_paging() -> None:
    # The incident had 12.15 GiB allocated on a card with 6 GB.
    warning = paging_warning(int(12.15 * 2**30), 6 * GB, windows_driver=False)
    assert warning is not None
    assert warning.startswith(
        "13.05 GB are allocated on a GPU with 6.00 GB: the driver is paging to system memory"
    )


def test_windows_users_are_warned_in_advance_and_linux_users_are_not() -> None:
    warning = paging_warning(1 * GB, 6 * GB, windows_driver=True)
    assert warning is not None and "no out-of-memory error" in warning
    assert paging_warning(6 * GB, 6 * GB, windows_driver=False) is None


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Windows", "11", True),
        ("Linux", "5.15.167.4-microsoft-standard-WSL2", True),
        ("Linux", "4.4.0-19041-Microsoft", True),
        ("Linux", "6.8.0-45-generic", False),
        ("Darwin", "23.1.0", False),
    ],
)
def test_wsl_is_a_windows_driver(system: str, release: str, expected: bool) -> None:
    assert is_windows_driver(system, release) is expected
