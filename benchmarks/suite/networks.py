"""Rows for the networks: the gradient update and the policy step."""

from dataclasses import replace

import numpy as np

from benchmarks.suite.bench import DECODER_FREE, JAX, Bench, pong_spec
from benchmarks.suite.compare import OURS, compare
from benchmarks.suite.data import random_arrival, random_batch
from benchmarks.suite.floors import Work, count_work
from benchmarks.suite.results import Floor, Result
from benchmarks.suite.timing import Local
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.schema import Compile

PEER_SIZES = {"size1m": "1M", "size12m": "12M"}
_FLOOR = "our convolutions and matrix products at the better of their measured rates"


def update(bench: Bench, row: str, size: str, strided: bool = False) -> list[Result]:
    """Measure one gradient step of world model, actor and critic on a prepared batch of 16 x 64."""
    config = bench.compose(f"model={size}", f"model.strided={strided}")
    workflow = bench.workflow(config)
    batch = random_batch(config, workflow.env).to(bench.device)
    work = update_work(bench, config)
    facts = {"parameters": workflow.num_parameters, "gflop": _gflop(work)}
    ours = Local(OURS, lambda: workflow.update(batch), bench.device, warmup=2, facts=facts)
    peers = bench.dreamers("update", decoder_free=True, size=PEER_SIZES[size], strided=strided)
    floor = Floor(bench.rates().seconds_of(work), _FLOOR)
    steps = config.training.batch_size * config.training.sequence_length
    unstrided = [peer.name for peer in peers if strided and peer.name != JAX]
    notes = dict.fromkeys(unstrided, "stride 1: more convolution work than ours here")
    notes[DECODER_FREE] = "draws no images: less work than ours"
    return compare(bench, row, [ours, *peers], floor, {"steps/s": steps}, notes)


def update_work(bench: Bench, config: DreamerTrainConfig) -> Work:
    """Return the operations in an update, counted in eager mode, because a CUDA graph hides them."""
    workflow = bench.workflow(replace(config, compile=Compile.none))
    batch = random_batch(config, workflow.env).to(bench.device)
    return count_work(lambda: workflow.update(batch))


def policy(bench: Bench, row: str, size: str, num_envs: int) -> list[Result]:
    """Measure one action per environment: images from the host, actions and latents to the host."""
    config = bench.compose(f"model={size}")
    workflow = bench.workflow(config, num_envs)
    arrival = random_arrival(pong_spec(num_envs), np.random.default_rng(0))
    work = count_work(lambda: workflow.collect_step(arrival))
    facts = {"parameters": workflow.num_parameters, "gflop": _gflop(work)}
    ours = Local(OURS, lambda: workflow.collect_step(arrival), bench.device, warmup=20, facts=facts)
    peers = bench.dreamers("policy", size=PEER_SIZES[size], num_envs=num_envs)
    floor = Floor(bench.rates().seconds_of(work), _FLOOR)
    return compare(bench, row, [ours, *peers], floor, {"agent steps/s": num_envs})


def _gflop(work: Work) -> dict[str, float]:
    return {"convolutions": work.conv_flops / 1e9, "matrix products": work.matmul_flops / 1e9}
