"""A server of the play page on a free local port, with untrained networks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

from reverie_play import DreamSession, action_names, key_map
from reverie_play.server import PlayServer

from reverie.envs import EnvConfig

from ..workflows.tiny import IMAGE, tiny_workflow

HORIZON = 20


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve Pong and yield the port. It ends as on Ctrl-C, with a cancelled task."""
    async with serving_with_token(host) as (port, _):
        yield port


@asynccontextmanager
async def serving_with_token(host: str) -> AsyncIterator[tuple[int, str]]:
    """Serve Pong and yield the port and the token."""
    env = EnvConfig()
    names = action_names(env, 6)
    facts = {"run": "a run", "environment": "atari/pong", "trained_steps": None, "seed": 0}
    with closing(DreamSession(tiny_workflow(IMAGE), env, "image", HORIZON)) as session:
        session.restart(0)
        server = PlayServer(session, facts | {"actions": names, "keys": key_map(names)})
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(server.serve(host, 0, opened.set_result))
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
            yield opened.result(), server.token
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
