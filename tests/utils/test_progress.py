"""Progress lines are compared word for word, and the bar is drawn on a real terminal."""

import logging
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Heartbeat, Progress

UNKNOWN = "time left unknown"

SCRIPT = """
import logging
import sys
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Progress, configure_logging

close = configure_logging()
for mode in ProgressMode:
    print(f"<{mode.value}>", file=sys.stderr)
    now = 0.0
    progress = Progress(200, mode, clock=lambda: now)
    progress.advance(0, 0, "learning")
    now = 10.0
    progress.advance(50, 42, "learning")
    progress.update(50, returns=[-19.0], updates_per_second=4.25, memory_mb=3100.0, planned_mb=3400.0)
    logging.getLogger("reverie.orchestration").info("checkpoint [written]" + " in a long line" * 20)
    progress.close()
    progress.close()
close()
"""


def by_mode(shown: str) -> dict[str, str]:
    """Return the script's output in each mode."""
    parts = re.split(r"<(auto|bar|plain)>\r?\n", shown)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def on_a_terminal() -> dict[str, str]:
    """Return the script's output on a pseudo-terminal of 150 columns."""
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
    except OSError:
        # On Linux this means that all output is read and the writer has closed.
        pass
    os.close(ours)
    return shown.decode()


def shown_lines(
    caplog: pytest.LogCaptureFixture,
    steps: list[tuple[int, float, int, int | None]],
    total: int = 10_000,
    start: int = 0,
) -> list[str]:
    """Return the plain lines of a run that advances to (step, seconds, updates, end of the phase)."""
    now = 0.0
    progress = Progress(total, ProgressMode.plain, start_step=start, clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="reverie"):
        for step, seconds, updates, until in steps:
            now = seconds
            progress.advance(step, updates, "learning" if until is None else f"until {until}", until)
            progress.update(step, returns=[0.0], updates_per_second=2.0, memory_mb=1.0, planned_mb=None)
    return [message for message in caplog.messages if message.startswith("step ")]


def times_left(lines: list[str]) -> list[str]:
    return [line.split(", ")[-1] for line in lines]


def test_a_plain_line_says_step_return_pace_memory_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress(100_000, ProgressMode.plain, clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="reverie"):
        progress.advance(0, 0, "learning")
        now = 60.0
        progress.advance(12_000, 240, "learning")
        progress.update(12_000, returns=[-19.0], updates_per_second=4.25, memory_mb=3100.4, planned_mb=3400.0)
    assert caplog.messages == [
        "learning at 4 updates/s: 0:07:20 left",
        "step 12,000 of 100,000 (12.0%), return -19 (mean of 1 episode), 4.25 updates/s, "
        "memory 2.89 GiB of 3.17 GiB, 0:07:20 left",
    ]


def test_repeated_actions_are_shown_as_environment_steps(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(100, ProgressMode.plain, action_repeat=4)
    with caplog.at_level(logging.INFO, logger="reverie"):
        progress.update(50, returns=[1.0], updates_per_second=1.0, memory_mb=1.0, planned_mb=None)
    started = "step 50 of 100 (50.0%), 200 environment steps, return 1 (mean of 1 episode), "
    assert caplog.messages[0].startswith(started)


def test_what_is_not_known_is_said_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(1000, ProgressMode.plain)
    with caplog.at_level(logging.INFO, logger="reverie"):
        progress.update(0, returns=[], updates_per_second=1.0, memory_mb=512.0, planned_mb=None)
    assert caplog.messages == [
        "step 0 of 1,000 (0.0%), no episode finished, 1 update/s, memory 488.3 MiB, time left unknown"
    ]


def test_the_time_left_of_a_resumed_run_counts_its_own_steps_only(caplog: pytest.LogCaptureFixture) -> None:
    lines = shown_lines(caplog, [(9000, 0.0, 0, None), (9100, 10.0, 20, None)], start=9000)
    assert times_left(lines) == [UNKNOWN, "0:01:30 left"]


def test_the_time_left_follows_the_pace_of_the_last_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    # One step per second.
    slow = [(10 * number, 10.0 * number, 10 * number, None) for number in range(1, 400)]
    fast = [(3990 + 10 * number, 3990.0 + 2 * number, 4000 + number, None) for number in range(1, 301)]
    lines = shown_lines(caplog, [*slow, *fast], total=7_990)
    assert times_left(lines)[398] == "1:06:40 left"
    # 1,000 steps at five per second.
    assert times_left(lines)[-1] == "0:03:20 left"


def test_generations_longer_than_that_have_a_pace_too(caplog: pytest.LogCaptureFixture) -> None:
    lines = shown_lines(
        caplog, [(100 * number, 1200.0 * number, 50 * number, None) for number in range(1, 6)]
    )
    assert times_left(lines) == [
        UNKNOWN,
        *(f"{hours(12 * (10_000 - step))} left" for step in (200, 300, 400, 500)),
    ]


def test_a_finished_run_has_no_time_left(caplog: pytest.LogCaptureFixture) -> None:
    assert times_left(shown_lines(caplog, [(10_000, 10.0, 0, 20_000)])) == ["0:00:00 left"]


def test_the_time_left_comes_from_updates_and_from_an_earlier_phase_is_the_least(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Filling the replay does not predict the rest. Training only the world model is faster."""
    filling = [(100 * number, 1.0 * number, 0, 1000) for number in range(1, 11)]
    alone = [(1000 + 10 * number, 10.0 + number, number, 2000) for number in range(1, 101)]
    joint = [(2000 + 10 * number, 110.0 + 5 * number, 100 + number, None) for number in range(1, 101)]
    found = times_left(shown_lines(caplog, [*filling, *alone, *joint]))
    assert set(found[:15]) == set(found[110:115]) == {UNKNOWN}
    seconds = [(9000 - 10 * number) // 10 for number in range(6, 101)]
    assert found[15:110] == [f"at least {hours(each)} left" for each in seconds]
    seconds = [5 * (8000 - 10 * number) // 10 for number in range(6, 101)]
    assert found[115:] == [f"{hours(each)} left" for each in seconds]


def hours(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def test_a_last_step_of_several_environments_does_not_pass_the_end(caplog: pytest.LogCaptureFixture) -> None:
    [line] = shown_lines(caplog, [(4, 1.0, 0, 500)], total=3)
    assert line.startswith("step 3 of 3 (100.0%), ") and line.endswith(", 0:00:00 left")


def test_a_run_that_logs_nothing_says_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(1000, ProgressMode.plain)
    progress.set_status("compiling for this machine", is_once=True)
    with caplog.at_level(logging.INFO, logger="reverie"), Heartbeat(seconds=0.01) as heartbeat:
        heartbeat.describe = progress.describe
        deadline = time.monotonic() + 60
        while len(caplog.messages) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    expected = r"step 0 of 1,000 \(0.0%\), still compiling for this machine, 0 s, time left unknown"
    assert all(re.fullmatch(expected, line) for line in caplog.messages[1:3])
    silent = len(caplog.messages)
    time.sleep(0.05)
    assert len(caplog.messages) == silent


def test_a_heartbeat_keeps_its_interval_while_the_program_disables_logging() -> None:
    described: list[float] = []

    def describe() -> str:
        described.append(time.monotonic())
        return "training"

    logging.disable(logging.CRITICAL)
    try:
        with Heartbeat(seconds=0.05) as heartbeat:
            heartbeat.describe = describe
            deadline = time.monotonic() + 60
            while len(described) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        logging.disable(logging.NOTSET)
    assert len(described) >= 3 and min(np.diff(described)) > 0.04


def test_off_a_terminal_each_update_and_each_message_is_one_line_on_stderr() -> None:
    environment = {
        name: value for name, value in os.environ.items() if "COLOR" not in name and "TTY" not in name
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == ""
    shown = by_mode(done.stderr)
    expected = (
        "step 50 of 200 (25.0%), return -19 (mean of 1 episode), 4.25 updates/s, "
        "memory 2.89 GiB of 3.17 GiB, 0:00:30 left"
    )
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
        "memory 2.89 GiB of 3.17 GiB, 0:00:30 left",
    ):
        assert words in without_styles(shown)
    plain = without_styles(shown)
    assert plain.rindex("checkpoint [written]") < plain.rindex("50 of 200")
    # The cursor is hidden once and then restored.
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


DRAWN = """
import time

def wait_until_drawn(progress, times):
    drawn, tables = [], progress._bar.get_renderables
    progress._bar.get_renderables = lambda: (list(tables()), drawn.append(0))[0]
    while len(drawn) < times:
        time.sleep(0.01)
"""
LONG_RUN = """
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Progress

now, started = 0.0, time.monotonic()
progress = Progress(400_000, ProgressMode.bar, clock=lambda: now + time.monotonic() - started)
progress.set_status("compiling for this machine")
wait_until_drawn(progress, 4)
for now in (0.0, 1.0, 2.0, 100.0):
    step = 212_000 + int(10 * now)
    progress.advance(step, int(4.25 * now), "learning")
    progress.update(step, returns=[-20.45], updates_per_second=4.25, memory_mb=1900, planned_mb=2000)
    wait_until_drawn(progress, 1)
progress.close()
"""


FILLING = """
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Progress

now = 0.0
progress = Progress(4_200, ProgressMode.bar, clock=lambda: now)
seen = ((0, 0, "filling"), (300, 0, "filling"), (310, 1, "learning"), (330, 9, "learning"))
for step, updates, phase in seen:
    progress.advance(step, updates, phase, 305 if phase == "filling" else None)
    wait_until_drawn(progress, 1)
    now += 10.0
progress.close()
"""


def test_the_bar_knows_no_time_left_before_the_first_update() -> None:
    shown = without_styles(shown_on_a_terminal(DRAWN + FILLING, 150))
    assert "filling, time left unknown" in shown
    # 3,870 steps at two per second.
    assert set(re.findall(r"[0-9]:\d\d:\d\d left", shown)) == {"0:32:15 left"}


QUICK = """
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Progress

progress = Progress(40, ProgressMode.bar, clock=lambda: 0.0)
for step in range(0, 44, 4):
    progress.advance(step, step, "learning")
progress.close()
"""


def test_the_bar_ends_at_the_last_step_however_quick_the_run_was() -> None:
    shown = without_styles(shown_on_a_terminal(QUICK, 150))
    assert shown.rstrip().splitlines()[-1].split("━")[0].endswith("40 of 40 ")


CLOSED = """
import os, pty, sys

ours, theirs = pty.openpty()
os.dup2(theirs, 2)
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.console import Progress

progress = Progress(40, ProgressMode.bar, clock=lambda: 0.0)
progress.advance(4, 4, "learning")
os.close(theirs)
os.close(ours)
progress.close()
print("the run goes on")
# Nothing can be written at exit.
sys.stdout.flush()
os._exit(0)
"""


def test_a_bar_outlives_its_terminal() -> None:
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    ended = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, env=environment)
    assert ended.stdout == "the run goes on\n"


def test_the_step_between_two_samples_of_the_pace_is_described() -> None:
    progress = Progress(40, ProgressMode.plain, clock=lambda: 0.0)
    for step in (0, 7):
        progress.advance(step, step, "learning")
    assert progress.describe() == "step 7 of 40 (17.5%), learning, time left unknown"


def test_the_bar_fits_in_80_columns_and_moves_while_the_run_does_something_else() -> None:
    pieces = re.split(r"[\r\n]+", without_styles(shown_on_a_terminal(DRAWN + LONG_RUN, 80)))
    assert max(map(len, pieces)) <= 80 and "…" not in "".join(pieces)
    still = [piece for piece in pieces if "compiling for this machine" in piece]
    # The spinner turns.
    assert len({piece[0] for piece in still}) >= 3
    assert any("return -20.45, 4.25 updates/s, " in piece and piece.endswith("left") for piece in pieces)


def test_each_phase_says_once_how_long_the_run_will_take(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = Progress(400_000, ProgressMode.plain, clock=lambda: now)
    with caplog.at_level(logging.INFO, logger="reverie"):
        for second in range(100):
            now = float(second)
            progress.advance(10 * second, 0, "filling the replay", 1000)
        progress.set_status("compiling for this machine", is_once=True)
        # This value is arbitrary.
        now = 10_000.0
        progress.set_status(None)
        for second in range(100):
            now = 10_000.0 + second
            progress.advance(1000 + 4 * second, 2 * second, "learning")
        now = 20_000.0
        for second in range(100):
            now = 20_000.0 + second
            progress.advance(2000 + 4 * second, 200 + 4 * second, "alone", 6000)
    joint, alone = caplog.messages
    # 398,920 steps at four per second.
    assert joint == "learning at 2 updates/s: 27:42:10 left"
    assert alone == "alone at 4 updates/s: at least 27:38:00 left"


def test_on_a_terminal_plain_mode_draws_no_bar(on_a_terminal: dict[str, str]) -> None:
    shown = without_styles(on_a_terminal["plain"])
    assert "step 50 of 200 (25.0%)" in shown
    assert "━" not in shown


def without_styles(shown: str) -> str:
    """Remove the escape sequences for colors."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
