"""A server of the play page on a free local port, with untrained networks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from reverie_play import DreamSession, action_names, key_map
from reverie_play.server import PlayServer
from reverie_play.session import choices_of

from reverie.envs import EnvConfig
from reverie.workflows.world_models import DreamerWorkflow

from ..workflows.tiny import IMAGE, tiny_workflow

HORIZON = 20
PONG = EnvConfig()


@asynccontextmanager
async def serving(
    host: str = "127.0.0.1", env: EnvConfig = PONG, workflow: DreamerWorkflow | None = None
) -> AsyncIterator[int]:
    """Serve a game and yield the port. It ends as on Ctrl-C, with a cancelled task."""
    async with serving_with_token(host, env, workflow) as (port, _):
        yield port


@asynccontextmanager
async def serving_with_token(
    host: str, env: EnvConfig = PONG, workflow: DreamerWorkflow | None = None
) -> AsyncIterator[tuple[int, str]]:
    """Serve a game and yield the port and the token."""
    workflow = workflow or tiny_workflow(IMAGE)
    names = action_names(env, len(choices_of(workflow.env.action)))
    facts = {"run": "a run", "environment": env.label, "trained_steps": None, "seed": 0}
    session = DreamSession(workflow, env, "image", HORIZON)
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
