"""Format numbers with units."""

from heapwatch.texts import count_text as count_text


def size_text(nbytes: int) -> str:
    """Format a number of bytes in GiB or MiB.

    >>> size_text(3 * 2**29), size_text(5 * 2**19)
    ('1.50 GiB', '2.5 MiB')
    """
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def memory_text(used_mb: float, planned_mb: float | None) -> str:
    """Format used and planned MB (1e6 bytes) in the units of plans: '753.2 MiB of 843.9 MiB'."""
    return " of ".join(size_text(round(mb * 1e6)) for mb in (used_mb, planned_mb) if mb is not None)
