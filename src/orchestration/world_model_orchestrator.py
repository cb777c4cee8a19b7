"""Dreamer's training loop: collect, train, call the instruments, save.

The loop does not depend on specific losses, environments or games.
"""

import logging
from collections import ChainMap
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import BatchFeed
from ..checkpoints.checkpoint import Checkpoint, list_checkpoints
from ..checkpoints.run_folder import SETTINGS_KEY, checkpoint_settings
from ..checkpoints.shards import RANKS_KEY, folder_of_run
from ..config.dreamer import DreamerTrainConfig
from ..config.schema import Compile
from ..envs.episodes import EpisodeTracker
from ..memory.guard import RunGuard
from ..utils.compilation import Compilations
from ..utils.durable_io import reading
from ..utils.metrics import MetricMeans
from ..utils.ranks import RankLost
from ..utils.schedule import Every, UpdateRatio
from ..utils.seeding import global_state, numpy_generator, set_global_state
from ..utils.side_thread import SideThread, at_once
from ..utils.timestep import TimeStep
from ..workflows import PolicyOutput
from ..workflows.world_models import DreamerWorkflow
from .dreamer.agreement import RankConsensus, agree, gather_episodes, serialize_ranks
from .dreamer.loop_state import check_form, first_times, require_windows
from .dreamer.nonfinite import NonFiniteGuard
from .instruments import instruments_of
from .orchestrator import OpenedRun, Orchestrator, Parts, StopReason

_LOG = logging.getLogger(__name__)
_SECONDS_TO_CLOSE = 5.0
DreamerParts = Parts[Any, DreamerWorkflow]
"""Parts of a run. The environment is a `VectorEnvironment`, a `NativeVector` or `Collectors`."""


class WorldModelOrchestrator(Orchestrator[DreamerTrainConfig, DreamerParts]):
    """Trains a workflow on an environment until `training.total_timesteps` or a request to stop."""

    def __init__(self, opened: OpenedRun) -> None:
        super().__init__(opened, ("collect", "sample", "update", "report"))
        config, parts, checkpoint = self.config, self.parts, opened.checkpoint
        training, self.ranks = config.training, parts.workflow.ranks
        self.update_ratio = UpdateRatio(training.updates_per_step, training.max_updates_per_step)
        self.tracker = EpisodeTracker(parts.environment.spec.num_envs)
        self.agreed = RankConsensus()
        self.means = MetricMeans()
        most = training.max_consecutive_nonfinite
        self.nonfinite = NonFiniteGuard(self.run_dir, most, parts.workflow.state_dict)
        self.best_step: int | None = None
        windows = self.ranks.part(training.batch_size)
        self.feed = BatchFeed(parts.replay, windows, parts.workflow.device)
        self._checkpoint = checkpoint
        self.compilations = Compilations(self.reports.note) if config.compile is Compile.inductor else None
        self.instruments = instruments_of(self)
        if checkpoint is not None:
            self._restore(checkpoint)
        if training.offline:
            require_windows(parts.replay)
        self.guard = RunGuard(config.memory, first_times(training, self.step, self.instruments))
        self.start_updates = self.updates
        self._has_begun = self._has_learned = False
        self.check_due = Every(config.memory.check_interval, self.updates)
        self._side = SideThread("environments") if training.overlap else None
        # Environments are always called in the same thread, so their random streams are deterministic.
        self.begin_call = self._side.begin if self._side else at_once

    def begin_after_rollback(self) -> None:
        """Reseed the replay, because the same batches would lead to the same failure."""
        self.nonfinite.rolled_back()
        name = self.ranks.named(f"replay after a rollback to {self.step}")
        self.parts.replay.reseed(numpy_generator(self.config.seed, name))

    def why(self, reason: StopReason) -> str:
        """Return the reason for stopping, with details about non-finite updates."""
        is_nonfinite = reason in (StopReason.nonfinite, StopReason.rollback)
        return self.nonfinite.stop_sentence() if is_nonfinite else super().why(reason)

    def close(self) -> None:
        """Stop counting compilations, and close the environments in their thread after the current step."""
        if self.compilations:
            self.compilations.close()
        if self._side:
            self._side.begin(self.parts.environment.close)
            self._side.close(_SECONDS_TO_CLOSE)

    def run(self) -> Generator[None, None, StopReason]:
        """See `Orchestrator.run`."""
        save_due = Every(self.config.training.checkpoint_interval, self.step)
        time_step = self._begin()
        self._has_begun, is_owed = True, False
        for instrument in [each for each in self.instruments if each.is_postponed]:
            instrument(self)
            if not instrument.is_postponed:
                # This checkpoint records that the postponed action is done.
                self.save_if_possible()
        while not (reason := self._stop_reason(time_step)):
            following = self._collect(time_step)
            self._learn()
            with self.watch("collect"):
                time_step = following.result()
            for instrument in self.instruments:
                if instrument.is_due(self):
                    instrument(self)
            # With collectors, the step may be the same for two rounds, so check the saved step too.
            is_new_best = self.best_step == self.step != self.saved_step
            is_owed |= save_due(self.step) | self.agreed.save | is_new_best
            # A rollback must return to parameters from before the non-finite updates.
            if is_owed and not self.nonfinite.settle():
                self.save_if_possible()
                is_owed = False
            yield
        if self.saved_step != self.step and reason is not StopReason.rollback:
            self.save()
        return reason

    def _stop_reason(self, time_step: TimeStep) -> StopReason | None:
        """Agree with the other ranks on what to do next. Return a reason to stop, or `None` to continue."""
        self.agreed = agree(self.ranks, time_step, self.signals, self.guard.must_stop)
        is_over = self.step >= self.config.training.total_timesteps
        reasons = {
            StopReason.finished: is_over and not any(each.is_postponed for each in self.instruments),
            StopReason.leak: self.agreed.leak,
            StopReason.nonfinite: self.nonfinite.has_too_many and self.nonfinite.has_rolled_back,
            StopReason.stopped: self.agreed.stop,
            StopReason.ended: self.agreed.finish,
            StopReason.rollback: self.nonfinite.has_too_many,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _begin(self) -> TimeStep:
        """Return the run's first time step, or the restored one if the run is resumed."""
        if self._checkpoint is None:
            return self.begin_call(self.parts.environment.reset).result()
        state = self._checkpoint.state()
        restore = partial(self.parts.environment.restore, state["environment"])
        time_step, warnings = self.begin_call(restore).result()
        for warning in warnings:
            _LOG.warning(warning)
        # Do this last, because no random numbers may be drawn between here and the loop.
        with reading(self._checkpoint.state_path):
            set_global_state(state["global_generators"])
        return time_step

    def _collect(self, time_step: TimeStep) -> Future[TimeStep]:
        """Act once in every environment and store the step. Return the next time step as a future.

        With `training.overlap` it may not be ready yet. Its actions are already chosen, so updates do not
        affect it.
        """
        if self.config.training.offline:
            self.step += self.config.env.num_envs
            return at_once(lambda: time_step)
        with self.watch("collect"):
            collected = self.parts.workflow.collect_step(time_step)
        self._remember(time_step, collected, time_step.envs)
        with self.watch("collect"):
            return self.begin_call(partial(self.parts.environment.step, collected.action))

    def _remember(
        self, time_step: TimeStep, collected: PolicyOutput, envs: NDArray[np.int64] | None = None
    ) -> None:
        """Count and store a step of the environments `envs`, by default of all environments."""
        with self.watch("collect"):
            self.step += self.agreed.acted
            ended = self.tracker.add(time_step, envs)
            if self.agreed.ended:
                ended = gather_episodes(self.ranks, ended, self.parts.environment.spec)
            for episode in ended:
                self.reports.episode(self.step, episode)
            latent = collected.latent if self.parts.replay.stores_latents else None
            self.parts.replay.add(time_step, collected.action, latent, envs)
        for instrument in self.instruments:
            instrument.add(self, time_step, envs, ended)

    def _learn(self) -> None:
        """Run the updates that the train ratio calls for. During warm-up they train only the world model."""
        training, workflow, replay = self.config.training, self.parts.workflow, self.parts.replay
        # All ranks update together, so every rank must have a batch.
        if self.step < training.first_update or self.ranks.sum([replay.can_sample])[0] < self.ranks.size:
            return
        joint = self.step >= training.warmup_steps
        update = workflow.update if joint else workflow.update_world_model
        # The timeout is short only here: elsewhere a rank may be stepping a slow environment, and the first
        # updates compile.
        promptly = self.ranks.prompt if self._has_learned else nullcontext
        for left in reversed(range(self._updates_due())):
            with self.watch("sample"):
                batch = self.feed.next()
            with self.watch("update"), promptly():
                updated = update(batch)
                self.means.add(updated.metrics)
                self.nonfinite.check(self.step, updated, batch)
            if left and not self.nonfinite.has_too_many:
                # The host may wait for the latents below, so draw the next batch first.
                with self.watch("sample"):
                    self.feed.draw_ahead()
            with self.watch("update"):
                if replay.stores_latents:
                    replay.write_back(batch.positions, updated.deter, updated.stoch, updated.finite)
                if updated.window_losses is not None and updated.finite:
                    replay.learned(batch.positions, updated.window_losses)
            self.updates += 1
            self._has_learned |= joint
            if self.nonfinite.has_too_many:
                return
            self.guard.mark_first(self.step, "first joint update" if joint else "first update")
            if joint and self.compilations:
                self.compilations.settle()
            if self.check_due(self.updates):
                if self._side:
                    self._side.wait()
                with self.watch("memory"):
                    self.guard.check_graphs(self.step, self.roots())
                if self.ranks.size > 1 and not workflow.is_equal_on_ranks():
                    raise RankLost(f"the networks of the ranks differ after update {self.updates:,}")

    def _updates_due(self) -> int:
        """Return the number of updates to run now."""
        return self.update_ratio(self.step)

    def tags(self) -> dict[str, float]:
        """Return additional metrics of a log interval."""
        return self.compilations.tags() if self.compilations else {}

    def state(self) -> dict[str, Any]:
        """See `Orchestrator.state`. Schedules are excluded, because they depend only on the step."""
        return {
            SETTINGS_KEY: checkpoint_settings(self.config),
            RANKS_KEY: self.ranks.size,
            "updates": self.updates,
            "ratio": self.update_ratio.state_dict(),
            "environment": self.parts.environment.state_dict(),
            "episodes": self.tracker.state_dict(),
            "nonfinite": self.nonfinite.state_dict(),
            **ChainMap(*(instrument.state_dict() for instrument in self.instruments)),
            "sampler": self.parts.replay.sampler_state(),
            "recent": self.reports.recent_state(),
            "means": self.means.state_dict(),
            "global_generators": global_state(),
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore the loop. `run` restores the environments and the global random generators.

        Raises:
            UserError: If the saved state is invalid.
        """
        state = checkpoint.state()
        with reading(checkpoint.state_path):
            counted = {"episodes": self.tracker.state_dict(), "nonfinite": self.nonfinite.state_dict()}
            check_form(state, counted, self.update_ratio.updates_per_step, self.parts.environment.spec)
            self.updates = state["updates"]
            self.update_ratio.load_state_dict(state["ratio"])
            self.tracker.load_state_dict(state["episodes"])
            for instrument in self.instruments:
                instrument.load_state_dict(state)
            # Older checkpoints lack the last returns.
            self.reports.load_recent(state.get("recent", {}))
            self.means.load_state_dict(state["means"], self.parts.workflow.device)
            self.nonfinite.load_state_dict(state["nonfinite"])
            # A checkpoint of another number of ranks has no state of a sampler.
            self.parts.replay.load_sampler(state.get("sampler", {}))

    def held_objects(self) -> dict[str, Any]:
        """See `Orchestrator.held_objects`."""
        held = ChainMap(*(instrument.held for instrument in self.instruments))
        sampler = {"sampler": found} if (found := self.parts.replay.sampler) else {}
        return {"batch": self.feed.sampled, "metrics": self.means, **sampler, **held}

    def save_if_possible(self) -> None:
        """Save a checkpoint, unless this is before the first time step and the state is unchanged."""
        if self._has_begun:
            super().save_if_possible()

    def save(self) -> None:
        """Check that the last update was finite, and save a checkpoint.

        Rank 0 saves after all other ranks, because its files make the whole checkpoint valid.
        """
        if self._side:
            self._side.wait()
        self.nonfinite.settle()
        # This also applies when the checkpoint of the best step is written again.
        self.is_best = self.best_step == self.step
        before = self.saved_step
        if not self.ranks.is_first:
            # Rank 0 saves last and may fail repeatedly. All checkpoints that it has must stay complete.
            first = list_checkpoints(folder_of_run(self.run_dir, self.ranks))
            self.checkpoints_to_keep, self.needed_steps = 1, {each.step for each in first}
        try:
            for is_turn in (not self.ranks.is_first, self.ranks.is_first):
                serialize_ranks(self.ranks, super().save, is_turn)
        except OSError:
            # The checkpoint is invalid on all ranks, even if this rank has written its own files.
            self.saved_step = before
            raise

    def saved_model(self) -> dict[str, Any]:
        """See `Orchestrator.saved_model`. Only the acting state differs between ranks."""
        state = super().saved_model()
        return state if self.ranks.is_first else {"online": state["online"]}
