"""What a check of the doctor says."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """OK; WARN: runs work, but less well than they could; FAIL: a run would fail."""

    OK = "green"
    WARN = "yellow"
    FAIL = "red"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report."""

    subject: str
    verdict: Verdict
    found: str
    fix: str = ""
    """What to do, to be pasted where it is a command; empty when the verdict is OK."""


def gib(num_bytes: int) -> str:
    """Return bytes as people read them.

    >>> gib(1_610_612_736)
    '1.5 GiB'
    """
    return f"{num_bytes / 2**30:.1f} GiB"
