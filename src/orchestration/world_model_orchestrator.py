"""Run Dreamer: act, store, learn, report, save. Knows no loss and no environment."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import BatchFeed
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.run_folder import SETTINGS_KEY, checkpoint_settings, require_run_folder
from ..checkpoints.shards import RANKS_KEY
from ..config.dreamer import DreamerTrainConfig
from ..config.schema import Compile
from ..envs import VectorEnvironment
from ..envs.episodes import EpisodeRecorder, EpisodeTracker
from ..memory.guard import RunGuard
from ..utils.compilation import Compilations
from ..utils.durable_io import reading
from ..utils.errors import UserError
from ..utils.logging import LEARNING
from ..utils.metrics import MetricMeans
from ..utils.ranks import RankLost
from ..utils.schedule import Every, UpdateRatio
from ..utils.seeding import global_state, numpy_generator, set_global_state
from ..utils.side_thread import Result, SideThread, at_once
from ..utils.timestep import TimeStep
from ..workflows import PolicyOutput
from ..workflows.world_models import DreamerWorkflow
from .dreamer.agreement import Agreed, agree, in_turn, of_all_ranks
from .dreamer.loop_state import check_form, first_times, require_windows
from .dreamer.nonfinite import NonFiniteGuard
from .dreamer.on_track import UPDATES_BETWEEN, OnTrack
from .evaluation import evaluate
from .orchestrator import OpenedRun, Orchestrator, Parts, StopReason
from .reports import VIDEO_FPS, no_pictures

_LOG = logging.getLogger(__name__)
_SECONDS_TO_CLOSE = 5.0
DreamerParts = Parts[VectorEnvironment, DreamerWorkflow]


class WorldModelOrchestrator(Orchestrator):
    """Trains a workflow on an environment until `training.total_timesteps`, or until it is asked to stop."""

    def __init__(self, opened: OpenedRun) -> None:
        super().__init__(opened, ("collect", "sample", "update", "report"))
        config: DreamerTrainConfig = opened.config  # pyright: ignore[reportAssignmentType]
        parts, checkpoint = opened.parts, opened.checkpoint
        self.parts: DreamerParts = parts
        self.config: DreamerTrainConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        training, self.ranks = config.training, parts.workflow.ranks
        self.update_ratio = UpdateRatio(training.updates_per_step, training.max_updates_per_step)
        self.tracker = EpisodeTracker(parts.environment.spec.num_envs)
        self.recorder = EpisodeRecorder(
            parts.environment.spec, render=self._picture if training.video_interval else None
        )
        self.agreed = Agreed()
        self.means = MetricMeans()
        most = training.max_consecutive_nonfinite
        self.nonfinite = NonFiniteGuard(self.run_dir, most, parts.workflow.state_dict)
        self.on_track = OnTrack(config, self.run_dir)
        self.best_return: float | None = None
        self.best_step: int | None = None
        self.owes_evaluation = False
        windows = self.ranks.part(training.batch_size)
        self.feed = BatchFeed(parts.replay, windows, parts.workflow.device)
        self._checkpoint = checkpoint
        self.compilations = Compilations(self.reports.note) if config.compile is Compile.inductor else None
        if checkpoint is not None:
            self._restore(checkpoint)
        if training.offline:
            require_windows(parts.replay)
        self.guard = RunGuard(config.memory, first_times(training, self.step))
        self.start_updates = self.updates
        self._has_begun = self._has_learned = False
        self.check_due = Every(config.memory.check_interval, self.updates)
        self._side = SideThread("environments") if training.overlap else None

    def begin_after_rollback(self) -> None:
        """Draw other batches than before: the same ones would lead to the same end."""
        self.nonfinite.rolled_back()
        name = self.ranks.named(f"replay after a rollback to {self.step}")
        self.parts.replay.reseed(numpy_generator(self.config.seed, name))

    def why(self, reason: StopReason) -> str:
        """Return what was not finite, if that ended the run."""
        is_nonfinite = reason in (StopReason.nonfinite, StopReason.rollback)
        return self.nonfinite.stop_sentence() if is_nonfinite else super().why(reason)

    def close(self) -> None:
        """Stop following the compiler, and the environments in their thread, after the step they are in."""
        if self.compilations:
            self.compilations.close()
        if self._side:
            self._side.begin(self.parts.environment.close)
            self._side.close(_SECONDS_TO_CLOSE)

    def run(self) -> StopReason:
        """Train; return why it ended. A checkpoint is written, but before a rollback."""
        training, memory = self.config.training, self.config.memory
        video_due = Every(training.video_interval, self.step)
        evaluate_due = Every(training.evaluation_interval, self.step)
        compare_due = Every(0 if training.evaluation_interval else UPDATES_BETWEEN, self.updates)
        probe_due = Every(training.probe_interval, self.step)
        log_due = Every(training.log_interval, self.step)
        save_due = Every(training.checkpoint_interval, self.step)
        memory_due = Every(memory.report_interval, self.step)
        snapshot_due = Every(memory.snapshot_interval, self.step)
        time_step = self._begin()
        self._has_begun = True
        if self.owes_evaluation:
            # One that was made up and not saved is made up again.
            self.reports.writer.drop(self.step, ("evaluation/", "on_track/"))
            self._evaluate()
            if not self.owes_evaluation:
                self.save_if_possible()  # once made up, it is not owed again
        while not (reason := self._stop_reason(time_step)):
            following = self._collect(time_step)
            self._learn()
            with self.watch("collect"):
                time_step = following.result()
            self.reports.advance(self.step, self.updates - self.start_updates, *self._phase())
            is_last = self.step >= training.total_timesteps
            if video_due(self.step) | is_last:
                self._show()
            if probe_due(self.step):
                self._probe()
            if log_due(self.step) | is_last:
                self._log()
            if memory_due(self.step) | is_last:
                self.report_memory()
            if compare_due(self.updates):
                self.on_track.report(self.step, self.reports)
            if snapshot_due(self.step):
                self.parts.snapshots.save(self.step)
            if evaluate_due(self.step):  # after all that is written of this step: it may be put off
                self._evaluate()
            is_new_best = self.best_step == self.step != self.saved_step  # a step may last for two rounds
            if save_due(self.step) | self.agreed.save | is_new_best:
                self.save_if_possible()
        if self.saved_step != self.step and reason is not StopReason.rollback:
            self.save()
        return reason

    def _phase(self) -> tuple[str, int | None]:
        """Return the name of the current phase and the step at which it ends; None for the last phase."""
        training, replay = self.config.training, self.parts.replay
        if self.step < training.first_update:
            return "filling the replay", training.first_update
        if not replay.can_sample:
            return "waiting for a longer episode", training.total_timesteps
        if self.step < training.warmup_steps:
            is_last = training.warmup_steps >= training.total_timesteps
            return "the world model learns alone", None if is_last else training.warmup_steps
        return LEARNING, None

    def _stop_reason(self, time_step: TimeStep) -> StopReason | None:
        """Agree with the other ranks on what is next; return why to stop now, None to continue."""
        self.agreed = agree(self.ranks, time_step, self.signals, self.guard.must_stop)
        is_over = self.step >= self.config.training.total_timesteps
        reasons = {
            StopReason.finished: is_over and not self.owes_evaluation,
            StopReason.leak: self.agreed.leak,
            StopReason.nonfinite: self.nonfinite.has_too_many and self.nonfinite.has_rolled_back,
            StopReason.stopped: self.agreed.stop,
            StopReason.rollback: self.nonfinite.has_too_many,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _begin(self) -> TimeStep:
        """Return the time step that the run starts with, or continues from."""
        spec = self.parts.environment.spec
        if self.config.training.video_interval and not spec.has_image and not spec.renders:
            _LOG.info("no video of episodes: %s", no_pictures(spec))
        if self._checkpoint is None:
            self._request_video()
            return self._begin_call(self.parts.environment.reset).result()
        state = self._checkpoint.state()
        restore = partial(self.parts.environment.restore, state["environment"])
        time_step, warnings = self._begin_call(restore).result()
        for warning in warnings:
            _LOG.warning(warning)
        with reading(self._checkpoint.state_path):  # last: nothing may be drawn between here and the loop
            set_global_state(state["global_generators"])
        return time_step

    def _begin_call(self, call: Callable[[], Result]) -> Future[Result]:
        """Call the environments, always in the same thread: what draws in one can draw in no other."""
        return self._side.begin(call) if self._side else at_once(call)

    def _wait_for_environments(self) -> None:
        """Return when no environment is in the middle of a step."""
        if self._side:
            self._side.wait()

    def _collect(self, time_step: TimeStep) -> Future[TimeStep]:
        """Act once in every environment and remember what was seen and done; return what comes next.

        With `training.overlap` it may come later. Its actions are chosen, so no update changes it.
        """
        if self.config.training.offline:
            self.step += self.config.env.num_envs
            return at_once(lambda: time_step)
        with self.watch("collect"):
            collected = self.parts.workflow.collect_step(time_step)
            frames = self._remember(time_step, collected)
            following = self._begin_call(partial(self.parts.environment.step, collected.action))
        self._show_episode(frames)
        return following

    def _remember(
        self, time_step: TimeStep, collected: PolicyOutput, envs: NDArray[np.int64] | None = None
    ) -> NDArray[np.uint8] | None:
        """Count and store a step of `envs`, all without; return the frames of an episode to show."""
        self.step += self.agreed.acted
        own = self.tracker.add(time_step, envs)
        for episode in of_all_ranks(self.ranks, own, self.tracker) if self.agreed.ended else []:
            self.reports.episode(self.step, episode)
            self.on_track.games.add(episode, self.updates)
        latent = collected.latent if self.parts.replay.stores_latents else None
        self.parts.replay.add(time_step, collected.action, latent, envs)
        return self.recorder.add(time_step) if envs is None or envs[0] == 0 else None

    def _show_episode(self, frames: NDArray[np.uint8] | None) -> None:
        if frames is not None:
            require_run_folder(self.run_dir)
            with self.watch("report"), self.reports.doing("writing a video"):
                self.reports.animation(self.step, "episode", frames, VIDEO_FPS)

    def _picture(self) -> NDArray[np.uint8] | None:
        """Return a picture of environment 0; the first one that fails is the last."""
        try:
            return self._begin_call(self.parts.environment.render).result()
        except UserError as error:
            _LOG.warning("no video of episodes: %s", error)
            self.recorder.give_up()
            return None

    def _learn(self) -> None:
        """Make the updates due by the train ratio; during warm-up, of the world model alone."""
        training, workflow, replay = self.config.training, self.parts.workflow, self.parts.replay
        if self.step < training.first_update or not self._all_can_sample():
            return
        joint = self.step >= training.warmup_steps
        update = workflow.update if joint else workflow.update_world_model
        # Elsewhere a rank may wait for a slow environment, and the first times compile.
        promptly = self.ranks.prompt if self._has_learned else nullcontext
        for left in reversed(range(self._updates_due())):
            with self.watch("sample"):
                batch = self.feed.next()
            with self.watch("update"), promptly():
                updated = update(batch)
                self.means.add(updated.metrics)
                self.nonfinite.check(self.step, updated, batch)
            if left and not self.nonfinite.has_too_many:
                with self.watch("sample"):
                    self.feed.draw_ahead()  # before latents are written: the host may wait for them
            with self.watch("update"):
                if replay.stores_latents:
                    replay.write_back(batch.positions, updated.deter, updated.stoch, updated.finite)
            self.updates += 1
            self._has_learned |= joint
            if self.nonfinite.has_too_many:
                return
            self.guard.mark_first(self.step, "first joint update" if joint else "first update")
            if joint and self.compilations:
                self.compilations.settle()
            if self.check_due(self.updates):
                self._wait_for_environments()
                with self.watch("memory"):
                    self.guard.check_graphs(self.step, self.roots())
                self._require_equal_ranks()

    def _updates_due(self) -> int:
        """Return how many updates to make now."""
        return self.update_ratio(self.step)

    def _require_equal_ranks(self) -> None:
        """Raise `RankLost` if what the ranks have learned has come apart."""
        if self.ranks.size > 1 and not self.parts.workflow.is_equal_on_ranks():
            raise RankLost(f"the networks of the ranks differ after update {self.updates:,}")

    def _all_can_sample(self) -> bool:
        """Return whether every rank can: an update is made by all of them or by none."""
        return self.ranks.sum([self.parts.replay.can_sample])[0] == self.ranks.size

    def _show(self) -> None:
        """Show what the world model believes, and record the next episode."""
        require_run_folder(self.run_dir)
        self.guard.mark_first(self.step, "first pictures")
        if self.ranks.is_first and self.parts.replay.can_sample:
            with self.watch("report"), self.reports.doing("drawing what the model predicts"):
                # A separate generator: reports must not change what is learned.
                generator = numpy_generator(self.config.seed, f"report at {self.step}")
                windows = self.ranks.part(self.config.training.batch_size)
                batch = self.parts.replay.sample(windows, generator)
                batch = batch.to(self.parts.workflow.device)
                for key, animation in self.parts.workflow.report(batch).items():
                    self.reports.open_loop(self.step, key, animation.numpy())
        self._request_video()

    def _request_video(self) -> None:
        """Record the next episode, of the first environment of all."""
        if self.ranks.is_first:
            self.recorder.request()

    def _probe(self) -> None:
        """Ask what the model knows of Pong, in games that training does not play."""
        from .dreamer.probe import probe

        self.guard.mark_first(self.step, "first probe")
        with self.watch("report"), self.reports.doing("asking the model of ball and points"):
            tags = probe(self.parts.workflow, self.config.env, self.config.seed)
            self.reports.probe(self.step, tags)

    def _evaluate(self) -> None:
        """Play episodes without learning; a signal to stop postpones it until the run is resumed."""
        self.guard.mark_first(self.step, "first evaluation")
        with self.watch("report"), self.reports.doing("playing games to evaluate"):
            self.owes_evaluation = True  # until it is made: its environments may crash
            mean = self._evaluate_on_first()
            if mean is None:
                return
            self.owes_evaluation = False
            if self.best_return is None or mean > self.best_return:
                self.best_return, self.best_step, self.is_best = mean, self.step, True
            self.on_track.report(self.step, self.reports)

    def _evaluate_on_first(self) -> float | None:
        """Play on the first rank; return the mean return on all, None if a signal came first."""
        found, episodes = [0.0, 0.0], self.config.training.evaluation_episodes
        if self.ranks.is_first:
            workflow, env, seed = self.parts.workflow, self.config.env, self.config.seed
            result = evaluate(workflow, env, episodes, seed, should_stop=lambda *_: self.signals.stop)
            if len(result.episodes) == episodes:
                found = [result.mean, 1.0]
                lengths = np.mean([episode.length for episode in result.episodes])
                self.reports.evaluation(self.step, result.mean, result.standard_error, float(lengths))
        mean, is_whole = self.ranks.sum(found)
        return mean if is_whole else None

    def _log(self) -> None:
        require_run_folder(self.run_dir)
        training = self.config.training
        is_short = not self.config.buffer.cross_episodes and not self.parts.replay.can_sample
        if is_short and self.step >= training.first_update:
            _LOG.warning(
                "step %s: no updates: buffer.cross_episodes=false needs an episode of at least "
                "training.sequence_length=%d steps, and none is stored. Lower the latter or omit the former",
                f"{self.step:,}",
                training.sequence_length,
            )
        metrics = {f"train/{name}": value for name, value in self.means.flush().items()}
        metrics |= self.memory_metrics()
        metrics |= self.watch.flush() | self._tags()
        metrics["train/updates"] = float(self.updates)
        self.reports.interval(self.step, self.updates - self.start_updates, metrics)

    def _tags(self) -> dict[str, float]:
        """Return what else to log of an interval."""
        return self.compilations.tags() if self.compilations else {}

    def state(self) -> dict[str, Any]:
        """See `Orchestrator.state`; what is due when follows from the step alone."""
        return {
            SETTINGS_KEY: checkpoint_settings(self.config),
            RANKS_KEY: self.ranks.size,
            "updates": self.updates,
            "ratio": self.update_ratio.state_dict(),
            "environment": self.parts.environment.state_dict(),
            **{name: each.state_dict() for name, each in self._counted().items()},
            "recorder": self.recorder.state_dict(),
            "means": self.means.state_dict(),
            "last_games": self.on_track.games.state_dict(),
            "best_return": self.best_return,
            "owes_evaluation": self.owes_evaluation,
            "global_generators": global_state(),
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore the loop; environments and global generators follow in `run`.

        Raises:
            UserError: If a file holds what no run has written.
        """
        state = checkpoint.state()
        with reading(checkpoint.state_path):
            tracked = {name: each.state_dict() for name, each in self._counted().items()}
            check_form(state, tracked, self.update_ratio.updates_per_step, self.parts.environment.spec)
            self.step, self.updates = checkpoint.step, state["updates"]
            self.saved_step, self.owes_evaluation = self.step, state["owes_evaluation"]
            self.update_ratio.load_state_dict(state["ratio"])
            self.tracker.load_state_dict(state["episodes"])
            self.recorder.load_state_dict(state["recorder"])
            self.means.load_state_dict(state["means"], self.parts.workflow.device)
            self.nonfinite.load_state_dict(state["nonfinite"])
            if "last_games" in state:  # version 0.2 wrote none
                self.on_track.games.load_state_dict(state["last_games"])
            self.best_return = state["best_return"]

    def _counted(self) -> dict[str, Any]:
        """Return the parts of the state that have one form in every run."""
        return {"episodes": self.tracker, "nonfinite": self.nonfinite}

    def held_objects(self) -> dict[str, Any]:
        """See `Orchestrator.held_objects`."""
        return {"batch": self.feed.sampled, "metrics": self.means, "video": self.recorder}

    def save_if_possible(self) -> None:
        """Save; before the first time step there is nothing that is not on disk."""
        if self._has_begun:
            super().save_if_possible()

    def save(self) -> None:
        """Write a checkpoint, once it is known whether the last update was finite.

        The first rank writes its part, which makes the whole count, once all others have written theirs.
        """
        self._wait_for_environments()
        self.nonfinite.settle()
        self.is_best |= self.best_step == self.step  # also where its checkpoint is written again
        before = self.saved_step, self.is_best
        try:
            for is_turn in (not self.ranks.is_first, self.ranks.is_first):
                in_turn(self.ranks, super().save, is_turn)
        except OSError:
            self.saved_step, self.is_best = before  # on all ranks, whatever this one has written
            raise

    @property
    def checkpoints_to_keep(self) -> int:
        """See `Orchestrator.checkpoints_to_keep`; the first rank may still need the one before its newest."""
        return super().checkpoints_to_keep + (not self.ranks.is_first)

    def saved_model(self) -> dict[str, Any]:
        """See `Orchestrator.saved_model`; ranks differ in the state of acting alone."""
        state = super().saved_model()
        return state if self.ranks.is_first else {"online": state["online"]}
