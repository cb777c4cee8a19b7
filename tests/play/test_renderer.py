"""A game with a renderer that belongs to a thread: EGL for the control suite."""

import asyncio
import os

import pytest
from aiohttp import ClientSession

from reverie.envs.config import Observations

from ..envs.test_suites import control
from ..runs.fresh import in_a_fresh_process
from ..workflows.tiny import IMAGE, tiny_workflow
from .serving import serving
from .test_server import ask, connect


def steps_of_a_game() -> list[int]:
    """Return the number of steps in the episode that the page shows at its start and after each action."""
    os.environ["MUJOCO_GL"] = "egl"
    env = control(observations=Observations.pixels, max_restarts=0)
    workflow = tiny_workflow(IMAGE, is_discrete=False)

    async def run() -> list[int]:
        async with serving(env=env, workflow=workflow) as port, ClientSession() as client:
            page, _, first = await connect(client, f"http://127.0.0.1:{port}")
            frames = [first, *[await ask(page, do="step", action=action) for action in (1, 2)]]
            await page.close()
        return [each["step"] for each in frames]

    return asyncio.run(run())


def test_a_game_that_egl_renders_goes_on() -> None:
    pytest.importorskip("dm_control")
    pytest.importorskip("mujoco.egl", exc_type=ImportError)
    assert in_a_fresh_process(steps_of_a_game) == [0, 1, 2]
