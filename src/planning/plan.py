"""Compute the plan for a configuration: the peak usage of each resource."""

import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from heapwatch.counters.limits import memory_available_bytes, memory_limit_bytes, thread_bytes

from ..buffers import LATENT_FIELDS, LATENT_FILE_BYTES, ReplayPlan, ReplayStorage, plan_unchecked
from ..checkpoints.checkpoint import CHECKPOINTS
from ..checkpoints.run_folder import EXPERIMENTS
from ..checkpoints.shards import RANKS
from ..config.schema import Compile, Device, Precision, TrainConfig
from ..envs import Suite, Vectorization
from ..envs.config import Observations
from ..envs.episodes import MAX_FRAMES
from ..utils.compilation import load_compiler
from ..utils.durable_io import PIECE_BYTES
from ..utils.errors import address_space_limit_bytes
from ..utils.footprint import folder_disk_bytes
from ..utils.ranks import Ranks
from ..utils.timestep import EnvSpec
from ..utils.units import size_text
from . import constants
from .recipe import GRADIENTS, DryRun, Recipe, Written
from .resources import ADDRESS, DISK, GPU, HOST, Basis, MemoryPlan, Resource, Row

# Each row of latents also stores its environment and stream index.
_OWNER_BYTES = 16


def plan_run(config: TrainConfig, spec: EnvSpec, recipe: Recipe, gpu_bytes: int | None = None) -> MemoryPlan:
    """Return the planned usage of each rank in a run, without allocating or writing anything.

    `gpu_bytes` is the memory of the GPU to plan for, by default the free memory of the local GPU.

    Raises:
        UserError: If torch's compiler, which the dry run loads, cannot create its folder.
    """
    load_compiler()
    config = recipe.part(config)
    spec = replace(spec, num_envs=config.env.num_envs)
    networks = recipe.dry_run(config, spec)
    request = recipe.replay_spec(config, spec)
    replay = plan_unchecked(request)
    host = _host(config, spec, recipe, networks, replay)
    resources = [host, *_address_space(config, host, replay)]
    if config.device is Device.cuda:
        resources.append(_gpu(config, recipe.ranks, networks, replay, gpu_bytes))
    written = recipe.written(config, spec)
    checkpoints = _checkpoint_rows(config, spec, written, networks, replay, request.num_envs)
    resources.append(_disk(config, recipe.ranks, written, checkpoints, replay))
    return MemoryPlan(
        name=config.name,
        model=recipe.model_name(config),
        device=config.device.value,
        precision=config.precision.value,
        num_parameters=networks.num_parameters,
        ranks=recipe.ranks.size,
        resources=tuple(resources),
    )


def _host(
    config: TrainConfig, spec: EnvSpec, recipe: Recipe, networks: DryRun, replay: ReplayPlan
) -> Resource:
    rows = [
        Row("process before the run", psutil.Process().memory_info().rss, Basis.measured),
        _estimated("first use of libraries", constants.FIRST_USE_BYTES),
        _estimated("environments", _environment_bytes(config, spec, recipe.num_environments(config))),
        _replay_row(config, replay, ReplayStorage.ram),
        Row("index of the replay", replay.nbytes - replay.arena_bytes),
        *recipe.host_rows(config, spec),
    ]
    if config.device is Device.cuda:
        rows += [
            Row("batch on its way to the GPU", networks.peak.get(networks.batch, 0)),
            *(Row(name, networks.peak.get(name, 0)) for name in networks.on_host),
        ]
    else:
        rows += _network_rows(config, recipe.ranks, networks)
        rows.append(_estimated("workspace of kernels and allocator", constants.CPU_WORKSPACE_BYTES))
    rows += library_rows(config)
    rows.append(Row("files being written", PIECE_BYTES + LATENT_FILE_BYTES))
    if config.checkpoint.mirror:
        rows.append(_estimated("mirror", constants.MIRROR_BYTES))
    graph = constants.GRAPH_BYTES_PER_OPERATOR * networks.operators
    rows.append(_estimated("nodes of the autograd graph", graph))
    # An episode's frames exist twice while they are being stacked.
    rows.append(Row("episode being recorded", 2 * MAX_FRAMES * _image_bytes(spec)))
    machine = memory_limit_bytes()
    share, free = constants.HOST_SHARE, size_text(memory_available_bytes())
    words = f"{share:.0%} of the {size_text(machine)} of this machine or container, where {free} are free now"
    return Resource(HOST, _present(rows), int(share * machine), words, recipe.ranks.on_machine)


def _address_space(config: TrainConfig, host: Resource, replay: ReplayPlan) -> list[Resource]:
    """Return a rank's mapped memory, whether resident or only reserved, if the address space is limited."""
    limit = address_space_limit_bytes()
    if limit is None:
        return []
    # torch starts one thread fewer. The surplus covers the moment when glibc maps two arenas to align one.
    threads = config.threads or torch.get_num_threads()
    rows = [
        Row("process before the run", psutil.Process().memory_info().vms, Basis.measured),
        *host.rows[1:],
        _replay_row(config, replay, ReplayStorage.mmap),
        _estimated("libraries", constants.LIBRARY_ADDRESS_BYTES),
        _estimated("stacks and malloc arenas of threads", threads * thread_bytes()),
        _estimated("CUDA reservations", constants.CUDA_ADDRESS_BYTES * (config.device is Device.cuda)),
    ]
    return [Resource(ADDRESS, _present(rows), limit, "ulimit -v, set by h_vmem on SGE")]


def _gpu(
    config: TrainConfig, ranks: Ranks, networks: DryRun, replay: ReplayPlan, limit_bytes: int | None
) -> Resource:
    of_warm_up = _other_graphs_bytes(config, ranks, networks)
    tensors = sum(networks.peak.values()) + of_warm_up
    is_graph = config.compile is Compile.graph
    share = constants.CUDA_GRAPH_SLACK_SHARE if is_graph else constants.CUDA_SLACK_SHARE
    rows = [
        _replay_row(config, replay, ReplayStorage.cuda),
        *_network_rows(config, ranks, networks),
        Row("graph of the warm-up", of_warm_up),
        _estimated("slack of the allocator and workspace", int(share * tensors)),
        _estimated("CUDA context", constants.CUDA_CONTEXT_BYTES),
    ]
    sharing = 1
    if limit_bytes is not None:
        words = f"a GPU with {size_text(limit_bytes)}"
    elif torch.cuda.is_available():
        # This query creates the CUDA context and thus uses memory. PyTorch's cache counts as available.
        free, total = torch.cuda.mem_get_info()
        limit_bytes = free + torch.cuda.memory_reserved() + constants.CUDA_CONTEXT_BYTES
        words = f"free of the {size_text(total)} of {torch.cuda.get_device_name()}"
        sharing = ranks.on_card
    else:
        words = "unknown, because this machine has no CUDA device"
    return Resource(GPU, _present(rows), limit_bytes, words, sharing)


def _other_graphs_bytes(config: TrainConfig, ranks: Ranks, networks: DryRun) -> int:
    """Return the memory of all CUDA graphs except the one for the kind of update with the highest peak.

    The warm-up graph is included even if a run is resumed after its warm-up.
    """
    if config.compile is Compile.none or ranks.size > 1:
        return 0
    passing = [
        sum(size for name, size in labels.items() if name not in networks.lasting)
        for labels in networks.phases.values()
    ]
    return sum(passing) - max(passing)


def _disk(
    config: TrainConfig, ranks: Ranks, written: Written, checkpoints: list[Row], replay: ReplayPlan
) -> Resource:
    logs = written.log_lines * constants.LOG_LINE_BYTES + written.videos * constants.VIDEO_BYTES
    rows = [
        *checkpoints,
        _replay_row(config, replay, ReplayStorage.mmap),
        _estimated("logs and videos", logs),
        _estimated("memory snapshots", written.snapshots * constants.SNAPSHOT_BYTES),
    ]
    folder = Path(config.run_dir or EXPERIMENTS).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    limit = shutil.disk_usage(there).free
    if config.resume:
        # New checkpoints will replace the existing ones.
        limit += sum(folder_disk_bytes(each / CHECKPOINTS) for each in (folder, *folder.glob(f"{RANKS}/*")))
    return Resource(DISK, _present(rows), limit, f"free in {there}", ranks.on_machine)


def _checkpoint_rows(
    config: TrainConfig, spec: EnvSpec, written: Written, networks: DryRun, replay: ReplayPlan, streams: int
) -> list[Row]:
    """Return an upper bound on the checkpoint folder's size while another checkpoint is being written.

    Checkpoints share the files of full chunks, so records are counted once, plus those that only older
    checkpoints contain. A chain of latents has fewer than twice as many rows as the capacity, and every other
    checkpoint adds at most the capacity. The best checkpoint may be too old to share files with the newest.
    """
    training, capacity = config.training, config.buffer.capacity
    best, keep = int(written.has_best and training.keep_best), training.keep_checkpoints
    folders = keep + 1 + best
    latent = sum(field.nbytes for name, field in replay.fields.items() if name in LATENT_FIELDS)
    # The extra byte marks the start of an episode.
    record = sum(field.nbytes for field in replay.fields.values()) - latent + 1
    open_records = streams * config.buffer.chunk_length
    # Single-step episodes have two records per step. Without an interval, all records may be new.
    interval = training.checkpoint_interval and 2 * (training.checkpoint_interval + written.records_per_save)
    new = min(capacity, interval or capacity)
    records = (1 + best) * (capacity + open_records) + keep * new
    record_bytes = records * record
    # A checkpoint's compressed records never exceed the replay's memory for them.
    if config.buffer.compressed:
        record_bytes = min(record_bytes, (1 + best + keep) * replay.part_bytes["observations"])
    rows = (keep + 2 + 2 * best) * capacity // config.buffer.latent_every if latent else 0
    files = records // config.buffer.chunk_length + folders * streams
    headers = files * (constants.SHARED_FILE_BYTES + folders * constants.MANIFEST_LINE_BYTES)
    return [
        Row("networks in checkpoints", folders * networks.state, is_once=True),
        Row("records in checkpoints", record_bytes),
        Row("open chunks in checkpoints", folders * open_records * record),
        Row("latents in checkpoints", rows * (latent + _OWNER_BYTES)),
        Row("recorded episodes in checkpoints", folders * MAX_FRAMES * _image_bytes(spec), is_once=True),
        _estimated("headers and manifests of checkpoints", headers + folders * constants.CHECKPOINT_BYTES),
    ]


def _network_rows(config: TrainConfig, ranks: Ranks, networks: DryRun) -> list[Row]:
    """Return the networks' memory at the peak of an update, or while loading a checkpoint if higher."""
    elsewhere = networks.on_host if config.device is Device.cuda else ()
    rows = [Row(name, size) for name, size in networks.peak.items() if name not in elsewhere]
    if ranks.size > 1:
        rows.append(Row("gradients being exchanged", networks.peak.get(GRADIENTS, 0)))
    lasting = [row for row in rows if row.name in networks.lasting]
    passing = [row for row in rows if row.name not in networks.lasting]
    if config.resume and networks.state > sum(row.nbytes for row in passing):
        passing = [Row("checkpoint being read", networks.state)]
    return [*lasting, *passing]


def _replay_row(config: TrainConfig, replay: ReplayPlan, storage: ReplayStorage) -> Row:
    """Return the row for the replay's arena, with 0 bytes unless the arena is in `storage`."""
    return Row("replay", replay.arena_bytes if config.buffer.storage is storage else 0)


def _environment_bytes(config: TrainConfig, spec: EnvSpec, count: int) -> int:
    env = config.env
    if env.suite is Suite.atari:
        return count * constants.ATARI_ENVIRONMENT_BYTES
    if env.suite is Suite.vector:
        seen = sum(part.nbytes for part in spec.observation.values())
        return constants.SIMULATOR_BYTES + constants.BATCH_COPIES * count * seen
    is_async = env.vectorization is Vectorization["async"]
    if env.suite is Suite.dmc:
        is_drawn = env.observations is not Observations.proprio
        libraries = is_async * (constants.WORKER_BYTES + constants.CONTROL_SUITE_BYTES)
        return count * (libraries + (constants.DRAWN_CONTROL_BYTES if is_drawn else constants.CONTROL_BYTES))
    return count * (constants.WORKER_BYTES if is_async else constants.SIMULATOR_BYTES)


def library_rows(config: TrainConfig) -> list[Row]:
    """Return the rows for the host memory of libraries that only some runs use."""
    is_cuda, in_bfloat16 = config.device is Device.cuda, config.precision is Precision.bfloat16
    compiler = constants.CUDA_COMPILER_BYTES if is_cuda else constants.COMPILER_BYTES
    return [
        _estimated("compiler", compiler * (config.compile is Compile.inductor)),
        _estimated("kernels of bfloat16", constants.BFLOAT16_KERNEL_BYTES * (in_bfloat16 and not is_cuda)),
        _estimated("CUDA libraries", constants.CUDA_HOST_BYTES * is_cuda),
    ]


def _estimated(name: str, nbytes: int) -> Row:
    return Row(name, nbytes, Basis.estimated)


def _image_bytes(spec: EnvSpec) -> int:
    return max((array.nbytes for array in spec.observation.values() if array.is_image), default=0)


def _present(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.nbytes or row.name == GRADIENTS)
