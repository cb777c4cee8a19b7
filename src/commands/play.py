"""`reverie-play`: the game and the dream of it side by side, in a browser, under the same keys."""

import asyncio
import getpass
import os
import socket
import sys
import threading
import webbrowser
from contextlib import closing
from dataclasses import dataclass

from ..config.schema import Device
from ..orchestration.trained import load_agent
from ..play import DreamSession, action_names, key_map
from ..play.session import LONGEST_DREAM, dreamer_with_pictures
from ..utils.errors import UserError, exit_on_user_error, require_range, require_seed
from .evaluate import INTERRUPTED_EXIT_CODE
from .options import own_settings

_USAGE = """\
Play a game and the dream that a world model has of it, side by side in a browser: reverie-play run=<folder>

  reverie-play run=pretrained:pong         networks that come with the package
  reverie-play run=experiments/<run>       the newest checkpoint of a run with images and a choice of actions

The page names its keys. Ctrl-C ends it, with exit code 130.

"""
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass(kw_only=True, slots=True)
class PlayConfig:
    """Settings of `reverie-play`, typed as key=value."""

    run: str | None = None
    """Folder of the run, a folder of weights and configuration, or `pretrained:<name>`."""

    port: int = 0
    """Port of the page; 0 takes a free one."""

    host: str = "127.0.0.1"
    """Address to listen at; beyond this machine (0.0.0.0), the page requires the token in its address."""

    device: Device = Device.cpu
    """Where the networks live."""

    seed: int = 0
    """Seed of games, actions and dreams."""

    horizon: int = 45
    """Steps that a dream lives before it begins again from the game; 15 are a second of Atari."""

    open: bool = True
    """Whether to open the page in the browser of this machine; over SSH that is left to you."""

    def __post_init__(self) -> None:
        if not self.run:
            raise UserError("run is missing: name the folder of a run, as in run=pretrained:pong.")
        if not self.host:
            raise UserError("host= is empty; 127.0.0.1 is this machine alone.")
        require_range("", self, "port", ge=0, le=65535)
        require_range("", self, "horizon", ge=1, le=LONGEST_DREAM)
        require_seed(self.seed)


def play(config: PlayConfig) -> None:
    """Show the page until Ctrl-C, which raises KeyboardInterrupt."""
    try:
        from ..play.server import PlayServer
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise UserError("The page needs aiohttp: pip install -c constraints.txt -e '.[play]'.") from error
    assert config.run is not None
    print(f"loading {config.run}", flush=True)
    run, agent, step = load_agent(config.run, config.device)
    workflow, image = dreamer_with_pictures(agent, f"run={config.run}")
    names = action_names(run.env, workflow.env.action.size)
    facts = {"run": config.run, "environment": workflow.env.name, "trained_steps": step, "seed": config.seed}
    with closing(DreamSession(workflow, run.env, image, config.horizon)) as session:
        session.restart(config.seed)
        server = PlayServer(session, facts | {"actions": names, "keys": key_map(names)})
        asyncio.run(
            server.serve(config.host, config.port, lambda port: _announce(config, port, server.token))
        )


def _announce(config: PlayConfig, port: int, token: str = "") -> None:
    """Print the address and the SSH command that reaches it; open the page where there is a screen."""
    host = "127.0.0.1" if config.host in _EVERYWHERE else config.host
    host = f"[{host}]" if ":" in host else host
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # as in a container whose user has no name
        user = "you"
    url, here = f"http://{host}:{port}/", f"{user}@{socket.gethostname()}"
    if token:
        url += f"?token={token}"
    print(f"Open {url} in a browser; Ctrl-C ends.")
    print(f"Over SSH, first on your own machine: ssh -L {port}:{host}:{port} {here}", flush=True)
    if config.open and _has_screen():
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _has_screen() -> bool:
    """Whether a browser would open in front of the user, and not in the terminal or on another screen."""
    is_remote = "SSH_CONNECTION" in os.environ
    return not is_remote and (
        sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ})
    )


@exit_on_user_error()
def main() -> None:
    """Run `reverie-play` with the arguments of this process."""
    config, _ = own_settings(PlayConfig, sys.argv[1:], "play", _USAGE)
    try:
        play(config)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
