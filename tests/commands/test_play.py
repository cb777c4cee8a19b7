"""The command `reverie-play`: messages, rejected requests, and exit."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from reverie_play import command as play

from ..runs.helpers import error_of

ROOT = Path(__file__).parents[2]
Play = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Play:
    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["reverie-play", "open=false", *arguments])
        play.main()

    return call


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            (),
            "run is missing. Write run=VALUE. Run folder, folder with weights and configuration, "
            "`pretrained:<name>` or `hub:<owner>/<name>`.",
        ),
        (("run=pretrained:catch", "port=65536"), "port must be in [0, 65535], got 65536."),
        (("run=pretrained:catch", "horizon=0"), "horizon must be in [1, 10000], got 0."),
        (("run=pretrained:catch", "seed=-1"), "seed must be in [0, 2**32), got -1."),
        (("run=pretrained:catch", "host="), "host= has no value. Write host=VALUE."),
        (
            ("run=pretrained:cartpole",),
            "run=pretrained:cartpole: CartPole-v1 has no image observation to show.",
        ),
    ],
)
def test_what_is_refused_is_one_sentence(
    typed: tuple[str, ...], message: str, command: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    # Loading prints its memory.
    is_loaded = "cartpole" in message
    assert error_of(capsys, lambda: command(*typed), has_output=is_loaded).strip() == message


def test_a_port_that_is_taken_is_refused(command: Play, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = error_of(capsys, lambda: command("run=pretrained:catch", f"port={port}"), has_output=True)
    assert re.match(rf"host=127.0.0.1 port={port} cannot be opened: .*in use\. Choose.*port=0", message)


@pytest.mark.parametrize(("host", "here"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_a_user_without_a_name_is_told_how_to_reach_the_page_from_other_machines(
    host: str, here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    # This simulates a container that was started with --user.
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    play._announce(play.PlayConfig(run="r", host=host, open=False), 8123, "secret")
    told = capsys.readouterr().out
    assert f"Open http://{here}:8123/?token=secret in a browser" in told
    assert f"From other machines: http://{socket.gethostname()}:8123/?token=secret\n" in told
    assert f"ssh -L 8123:{here}:8123 you@" in told


def test_it_says_where_the_page_is_and_ctrl_c_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "scripts/play.py", "run=pretrained:catch", "open=false"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading pretrained:catch\n"
    found = re.match(r"Open (http://127\.0\.0\.1:(\d+)/) in a browser", process.stdout.readline())
    assert found is not None
    assert f"ssh -L {found[2]}:127.0.0.1:{found[2]} " in process.stdout.readline()
    with urllib.request.urlopen(found[1]) as response:
        assert b"<title>reverie-play</title>" in response.read()
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "") and process.returncode == 130
