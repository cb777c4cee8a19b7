"""Instruments that observe a training run and report on it. The loop depends only on their base class."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.run_folder import require_run_folder
from ..envs.config import Suite
from ..envs.episodes import Episode, EpisodeRecorder
from ..utils.errors import UserError
from ..utils.logging.console import LEARNING
from ..utils.schedule import Every
from ..utils.seeding import numpy_generator
from ..utils.state_files import check_structure
from ..utils.timestep import TimeStep
from ..utils.video import captioned
from .evaluation import Evaluation, evaluate
from .orchestrator import Orchestrator
from .reports import RECENT, VIDEO_FPS, no_pictures

if TYPE_CHECKING:
    from .world_model_orchestrator import WorldModelOrchestrator

Run: TypeAlias = "WorldModelOrchestrator"
Envs: TypeAlias = NDArray[np.int64] | None
"""Indices of the environments in a record, or `None` for all of them."""

_LOG = logging.getLogger(__name__)
_OPEN_LOOP_FPS = 5
_STRIP_FRAMES = 8


class Instrument:
    """Acts on a run every `interval` agent steps (never for 0) and, with `at_end`, after the last step.

    Instruments must not affect training, so they use their own random generators.

    Args:
        run: The run at its first step.
        interval: Number of agent steps between actions.
        act: Called with the run, at the same steps on all ranks.
        at_end: Whether to act after the last step as well.
        event: Name of the first action for the memory guard, if that action increases memory use.
    """

    is_postponed = False
    """Whether the last action is incomplete. A resumed run repeats it first."""

    def __init__(
        self, run: Run, interval: int, act: Callable[[Run], object], *, at_end: bool = False, event: str = ""
    ) -> None:
        self.interval, self.event = interval, event
        self.held: dict[str, Any] = {}
        """Objects for the memory report, by display name."""
        self._act, self._at_end, self._is_time = act, at_end, Every(interval, run.step)

    def is_due(self, run: Run) -> bool:
        """Return whether to act now. Must be called exactly once after each step."""
        is_last = run.step >= run.config.training.total_timesteps
        return self._is_time(run.step) | (self._at_end and is_last)

    def __call__(self, run: Run) -> None:
        """Act on the run."""
        run.guard.mark_first(run.step, self.event)
        self._act(run)

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Receive a record of each environment (or of `envs`) and the episodes that ended on any rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return this instrument's entries for the loop's saved state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this instrument's entries from the loop's saved state.

        Raises:
            KeyError: If an entry is missing.
            ValueError: If an entry has an invalid structure.
        """


class Video(Instrument):
    """Records one episode of the first environment at the start and in each interval."""

    def __init__(self, run: Run) -> None:
        interval, spec = run.config.training.video_interval, run.parts.environment.spec
        super().__init__(run, interval, self._request, at_end=True)
        self.recorder = EpisodeRecorder(spec, render=partial(self._picture, run) if interval else None)
        self.held["video"] = self.recorder
        if interval and not spec.has_image and not spec.renders:
            _LOG.info("no video of episodes: %s", no_pictures(spec))
        self._request(run)

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Record environment 0, and write the video when its episode ends."""
        if envs is not None and envs[0] != 0:
            return
        with run.watch("collect"):
            frames = self.recorder.add(time_step)
        if frames is not None:
            self._write(run, frames)

    def _write(self, run: Run, frames: NDArray[np.uint8]) -> None:
        require_run_folder(run.run_dir)
        with run.watch("report"), run.reports.doing("writing a video"):
            run.reports.animation(run.step, "episode", frames, VIDEO_FPS)

    def state_dict(self) -> dict[str, Any]:
        """Return the recorded frames."""
        return {"recorder": self.recorder.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the recorded frames."""
        recorder = state["recorder"]
        if (frames := recorder["frames"]) is not None:
            frames = np.empty((*frames.shape, 0, 0, 0, 0)[:4], np.uint8)
        check_structure(recorder, {"wanted": False, "frames": frames}, "recorder/")
        self.recorder.load_state_dict(recorder)

    def _request(self, run: Run) -> None:
        if run.ranks.is_first:
            self.recorder.request()

    def _picture(self, run: Run) -> NDArray[np.uint8] | None:
        """Return a picture of environment 0. Recording ends after the first failure."""
        try:
            return run.begin_call(run.parts.environment.render).result()
        except UserError as error:
            _LOG.warning("no video of episodes: %s", error)
            self.recorder.give_up()
            return None


def _show_progress(run: Run) -> None:
    """Update the progress bar."""
    training, phase, until = run.config.training, LEARNING, None
    if run.step < training.first_update:
        phase, until = "filling the replay", training.first_update
    elif not run.parts.replay.can_sample:
        phase, until = "waiting for a longer episode", training.total_timesteps
    elif run.step < training.warmup_steps:
        phase = "world model warm-up"
        until = training.warmup_steps if training.warmup_steps < training.total_timesteps else None
    run.reports.advance(run.step, run.updates - run.start_updates, phase, until)


def _log(run: Run) -> None:
    """Log the metrics of an interval."""
    require_run_folder(run.run_dir)
    training = run.config.training
    is_short = not run.config.buffer.cross_episodes and not run.parts.replay.can_sample
    if is_short and run.step >= training.first_update:
        _LOG.warning(
            "step %s: no updates, because buffer.cross_episodes=false needs a stored episode of "
            "training.sequence_length=%d or more records. Lower this length, or omit buffer.cross_episodes",
            f"{run.step:,}",
            training.sequence_length,
        )
    metrics = {f"train/{name}": value for name, value in run.means.flush().items()}
    metrics |= run.memory_metrics()
    metrics |= run.watch.flush() | run.tags()
    metrics["train/updates"] = float(run.updates)
    run.reports.interval(run.step, run.updates - run.start_updates, metrics)


def _show_open_loop(run: Run) -> None:
    """Write the truth, prediction and error of each image as a captioned animation and as a still image."""
    require_run_folder(run.run_dir)
    if not run.ranks.is_first or not run.parts.replay.can_sample:
        return
    with run.watch("report"), run.reports.doing("rendering predictions"):
        # Reports must not affect training, so they use a separate generator.
        generator = numpy_generator(run.config.seed, f"report at {run.step}")
        windows = run.ranks.part(run.config.training.batch_size)
        batch = run.parts.replay.sample(windows, generator).to(run.parts.workflow.device)
        for key, animation in run.parts.workflow.report(batch).items():
            # The shape is (T, 3 H, n W, 3).
            frames = animation.numpy()
            shown = captioned(frames, ("truth", "prediction", "error"))
            run.reports.animation(run.step, f"open_loop/{key}", shown, _OPEN_LOOP_FPS)
            # The strip shows evenly spaced frames of the first sequence, each H pixels wide.
            chosen = frames[np.linspace(0, len(frames) - 1, _STRIP_FRAMES).round().astype(int)]
            strip = np.concatenate(list(chosen[:, :, : frames.shape[1] // 3]), axis=1)
            run.reports.writer.image(run.step, f"image/open_loop/{key}", strip)


class Evaluator(Instrument):
    """Evaluates the policy. A stop signal postpones the evaluation until the run is resumed."""

    def __init__(self, run: Run) -> None:
        interval = run.config.training.evaluation_interval
        super().__init__(run, interval, self._evaluate, event="first evaluation")
        self._best_return: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best mean return, and whether an evaluation is postponed."""
        return {"best_return": self._best_return, "owes_evaluation": self.is_postponed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the best mean return, and whether an evaluation is postponed."""
        best_return = None if state["best_return"] is None else 0.0
        own = {"best_return": best_return, "owes_evaluation": False}
        check_structure({name: state[name] for name in own}, own)
        self._best_return, self.is_postponed = state["best_return"], state["owes_evaluation"]

    def _evaluate(self, run: Run) -> None:
        """Evaluate on rank 0. All ranks then compare the mean return with the best so far."""
        # The log may contain an earlier attempt that was not checkpointed.
        if self.is_postponed:
            run.reports.writer.lines.drop(run.step, ("evaluation/",))
        episodes, mean_and_count = run.config.training.evaluation_episodes, [0.0, 0.0]
        # The evaluation counts as postponed until it is complete, because its environments may crash.
        self.is_postponed = True
        with run.watch("report"), run.reports.doing("evaluating"):
            if run.ranks.is_first:
                workflow, env, seed = run.parts.workflow, run.config.env, run.config.seed
                found = evaluate(workflow, env, episodes, seed, should_stop=lambda *_: run.signals.stop)
                if len(found.episodes) == episodes:
                    mean_and_count = [found.mean, 1.0]
                    self._write(run, found)
            mean, is_complete = run.ranks.sum(mean_and_count)
        self.is_postponed = not is_complete
        is_best = self._best_return is None or mean > self._best_return
        # Among non-finite updates, the checkpoint would be postponed to other parameters.
        if is_complete and is_best and not run.nonfinite.settle():
            self._best_return = mean
            if run.config.training.keep_best:
                run.best_step = run.step
        if is_complete:
            end_at_target(run, mean, "an evaluation")

    def _write(self, run: Run, found: Evaluation) -> None:
        """Write the result, with a standard error if there are several episodes."""
        lengths = [episode.length for episode in found.episodes]
        values, spread = {"return_mean": found.mean, "length_mean": float(np.mean(lengths))}, ""
        if found.standard_error is not None:
            values["return_standard_error"] = found.standard_error
            spread = f" (standard error {found.standard_error:.2g})"
        values |= {f"info/{name}": number for name, number in found.info.items()}
        spread += "".join(f", {name} {number:.4g}" for name, number in found.info.items())
        _LOG.info("step %s: evaluation return %.4g%s", f"{run.step:,}", found.mean, spread)
        run.reports.writer.scalars(run.step, {f"evaluation/{name}": each for name, each in values.items()})


class Target(Instrument):
    """Ends a run without evaluations at `training.target_return`."""

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Compare the mean of the last returns with the target, as soon as there are enough."""
        returns = run.reports.recent.get("return", ())
        if ended and len(returns) == RECENT:
            end_at_target(run, float(np.mean(returns)), f"the last {RECENT} episodes")


def end_at_target(run: Run, mean: float, judged: str) -> None:
    """End the run if the mean return of the episodes that `judged` describes is at least the target."""
    target = run.config.training.target_return
    if target is not None and mean >= target:
        run.signals.finish(
            f"the mean return of {judged}, {mean:.4g}, reached training.target_return={target:g}"
        )


def instruments_of(run: Run) -> list[Instrument]:
    """Return the instruments of a run in the order of their actions."""
    training, memory = run.config.training, run.config.memory
    found = [
        Instrument(run, 1, _show_progress, at_end=True),
        Video(run),
        Instrument(run, training.video_interval, _show_open_loop, at_end=True, event="first pictures"),
        Instrument(run, training.log_interval, _log, at_end=True),
        Instrument(run, memory.report_interval, Orchestrator.report_memory, at_end=True),
    ]
    if run.config.env.suite in (Suite.atari, Suite.dmc):
        from .on_track.instrument import OnTrack

        found.append(OnTrack(run))
    found.append(Instrument(run, memory.snapshot_interval, lambda run: run.parts.snapshots.save(run.step)))
    if training.target_return is not None and not training.evaluation_interval:
        found.append(Target(run, 0, lambda run: None))
    # The evaluation comes last, because it may be postponed.
    return [*found, Evaluator(run)]
