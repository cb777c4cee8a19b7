"""Any Gymnasium environment, N at once in this process or in processes of their own."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..utils.errors import UserError, with_place
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec
from .backend import EnvironmentCrashed, EnvironmentFailed, Outcome
from .config import EnvConfig, Vectorization, find_registration
from .spaces import action_spec, notices
from .workers import LocalPlayer, Player, Worker
from .wrapper import EnvMaker


class GymnasiumSimulators:
    """N environments of one id.

    Args:
        config: What to make; its suite is not looked at.
        env_id: Registered id.
        name: The environment as the user knows it, for messages.
        render: Whether `render` gives pictures; the environments then run in this process.

    Raises:
        UserError: If a package that the environment needs is missing, or the model cannot take its spaces.
        EnvironmentCrashed: If a process does not come up.
    """

    def __init__(self, config: EnvConfig, env_id: str, name: str, render: bool = False) -> None:
        registered = find_registration(env_id)
        self._maker = EnvMaker(
            registered=registered,
            action_repeat=config.action_repeat,
            image_size=config.image_size,
            time_limit=config.time_limit,
            render_mode="rgb_array" if render else None,
        )
        self._timeout = config.worker_timeout
        self._in_processes = config.vectorization is Vectorization["async"] and not render
        observation, action, observed = _probe(self._maker, env_id)
        frames = config.time_limit or registered.max_episode_steps
        self.spec = EnvSpec(
            name=name,
            observation=observation,
            action=action,
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
            longest_episode=-(-frames // config.action_repeat) if frames else None,
            notices=observed,
        )
        self._players: list[Player] = []
        self._start_players()

    def advance(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> Outcome:
        """See `Simulators.advance`; who is to rest is not asked."""
        asked = [index for index in range(self.spec.num_envs) if index not in idle]
        for index in asked:
            self._players[index].send(seeds[index] if index in seeds else action[index])
        outcome = Outcome.empty(self.spec)
        for index in asked:
            try:
                record = self._players[index].receive()
            except EnvironmentFailed as failure:
                outcome.failures[index] = failure
                continue
            outcome.put(index, *record)
        return outcome

    def replace(self, index: int) -> None:
        """See `Simulators.replace`; the new process starts while the others go on."""
        self._players[index].end()
        self._players[index] = self._make_player(index)

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture of environment 0, or None where it was not made to render."""
        if self._maker.render_mode is None:
            return None
        first = self._players[0]
        assert isinstance(first, LocalPlayer)
        try:
            return first.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"Pictures of {self.spec.name} need a missing package: {error}") from error

    def close(self) -> None:
        """Close the environments and end their processes."""
        for player in self._players:
            player.dismiss()
        for player in self._players:
            player.end()

    def _start_players(self) -> None:
        """Make all of them; processes come up side by side."""
        try:
            for index in range(self.spec.num_envs):
                self._players.append(self._make_player(index))
            for index, player in enumerate(self._players):
                try:
                    player.wait_until_ready()
                except EnvironmentFailed as failure:
                    raise EnvironmentCrashed(failure.told_of(self.spec.name, index)) from None
        except BaseException:
            self.close()
            raise

    def _make_player(self, index: int) -> Player:
        if self._in_processes:
            return Worker(self._maker, f"{self.spec.name} {index}", self._timeout)
        # only environment 0 is drawn
        return LocalPlayer(self._maker if index == 0 else dataclasses.replace(self._maker, render_mode=None))


def _probe(maker: EnvMaker, env_id: str) -> tuple[dict[str, ArraySpec], ActionSpec, tuple[str, ...]]:
    """Make one environment for a moment, in this process; return what it observes, accepts, and notices."""
    try:
        probe = maker()
        action = action_spec(probe.env.action_space)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id={env_id} needs a package that is missing: {error}") from error
    except UserError as error:
        raise UserError(f"env.id={env_id} {error}") from None
    except Exception as error:
        raise UserError(f"env.id={env_id} cannot be made: {with_place(error)}.") from error
    observed = notices(probe.env.observation_space)
    with contextlib.suppress(Exception):  # as `LocalPlayer.end`
        probe.env.close()
    parts = probe.observation_space.items()
    return {key: ArraySpec(part.shape or (), np.dtype(part.dtype)) for key, part in parts}, action, observed
