"""Play a game side by side with the world model's dream of it in a browser: reverie-play run=<folder>.

  reverie-play run=pretrained:pong         an agent included in the package
  reverie-play run=experiments/<run>       the newest checkpoint of a run with images

The page lists its keyboard shortcuts. Press Ctrl-C to stop (exit code 130).
"""

import asyncio
import getpass
import os
import socket
import sys
import threading
import webbrowser
from dataclasses import dataclass

from reverie.commands.evaluate import INTERRUPTED_EXIT_CODE
from reverie.commands.options import own_settings
from reverie.config.schema import Device
from reverie.orchestration.trained import load_agent
from reverie.utils.errors import exit_on_user_error, require_range, require_seed

from . import DreamSession, action_names, key_map
from .server import PlayServer
from .session import LONGEST_DREAM, choices_of, dreamer_with_pictures

_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address at which this machine itself reaches the page, by the address of all interfaces."""


@dataclass(kw_only=True, slots=True)
class PlayConfig:
    """Settings of `reverie-play`, written as key=value."""

    run: str
    """Run folder, folder with weights and configuration, `pretrained:<name>` or `hub:<owner>/<name>`."""

    port: int = 0
    """Port of the page, or 0 for a free one."""

    host: str = "127.0.0.1"
    """Address to listen on. If other machines can reach it (such as 0.0.0.0), the page requires a token."""

    device: Device = Device.cpu
    """Device of the networks."""

    seed: int = 0
    """Seed of the games, actions and dreams."""

    horizon: int = 45
    """Number of steps after which a dream restarts from the game. 15 steps are one second of Atari."""

    open: bool = True
    """Open the page in this machine's browser, unless over SSH."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes."""

    def __post_init__(self) -> None:
        require_range("", self, "port", ge=0, le=65535)
        require_range("", self, "horizon", ge=1, le=LONGEST_DREAM)
        require_seed(self.seed)


def play(config: PlayConfig) -> None:
    """Serve the page until Ctrl-C raises KeyboardInterrupt."""
    print(f"loading {config.run}", flush=True)
    run, agent, step = load_agent(config.run, config.device, trust=config.trust)
    workflow, image = dreamer_with_pictures(agent, f"run={config.run}")
    names = action_names(run.env, len(choices_of(workflow.env.action)))
    facts = {"run": config.run, "environment": workflow.env.name, "trained_steps": step, "seed": config.seed}
    session = DreamSession(workflow, run.env, image, config.horizon)
    server = PlayServer(session, facts | {"actions": names, "keys": key_map(names)})
    asyncio.run(server.serve(config.host, config.port, lambda port: _announce(config, port, server.token)))


def _announce(config: PlayConfig, port: int, token: str = "") -> None:
    """Print the address and an SSH command to reach it, and open the page if this machine has a screen."""
    host = _HERE.get(config.host, config.host)
    host = f"[{host}]" if ":" in host else host
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # The user of a container may not have a name.
        user = "you"
    url, here = f"http://{host}:{port}/", f"{user}@{socket.gethostname()}"
    if token:
        url += f"?token={token}"
    print(f"Open {url} in a browser. Press Ctrl-C to stop.")
    if config.host in _HERE:
        print(f"From other machines: {url.replace(host, socket.gethostname(), 1)}")
    print(f"Over SSH, first run on your own machine: ssh -L {port}:{host}:{port} {here}", flush=True)
    if config.open and _has_screen():
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _has_screen() -> bool:
    """Return whether a browser would open on the user's own screen, not in the terminal or remotely."""
    is_remote = "SSH_CONNECTION" in os.environ
    return not is_remote and (
        sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ})
    )


@exit_on_user_error()
def main() -> None:
    """Run `reverie-play` with the arguments of this process."""
    config, _ = own_settings(PlayConfig, sys.argv[1:], "reverie-play", __doc__)
    try:
        play(config)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
