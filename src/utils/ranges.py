"""Check that numbers which a user set lie where they have a meaning."""

import math

from .errors import UserError


def require_range(
    section: str,
    settings: object,
    *names: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> None:
    """Refuse fields of the dataclass `settings` that are outside a range or not finite; None is in each.

    `section` is what the user types before the names, "" for settings that have none. The value must be at
    least `ge`, greater than `gt`, at most `le`, less than `lt`.
    """
    for name in names:
        value = getattr(settings, name)
        key = f"{section}.{name}" if section else name
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{key} must be a finite number, got {value}.")
        is_low = (ge is not None and value < ge) or (gt is not None and value <= gt)
        is_high = (le is not None and value > le) or (lt is not None and value >= lt)
        if is_low or is_high:
            raise UserError(f"{key} must be {_range_text(ge, gt, le, lt)}, got {value}.")


def _range_text(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    """Return the range as a user reads it.

    >>> _range_text(1, None, None, None), _range_text(None, 0, None, None), _range_text(0, None, None, 1)
    ('at least 1', '> 0', 'in [0, 1)')
    """
    low, high = (gt if ge is None else ge), (lt if le is None else le)
    if low is None:
        return f"at most {le}" if lt is None else f"< {lt}"
    if high is None:
        return f"at least {ge}" if gt is None else f"> {gt}"
    return f"in {'[' if gt is None else '('}{low}, {high}{']' if lt is None else ')'}"
