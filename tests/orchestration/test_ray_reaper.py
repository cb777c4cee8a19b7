"""Ray's processes end with their run or their head node."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from reverie.commands.collect import _wait_for_end
from reverie.orchestration.ray_reaper import cleanup

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_process_that_has_opened_no_file_yet_is_cleaned_up(tmp_path: Path) -> None:
    folder = tmp_path / "reverie-1"
    folder.mkdir()
    with (
        subprocess.Popen([*SLEEP, f"--temp-dir={folder}"]) as ray,
        subprocess.Popen([*SLEEP, f"{folder}2"]) as other,
    ):
        try:
            cleanup(str(folder), os.getpid())
            assert ray.wait() == -9 and other.poll() is None
            assert not folder.exists()
        finally:
            ray.kill()
            other.kill()


def test_a_node_is_given_up_once_its_head_is_gone() -> None:
    with subprocess.Popen(SLEEP) as node:
        try:
            with socket.create_server(("127.0.0.1", 0)) as head:
                address = f"127.0.0.1:{head.getsockname()[1]}"
            _wait_for_end(node, address)
            assert node.poll() is None
        finally:
            node.kill()
