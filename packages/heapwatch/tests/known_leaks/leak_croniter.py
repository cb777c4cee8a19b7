"""Evaluate a new schedule at each step.

Report: https://github.com/pallets-eco/croniter/pull/185
Versions: 1.4.1 to 6.1.0 (fixed in 6.2.2)
Install: pip install --target known/croniter/site-packages croniter==6.1.0
"""

from datetime import UTC, datetime

from croniter import croniter  # pyright: ignore[reportMissingImports]

START = datetime(2026, 1, 1, tzinfo=UTC)


def step(number: int) -> None:
    for each in range(200):
        minute, hour = divmod(200 * number + each, 24)
        croniter(f"{minute % 60} {hour} {1 + minute // 60 % 28} * *", START).get_next(datetime)
