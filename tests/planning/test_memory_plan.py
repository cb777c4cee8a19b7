"""A run's plan matches its memory, and planning does not allocate memory."""

import gc
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes, in_use_source
from torch.nn import functional as F

from reverie.checkpoints.checkpoint import CHECKPOINTS, save_checkpoint
from reverie.checkpoints.shards import folder_of_rank
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import multiplies_bfloat16, typed
from reverie.config.schema import Device, Precision
from reverie.envs import VectorEnvironment, make_environment
from reverie.orchestration.dreamer import dry_run as module
from reverie.orchestration.dreamer.dry_run import CUDA_GRANULARITY, dry_run
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of
from reverie.planning import GPU, HOST, library_rows, plan_run
from reverie.planning.constants import WORKER_BYTES
from reverie.planning.recipe import environment_spec
from reverie.planning.torch_modes import DeviceForward, LiveBytes
from reverie.utils.footprint import folder_disk_bytes
from reverie.utils.ranks import Ranks

from ..runs.helpers import CARTPOLE, CATCH, bytes_of
from ..runs.measured_update import InUsePeak, fill
from ..runs.warm import Server

MEASURED_UPDATE = Path(__file__).parents[1] / "runs" / "measured_update.py"
exact_only = pytest.mark.skipif(not in_use_source().startswith("mallinfo2"), reason="needs glibc's allocator")
bfloat16_only = pytest.mark.skipif(not multiplies_bfloat16(Device.cpu), reason="needs products of bfloat16")


def configured(*overrides: str) -> DreamerTrainConfig:
    return typed(compose_jobs(["device=cpu", *overrides])[0], DreamerTrainConfig)


Measured = Callable[..., dict[str, int]]


@pytest.fixture(scope="module")
def measured_update(server: Server) -> Measured:
    """Measure an update once for each set of overrides.

    Each measurement has a separate process, because the tests' shape checks keep arguments alive longer.
    """
    found: dict[tuple[str, ...], dict[str, int]] = {}

    def measure(*overrides: str) -> dict[str, int]:
        if overrides not in found:
            common = ("device=cpu", "precision=float32", "compile=none", "buffer.capacity=2000")
            ended = server.run("script", str(MEASURED_UPDATE), *common, *overrides)
            assert ended.code == 0, ended.error
            found[overrides] = json.loads(ended.out)
        return found[overrides]

    return measure


TINY = ["model=size1m", "training.batch_size=4", "training.sequence_length=8"]


@exact_only
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(TINY, id="size1m"),
        pytest.param(["model=size12m", "training.batch_size=2", "training.sequence_length=8"], id="size12m"),
        pytest.param(["experiment=dreamer_cartpole"], id="dreamer_cartpole"),
        pytest.param(["model=size1m", "precision=bfloat16"], marks=bfloat16_only, id="size1m in bfloat16"),
    ],
)
def test_the_peak_of_an_update_is_within_5_percent_of_its_plan(
    overrides: list[str], measured_update: Measured
) -> None:
    found = measured_update(*overrides)
    assert found["planned"] == pytest.approx(found["measured"], rel=0.05)


@exact_only
@bfloat16_only
def test_what_kernels_of_bfloat16_keep_is_planned(measured_update: Measured) -> None:
    half, full = (measured_update(*TINY, *other)["kept"] for other in (["precision=bfloat16"], []))
    [row] = [row for row in library_rows(configured("precision=bfloat16", "compile=none")) if row.nbytes]
    assert row.nbytes / 2 < half - full < row.nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_of_an_update_on_a_gpu_is_within_10_percent_of_its_plan(
    precision: str, tmp_path: Path
) -> None:
    overrides = ["device=cuda", "model=size12m", f"precision={precision}", "buffer.capacity=5000"]
    config = typed(compose_jobs(overrides)[0], DreamerTrainConfig)
    with closing(make_environment(config.env, config.seed)) as environment:
        assert isinstance(environment, VectorEnvironment)
        planned = sum(recipe_of(config).dry_run(config, environment.spec).peak.values())
        replay = build_replay(config, recipe_of(config).replay_spec(config, environment.spec), tmp_path)
        fill(config, environment, replay)
        workflow, updated = build_workflow(config, environment.spec), None
        for _ in range(2):
            batch = replay.sample(config.training.batch_size).to(workflow.device)
            torch.cuda.reset_peak_memory_stats()
            updated = workflow.update(batch)
    assert updated is not None and updated.deter.is_cuda
    assert planned == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.1)


@exact_only
def test_planning_an_update_of_gigabytes_allocates_nothing_of_its_size() -> None:
    def peak_rise(batch_size: int) -> int:
        batch = (f"training.batch_size={batch_size}", "training.sequence_length=8")
        config = configured("model=size1m", "world_model.objective=reconstruction", *batch)
        spec = environment_spec(config, recipe_of(config))
        gc.collect()
        before = in_use_bytes()
        with InUsePeak() as in_use:
            assert sum(recipe_of(config).dry_run(config, spec).peak.values()) > batch_size * 5_000_000
        assert in_use.peak > 0
        return in_use.peak - before

    # This imports torch's shape functions once.
    peak_rise(1)
    # The memory is used by Python objects: a graph without tensor data.
    assert peak_rise(600) < 30_000_000


@pytest.mark.parametrize("experiment", ["dreamer_catch", "dreamer_cartpole"])
def test_a_batch_too_large_to_rehearse_whole_continues_the_line_of_smaller_ones(
    experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `precision=auto` would depend on the processor.
    sizes = ("model=debug", "training.batch_size=128", "precision=float32")
    config = configured(f"experiment={experiment}", *sizes)
    env = environment_spec(config, recipe_of(config))
    whole = dry_run(config, env)
    monkeypatch.setattr(module, "_MOST_STEPS", 64 * config.training.sequence_length)
    monkeypatch.setattr(module, "_REMEMBERED", {})
    continued = dry_run(config, env)
    assert continued.state == whole.state and continued.phases.keys() == whole.phases.keys()
    assert sum(continued.peak.values()) == pytest.approx(sum(whole.peak.values()), rel=0.1)
    assert continued.operators == pytest.approx(whole.operators, rel=0.2)


def test_planning_moves_no_generator() -> None:
    before = torch.get_rng_state()
    recipe_of(configured(*CATCH, "training.batch_size=3")).dry_run(
        configured(*CATCH, "training.batch_size=3"),
        environment_spec(configured(*CATCH), recipe_of(configured(*CATCH))),
    )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("run", [CARTPOLE, CATCH], ids=["vectors", "images"])
@pytest.mark.parametrize("storage", ["ram", "mmap"])
def test_the_rows_of_replay_and_networks_are_the_bytes_that_the_parts_own(
    run: tuple[str, ...], storage: str, tmp_path: Path
) -> None:
    config = configured(*run, f"buffer.storage={storage}")
    plan = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config))
    host, place = plan.resource(HOST), plan.resource(HOST if storage == "ram" else "disk")
    with closing(make_environment(config.env, config.seed)) as environment:
        assert isinstance(environment, VectorEnvironment)
        replay = build_replay(config, recipe_of(config).replay_spec(config, environment.spec), tmp_path)
        workflow = build_workflow(config, environment.spec)
    assert bytes_of(place, "replay") + bytes_of(host, "index of the replay") == replay.nbytes()
    slow = [*workflow.controller.slow_critic.parameters()]
    modules = (workflow.world_model, workflow.controller)
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    states = [value for o in workflow.optimizers.values() for value in o.state_dict().values()]
    optimizers = [tensor for value in states for tensor in (value if isinstance(value, list) else [value])]
    assert bytes_of(host, "slow critic") == sum(tensor.nbytes for tensor in slow)
    assert bytes_of(host, "parameters") == sum(tensor.nbytes for tensor in tensors) - sum(
        t.nbytes for t in slow
    )
    assert bytes_of(host, "optimizer state") == sum(tensor.nbytes for tensor in optimizers)
    assert plan.num_parameters == workflow.num_parameters


def test_a_rank_of_many_holds_the_noise_of_the_whole_batch_for_a_moment() -> None:
    config = configured(*CATCH, "training.batch_size=1")
    recipe, spec = recipe_of(config), environment_spec(config, recipe_of(config))
    latents = config.controller.horizon * config.training.sequence_length * 512
    noise = 4 * latents * config.model.stoch * config.model.classes
    alone = sum(recipe.dry_run(config, spec).peak.values())
    of_many = recipe_of(config, Ranks(size=512, on_machine=8)).dry_run(config, spec)
    assert noise < sum(of_many.peak.values()) < noise + alone


def test_a_warm_up_is_a_phase_of_its_own_without_the_controllers_activations() -> None:
    config = configured(*CATCH, "training.warmup_steps=0")
    spec = environment_spec(config, recipe_of(config))
    assert list(recipe_of(config).dry_run(config, spec).phases) == ["update"]
    warm = recipe_of(replace(config, training=replace(config.training, warmup_steps=100))).dry_run(
        replace(config, training=replace(config.training, warmup_steps=100)), spec
    )
    assert list(warm.phases) == ["update", "warm-up update"]
    assert warm.phases["update"] == recipe_of(config).dry_run(config, spec).phases["update"] == warm.peak
    assert "activations of the controller" not in warm.phases["warm-up update"]
    assert sum(warm.phases["warm-up update"].values()) < sum(warm.peak.values())


def test_gradients_of_a_large_model_with_a_small_batch_are_part_of_the_peak() -> None:
    config = configured(
        "model=size12m", "env.num_envs=1", "training.batch_size=1", "training.sequence_length=2"
    )
    peak = recipe_of(config).dry_run(config, environment_spec(config, recipe_of(config))).peak
    assert 0.9 < peak["gradients"] / peak["parameters"] <= 1.0


@pytest.mark.parametrize("evaluation_interval", [0, 100])
def test_disk_has_room_for_the_checkpoints_at_every_moment(tmp_path: Path, evaluation_interval: int) -> None:
    config = configured(
        *CATCH,
        "training.keep_checkpoints=2",
        "training.checkpoint_interval=200",
        f"training.evaluation_interval={evaluation_interval}",
        "buffer.capacity=400",
    )
    disk = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config)).resource("disk")
    planned = sum(row.nbytes for row in disk.rows if "checkpoints" in row.name)
    most = 0
    with closing(make_environment(config.env, config.seed)) as environment:
        assert isinstance(environment, VectorEnvironment)
        replay = build_replay(config, recipe_of(config).replay_spec(config, environment.spec), tmp_path)
        workflow = build_workflow(config, environment.spec)
        for step in range(5):
            fill(config, environment, replay)
            model, best = workflow.state_dict(), bool(evaluation_interval)
            # The third checkpoint counts as being written.
            save_checkpoint(tmp_path, step, {}, model, replay, 3, best)
            most = max(most, folder_disk_bytes(tmp_path / CHECKPOINTS))
    assert 0 < most <= planned
    # The bound is therefore of the right size.
    assert bytes_of(disk, "networks in checkpoints") < most
    records = "records in checkpoints"
    without = plan_run(
        configured(*CATCH, "training.evaluation_interval=0"),
        environment_spec(config, recipe_of(config)),
        recipe_of(configured(*CATCH, "training.evaluation_interval=0")),
    )
    assert bytes_of(disk, records) > 0 < bytes_of(without.resource("disk"), records)


def test_a_resumed_run_may_replace_the_checkpoints_of_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    for folder in (tmp_path, folder_of_rank(tmp_path, 1), folder_of_rank(tmp_path, 2)):
        (folder / CHECKPOINTS).mkdir(parents=True)
        (folder / CHECKPOINTS / "replay").write_bytes(bytes(2**20))
    config = replace(configured(*CATCH), run_dir=str(tmp_path), resume=str(tmp_path))
    disk = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config)).resource("disk")
    assert disk.limit_bytes == 1000 + 3 * folder_disk_bytes(tmp_path / CHECKPOINTS) > 3 * 2**20


def test_a_plan_for_a_gpu_is_made_without_one_and_holds_half_the_bytes_in_bfloat16() -> None:
    [job] = compose_jobs(["device=cuda", "model=size12m", "precision=auto"])
    config = typed(job, DreamerTrainConfig, must_run_here=False)
    assert config.precision is Precision.bfloat16
    spec = environment_spec(config, recipe_of(config))
    half = recipe_of(config).dry_run(config, spec)
    full = recipe_of(replace(config, precision=Precision.float32)).dry_run(
        replace(config, precision=Precision.float32), spec
    )
    name = "activations of the world model"
    assert 0.4 < half.peak[name] / full.peak[name] < 0.8
    assert all(size % CUDA_GRANULARITY == 0 for size in half.peak.values())
    plan = plan_run(config, spec, recipe_of(config))
    assert bytes_of(plan.resource(HOST), "parameters") == 0 < bytes_of(plan.resource(GPU), "parameters")


def test_each_environment_in_a_process_of_its_own_is_planned_and_those_of_an_evaluation() -> None:
    def environments(*overrides: str) -> int:
        config = configured("experiment=dreamer_catch", *overrides)
        spec = environment_spec(config, recipe_of(config))
        return bytes_of(plan_run(config, spec, recipe_of(config)).resource(HOST), "environments")

    processes = environments("env.vectorization=async")
    assert processes == 4 * WORKER_BYTES > environments()
    more = ("training.evaluation_interval=100", "training.evaluation_episodes=3")
    assert environments("env.vectorization=async", *more) == 7 * WORKER_BYTES


def test_autocast_is_rehearsed_as_torch_does_it_on_a_cpu() -> None:
    """Weights are cast once per region, parts of weights at each use. Activations stay in bfloat16."""

    def live_after_forward(device: str) -> tuple[int, int]:
        weight, split = (torch.zeros(96, 64, device=device, requires_grad=True) for _ in range(2))
        x = torch.zeros(32, 64, device=device)
        with LiveBytes() as counter:
            is_real = device == "cpu"
            with torch.autocast("cpu", torch.bfloat16) if is_real else DeviceForward(torch.bfloat16):
                for _ in range(3):
                    hidden = F.silu(F.linear(x, weight))
                    x = torch.mm(hidden, split) + F.linear(hidden, split.t()[:, :96])
            return counter.live, counter.peak

    assert live_after_forward("meta") == live_after_forward("cpu")


def test_the_fused_norm_saves_its_input_and_a_number_for_each_row() -> None:
    weight = torch.ones(64, device="meta", requires_grad=True)
    x = torch.zeros(32, 64, device="meta", requires_grad=True)
    with LiveBytes() as counter:
        counter.count([x, weight])
        before = counter.live
        with DeviceForward(torch.float32):
            y = F.rms_norm(x, (64,), weight, 1e-4)
        assert counter.live - before == y.nbytes + 32 * 4
        y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert weight.grad is not None and weight.grad.shape == weight.shape


def test_the_log_of_a_run_begins_with_its_plan_and_progress_counts_against_it(catch_run: Path) -> None:
    log = (catch_run / "train.log").read_text()
    [line] = [line for line in log.splitlines() if "INFO plan  " in line]
    assert re.search(r"plan  host RAM \S+ MiB of \S+ GiB, disk \S+ MiB of", line)
    [line] = [line for line in log.splitlines() if "step 300 of 300" in line]
    [used, planned] = re.findall(r"memory ([\d.]+) MiB of ([\d.]+) MiB", line)[0]
    assert 0 < float(used) and 0 < float(planned)


def test_the_graph_of_a_warm_up_is_planned_with_what_pong_took_of_an_h100() -> None:
    """Maximum reserved by h100_seed_1 and by h100_seed_3, resumed after its warm-up (docs/results)."""
    pong = ["experiment=dreamer_ataripong", "device=cuda", "compile=inductor"]

    def planned(*overrides: str) -> tuple[int, dict[str, int]]:
        [job] = compose_jobs([*pong, *overrides])
        config = typed(job, DreamerTrainConfig, must_run_here=False)
        recipe = recipe_of(config)
        resource = plan_run(config, environment_spec(config, recipe), recipe).resource(GPU)
        rows = {row.name: row.nbytes for row in resource.rows}
        return resource.total_bytes - rows["CUDA context"], rows

    for overrides, reserved in (([], 6_658_457_600), (["training.warmup_steps=0"], 6_104_809_472)):
        total, rows = planned(*overrides)
        assert reserved < total < reserved + 0.15 * (reserved - rows["replay"])
    assert not planned("compile=none")[1].get("graph of the warm-up")
