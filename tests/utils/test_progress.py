"""Progress is compared word for word; the bar is drawn on a real terminal."""

import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from reverie.utils.logging import Progress, ProgressMode

SCRIPT = """
import logging
import sys
from reverie.utils.logging import Progress, ProgressMode, configure_logging

close = configure_logging()
for mode in ProgressMode:
    print(f"<{mode.value}>", file=sys.stderr)
    progress = Progress(200, mode, clock=iter([0.0, 10.0, 10.0]).__next__)
    progress.update(50, episode_return=-19.0, updates_per_second=4.25, memory_mb=3100.0, planned_mb=3400.0)
    logging.getLogger("reverie.orchestration").info("checkpoint [written]" + " in a long line" * 20)
    progress.close()
    progress.close()
close()
"""


def by_mode(shown: str) -> dict[str, str]:
    """What the script has shown in each mode."""
    parts = re.split(r"<(auto|bar|plain)>\r?\n", shown)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def on_a_terminal() -> dict[str, str]:
    """What the script shows on a pseudo-terminal of 150 columns."""
    return by_mode(shown_on_a_terminal(SCRIPT, 150))


def shown_on_a_terminal(script: str, columns: int) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-c", script], stderr=theirs, check=True, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # Linux: all of it is read and nobody writes any more
        pass
    os.close(ours)
    return shown.decode()


def test_a_plain_line_says_step_return_pace_memory_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 60.0, 60.0])
    progress = Progress(100_000, ProgressMode.plain, clock=times.__next__)
    with caplog.at_level(logging.INFO, logger="reverie"):
        progress.update(
            12_000, episode_return=-19.0, updates_per_second=4.25, memory_mb=3100.4, planned_mb=3400.0
        )
    assert caplog.messages == [
        "step 12,000 of 100,000 (12.0%), return -19, 4.25 updates/s, memory 3,100 of 3,400 MB, 0:07:20 left"
    ]


def test_what_is_not_known_is_said_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(1000, ProgressMode.plain)
    with caplog.at_level(logging.INFO, logger="reverie"):
        progress.update(0, episode_return=None, updates_per_second=0.0, memory_mb=512.0, planned_mb=None)
    assert caplog.messages == [
        "step 0 of 1,000 (0.0%), no episode finished, 0 updates/s, memory 512 MB, time left unknown"
    ]


def times_left(
    steps_and_seconds: list[tuple[int, float]],
    start: int,
    caplog: pytest.LogCaptureFixture,
    first_update: int = 0,
) -> list[str]:
    now = 0.0
    progress = Progress(10_000, ProgressMode.plain, start_step=start, clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="reverie"):
        for step, seconds in steps_and_seconds:
            now = seconds
            pace = float(step >= first_update)
            progress.update(step, episode_return=0.0, updates_per_second=pace, memory_mb=0.0, planned_mb=None)
    return [message.split(", ")[-1] for message in caplog.messages]


def test_the_time_left_of_a_resumed_run_counts_its_own_steps_only(caplog: pytest.LogCaptureFixture) -> None:
    assert times_left([(9100, 10.0)], 9000, caplog) == ["0:01:30 left"]


def test_the_time_left_follows_the_pace_of_the_last_twenty_calls(caplog: pytest.LogCaptureFixture) -> None:
    fast = [(4000, 1.0)]  # before the first update
    slow = [(4000 + 100 * number, 1.0 + 10 * number) for number in range(1, 21)]
    left = times_left(fast + slow, 0, caplog)
    assert left[-1] == f"0:0{4000 // 10 // 60}:40 left"  # 4,000 steps at 10 per second


def test_a_finished_run_has_no_time_left(caplog: pytest.LogCaptureFixture) -> None:
    assert times_left([(10_000, 10.0)], 0, caplog) == ["0:00:00 left"]


def test_the_time_left_is_unknown_until_updates_are_measured_and_then_counts_no_step_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = [(1000, 1.0), (2000, 2.0), (2100, 12.0), (2200, 22.0)]
    unknown = "time left unknown"
    found = times_left(lines, 0, caplog, first_update=2100)
    assert found == [unknown, unknown, "0:13:10 left", "0:13:00 left"]  # 10 steps a second
    caplog.clear()
    assert times_left([(10_000, 10.0)], 0, caplog, first_update=10_001) == ["0:00:00 left"]


def test_off_a_terminal_each_update_and_each_message_is_one_line_on_stderr() -> None:
    environment = {
        name: value for name, value in os.environ.items() if "COLOR" not in name and "TTY" not in name
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == ""
    shown = by_mode(done.stderr)
    expected = "step 50 of 200 (25.0%), return -19, 4.25 updates/s, memory 3,100 of 3,400 MB, 0:00:30 left"
    for mode in ("plain", "auto"):
        first, second = shown[mode].splitlines()
        assert first.endswith(f" INFO {expected}")
        assert second.endswith(" INFO checkpoint [written]" + " in a long line" * 20)


@pytest.mark.parametrize("mode", ["bar", "auto"])
def test_on_a_terminal_a_bar_shows_the_same_words_and_log_lines_stand_above_it(
    mode: str, on_a_terminal: dict[str, str]
) -> None:
    shown = on_a_terminal[mode]
    for words in (
        "50 of 200",
        "25%",
        "return -19, 4.25 updates/s",
        "memory 3,100 of 3,400 MB, 0:00:30 left",
    ):
        assert words in without_styles(shown)
    plain = without_styles(shown)
    assert plain.rindex("checkpoint [written]") < plain.rindex("50 of 200")
    assert (
        shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    )  # the cursor is hidden once and given back


LONG_RUN = """
import time
from reverie.utils.logging import Progress, ProgressMode

now = 0.0
progress = Progress(400_000, ProgressMode.bar, clock=lambda: now)
progress.set_status("compiling for this machine")
time.sleep(2)
for now in (0.0, 1.0, 2.0, 100.0):
    progress.advance(212_000 + int(10 * now), int(4.25 * now), "learning")
    progress.update(212_000, episode_return=-20.45, updates_per_second=4.25, memory_mb=1900, planned_mb=2000)
    time.sleep(1)
progress.close()
"""


FILLING = """
import time
from reverie.utils.logging import Progress, ProgressMode

now = 0.0
progress = Progress(4_200, ProgressMode.bar, clock=lambda: now)
seen = ((0, 0, "filling"), (300, 0, "filling"), (310, 0, "learning"), (330, 4, "learning"))
for step, updates, phase in seen:
    progress.advance(step, updates, phase)
    time.sleep(0.8)
    now += 10.0
progress.close()
"""


def test_the_bar_knows_no_time_left_before_the_first_update() -> None:
    shown = without_styles(shown_on_a_terminal(FILLING, 150))
    assert "filling, time left unknown" in shown
    assert set(re.findall(r"[0-9]:\d\d:\d\d left", shown)) == {"0:32:15 left"}  # 3,870 steps, 2 a second


def test_the_bar_fits_in_80_columns_and_moves_while_the_run_does_something_else() -> None:
    pieces = re.split(r"[\r\n]+", without_styles(shown_on_a_terminal(LONG_RUN, 80)))
    assert max(map(len, pieces)) <= 80 and "…" not in "".join(pieces)
    still = [piece for piece in pieces if "compiling for this machine" in piece]
    assert len({piece[0] for piece in still}) >= 3  # the wheel turns
    assert any("return -20.45, 4.25 updates/s, " in piece and piece.endswith("left") for piece in pieces)


def test_each_phase_says_once_how_long_the_run_will_take(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress(400_000, ProgressMode.plain, clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="reverie"):
        for second in range(100):
            now = float(second)
            progress.advance(10 * second, 0, "filling the replay")
        progress.set_status("compiling for this machine")
        now = 10_000.0  # counts for nothing
        progress.set_status(None)
        for second in range(100):
            now = 10_000.0 + second
            progress.advance(1000 + 4 * second, 2 * second, "learning")
    [line] = caplog.messages
    assert re.fullmatch(
        r"learning at 2 updates a second: the remaining 398,9\d\d steps take about 28 hours", line
    )


def test_on_a_terminal_plain_mode_draws_no_bar(on_a_terminal: dict[str, str]) -> None:
    shown = without_styles(on_a_terminal["plain"])
    assert "step 50 of 200 (25.0%)" in shown
    assert "━" not in shown


def without_styles(shown: str) -> str:
    """Drop the escape sequences that colour words."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
