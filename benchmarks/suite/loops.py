"""Rows for the loop: environments only, environments with a policy, and complete runs."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.suite.bench import Bench
from benchmarks.suite.compare import OURS, Blocks, compare
from benchmarks.suite.data import random_actions
from benchmarks.suite.networks import update_work
from benchmarks.suite.results import Floor, Result
from benchmarks.suite.timing import Local, Variant
from reverie.config.dreamer import DreamerTrainConfig
from reverie.envs import make_environment
from reverie.envs.atari import AtariBackend
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.run import open_run
from reverie.orchestration.signals import Signals
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.utils.timestep import TimeStep

_STEPS = 100
_QUICK_STEPS = 4
# Agent steps per update.
_CYCLE = 32
_NATIVE = "native vector env alone"


def environment(bench: Bench, row: str, num_envs: int) -> list[Result]:
    """Measure 100 steps of each environment with random actions, compared with the library's vector env."""
    config = bench.compose(f"env.num_envs={num_envs}")
    vector = make_environment(config.env, config.seed)
    vector.reset()
    generator, steps = np.random.default_rng(0), _steps(bench)
    actions = [random_actions(vector.spec, generator) for _ in range(steps)]

    def play() -> None:
        for action in actions:
            vector.step(action)

    with ExitStack() as opened:
        opened.callback(vector.close)
        native = _native(config, steps, opened)
        variants = [Local(OURS, play), Local(_NATIVE, native)]
        return compare(bench, row, variants, _native_floor, _frames(config, steps))


def collect(bench: Bench, row: str) -> list[Result]:
    """Measure 100 steps of 8 environments with a size1m policy: act, step and record, without updates."""
    overrides = ("env.num_envs=8", "model=size1m", *_untouched(bench, capacity=20_000))
    config = bench.compose(*overrides)
    steps = _steps(bench)
    with ExitStack() as opened:
        run = _open(config, opened)
        native = _native(config, steps, opened)
        variants = [Local(OURS, _collector(run, steps)), Local(_NATIVE, native)]
        return compare(bench, row, variants, _native_floor, _frames(config, steps))


def end_to_end(bench: Bench, row: str) -> list[Result]:
    """Measure 32 agent steps of Pong and the resulting update, with size1m and one environment."""
    with ExitStack() as opened:
        config = _one_environment(bench)
        ours = Local(OURS, _trainer(_open(config, opened)), bench.device)
        variants: list[Variant] = [ours, *bench.dreamers("run", size="1M")]
        floor = _update_floor(bench, config)
        return compare(bench, row, variants, floor, {"agent steps/s": _CYCLE, "updates/s": 1.0})


def end_to_end_replay(bench: Bench, row: str, *, preset: bool) -> list[Result]:
    """Measure updates and their preceding agent steps, with the plain and the compressed replay.

    A call includes at least one step of each environment. With `preset`, a step makes four updates due.

    Args:
        bench: The run of the suite.
        row: Name of the row.
        preset: Use model, batch, ratio and environments of `dreamer_ataripong` on a CPU, not of `end_to_end`.
    """
    forms = {
        OURS: ("buffer.compressed=false",),
        "compressed": ("buffer.compressed=true",),
        "compressed, every 8th latent": ("buffer.compressed=true", "buffer.latent_every=8"),
    }
    compose = _cpu_preset if preset else _one_environment
    with ExitStack() as opened:
        configs = {name: compose(bench, *overrides) for name, overrides in forms.items()}
        variants = [
            Local(name, _trainer(_open(config, opened)), bench.device) for name, config in configs.items()
        ]
        first = configs[OURS]
        updates = max(1.0, first.env.num_envs * first.training.updates_per_step)
        floor = _update_floor(bench, first, updates)
        return compare(bench, row, variants, floor, {"updates/s": updates})


def _one_environment(bench: Bench, *overrides: str) -> DreamerTrainConfig:
    """Return size1m with one environment and one update of 16 x 64 per 32 agent steps."""
    training = bench.compose().training
    ratio = training.batch_size * training.sequence_length / _CYCLE
    one = ("env.num_envs=1", "model=size1m", f"training.train_ratio={ratio}")
    return bench.compose(*one, *overrides, *_untouched(bench, capacity=20_000))


def _cpu_preset(bench: Bench, *overrides: str) -> DreamerTrainConfig:
    """Return Pong's CPU preset."""
    preset = ("experiment=dreamer_ataripong", "training.batch_size=8", "training.sequence_length=16")
    return bench.compose(*preset, *overrides, *_untouched(bench, capacity=20_000))


def _update_floor(bench: Bench, config: DreamerTrainConfig, updates: float = 1.0) -> Floor:
    """Return the time of the updates' operations. Acting and the emulator count as free."""
    seconds = updates * bench.rates().seconds_of(update_work(bench, config))
    return Floor(seconds, "the update's operations alone, at the measured rates")


def _untouched(bench: Bench, capacity: int) -> tuple[str, ...]:
    """Return the overrides for a run that only collects and learns."""
    never = 1_000_000_000
    return (
        f"buffer.capacity={2048 if bench.settings.quick else capacity}",
        f"training.total_timesteps={never}",
        f"training.log_interval={never}",
        "training.video_interval=0",
        "training.checkpoint_interval=0",
        "logger.tensorboard=false",
        "logger.progress=plain",
    )


def _open(config: DreamerTrainConfig, opened: ExitStack) -> WorldModelOrchestrator:
    """Return a run in a temporary folder."""
    # The run's banner would appear between the rows.
    logging.disable(logging.INFO)
    opened.callback(logging.disable, logging.NOTSET)
    config.run_dir = f"{opened.enter_context(TemporaryDirectory())}/run"
    run = opened.enter_context(open_run(config, Signals(), recipe_of(config)))
    assert isinstance(run, WorldModelOrchestrator)
    return run


def _collector(run: WorldModelOrchestrator, steps: int) -> Callable[[], None]:
    arrival = run._begin()

    def act() -> None:
        nonlocal arrival
        for _ in range(steps):
            arrival = _step(run, arrival).result()

    return act


def _trainer(run: WorldModelOrchestrator) -> Callable[[], None]:
    """Return a function that collects until one more update has run. The first update has already run."""
    arrival = run._begin()

    def cycle() -> None:
        nonlocal arrival
        updates = run.updates
        while run.updates == updates:
            following = _step(run, arrival)
            run._learn()
            arrival = following.result()

    cycle()
    return cycle


def _step(run: WorldModelOrchestrator, arrival: TimeStep) -> Future[TimeStep]:
    """Collect once. The run handles Ctrl-C itself, but would react to it only in its own loop."""
    if run.signals.stop:
        raise KeyboardInterrupt
    return run._collect(arrival)


def _native(config: DreamerTrainConfig, steps: int, opened: ExitStack) -> Callable[[], None]:
    """Return a function that runs the same steps in the library's vector env, with the same settings."""
    simulators = AtariBackend(config.env)
    opened.callback(simulators.close)
    # Using our own emulators guarantees the same settings.
    native = simulators._running
    native.reset(seed=0)
    generator = np.random.default_rng(0)
    actions = generator.integers(simulators.spec.action.size, size=(steps, config.env.num_envs))

    def play() -> None:
        for action in actions:
            native.step(action)

    return play


def _steps(bench: Bench) -> int:
    return _QUICK_STEPS if bench.settings.quick else _STEPS


def _frames(config: DreamerTrainConfig, steps: int) -> dict[str, float]:
    records = steps * config.env.num_envs
    return {"frames/s": records * config.env.action_repeat, "agent steps/s": records}


def _native_floor(blocks: Blocks) -> Floor:
    """Return the best time of the library's vector env."""
    best = min(seconds for block in blocks[_NATIVE] for seconds in block.seconds)
    return Floor(best, f"the best time of the {_NATIVE}")
