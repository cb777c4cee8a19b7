"""The common context of benchmark rows: settings, machine rates, configurations and peers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from benchmarks.suite.floors import Rates, measure_rates
from benchmarks.suite.process import ProcessVariant
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.dreamer.dry_run import autocast_dtype
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.utils.errors import UserError, require_range
from reverie.utils.seeding import seed_global
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec
from reverie.workflows.world_models import DreamerWorkflow

PEER_SCRIPTS = Path(__file__).parents[1] / "peers"
PONG_ACTIONS = 6
DECODER_FREE = "r2dreamer without decoder"
JAX = "dreamerv3"
_CHECKOUTS = {
    "r2dreamer": ("dreamer.py", "NM512/r2dreamer"),
    JAX: ("dreamerv3/agent.py", "danijar/dreamerv3"),
}
"""For each peer without a package, a file in its checkout and its repository."""

_PAPER_BATCH = ("training.batch_size=16", "training.sequence_length=64")
_QUICK = (
    "model=debug",
    "training.batch_size=2",
    "training.sequence_length=8",
    "training.learning_starts=150",
)


@dataclass(kw_only=True, slots=True)
class BenchConfig:
    """Settings of `scripts/benchmark.py`, typed as `bench.<name>=<value>`."""

    rows: str | None = None
    """Comma-separated rows to measure, or null for all rows."""

    out: str | None = None
    """JSON file for all results, or null for no file."""

    repetitions: int = 5
    """Number of undisturbed blocks required per variant. At most twice as many are tried."""

    block_seconds: float = 1.0
    """Duration of a block in seconds, or one call if that is longer."""

    quick: bool = False
    """Tiny networks and buffers for a functional check. The times are meaningless."""

    threads: int | None = None
    """Number of torch's CPU threads, for Reverie and the peers, or null for one per core."""

    peers: bool = True
    """Whether to measure the peers that `make bench-peers` has installed."""

    peers_python: str = ".venv-peers/bin/python"
    """Interpreter of the peers."""

    r2dreamer: str | None = None
    """Checkout of github.com/NM512/r2dreamer, a peer without a package, or null to skip it."""

    dreamerv3: str | None = None
    """Checkout of github.com/danijar/dreamerv3, the author's JAX code (updates only), or null to skip it."""

    dreamerv3_python: str = ".venv-peers-jax/bin/python"
    """Interpreter of `dreamerv3`, with JAX."""

    def __post_init__(self) -> None:
        require_range("bench", self, "repetitions", "threads", ge=1)
        if self.block_seconds < 0:
            raise UserError(f"bench.block_seconds must not be negative, got {self.block_seconds:g}.")
        if self.out is not None and not Path(self.out).absolute().parent.is_dir():
            raise UserError(f"bench.out={self.out} is in a folder that does not exist. Create it first.")
        for name, (file, repository) in _CHECKOUTS.items():
            folder = getattr(self, name)
            if folder is not None and not self.peers:
                raise UserError(f"bench.{name} is a peer, but bench.peers=false excludes peers. Omit one.")
            if folder is not None and not (Path(folder) / file).is_file():
                raise UserError(
                    f"bench.{name}={folder} contains no {file}. Set the folder of a checkout of "
                    f"github.com/{repository}."
                )


@dataclass
class Bench:
    """One run of the suite.

    Args:
        settings: Settings of the command.
        overrides: Overrides of the configuration, as typed. They are applied after a row's overrides.
    """

    settings: BenchConfig
    overrides: Sequence[str] = ()
    notices: list[str] = field(default_factory=list)
    """Sentences about skipped measurements."""

    _rates: Rates | None = field(default=None, init=False)

    @cached_property
    def config(self) -> DreamerTrainConfig:
        """The configuration without a row's overrides, used for device and precision."""
        return self.compose()

    @cached_property
    def device(self) -> torch.device:
        """Device of the networks."""
        return torch.device(self.config.device.value)

    def rates(self) -> Rates:
        """Measure the limits of this machine, and return the best rates measured in the run so far."""
        now = measure_rates(self.device, autocast_dtype(self.config), self.settings.quick)
        self._rates = now if self._rates is None else self._rates.best_of(now)
        return self._rates

    def overrides_of(self, *overrides: str) -> list[str]:
        """Return overrides in order: Pong with batches of 16 x 64, the row's own, `quick`, the user's."""
        quick = _QUICK if self.settings.quick else ()
        pong = ("experiment=dreamer_ataripong100k", "env.game=pong", *_PAPER_BATCH)
        return [*pong, *overrides, *quick, *self.overrides]

    def compose(self, *overrides: str) -> DreamerTrainConfig:
        """Return the checked configuration of a row."""
        [job] = compose_jobs(self.overrides_of(*overrides))
        return typed(job, DreamerTrainConfig)

    def workflow(self, config: DreamerTrainConfig, num_envs: int = 1) -> DreamerWorkflow:
        """Return a workflow for Pong without an emulator. The same seed gives the same parameters."""
        seed_global(config.seed)
        return build_workflow(config, pong_spec(num_envs))

    def dreamers(self, task: str, *, decoder_free: bool = False, **options: object) -> list[ProcessVariant]:
        """Return the DreamerV3 peers: sheeprl, and r2dreamer and the author's code if they have checkouts.

        Args:
            task: Suffix of the script names, after the peer's name. The author's code only supports `update`.
            decoder_free: Whether to add r2dreamer's default, which does less work.
            options: Options of the scripts, see `peers`.
        """
        found = self.peers("sheeprl", f"sheeprl_{task}", **options)
        has_peers = bool(found)
        if checkout := self._checkout("r2dreamer", has_peers, "the fastest peer on a CPU"):
            losses = {"r2dreamer": "dreamer"} | ({DECODER_FREE: "r2dreamer"} if decoder_free else {})
            for name, loss in losses.items():
                found += self.peers(name, f"r2dreamer_{task}", checkout=checkout, rep_loss=loss, **options)
        if task == "update" and (checkout := self._checkout(JAX, has_peers, "the author's JAX code")):
            python = self.settings.dreamerv3_python
            found += self.peers(JAX, f"{JAX}_{task}", python, checkout=checkout, **options)
        return found

    def _checkout(self, peer: str, has_peers: bool, role: str) -> str | None:
        """Return the checkout of a peer without a package, or `None` (with a notice if `has_peers`)."""
        folder = getattr(self.settings, peer)
        if folder is None and has_peers:
            self._notice(f"no {peer}, {role}: add bench.{peer}=<folder of a checkout>")
        return None if folder is None else str(Path(folder).absolute())

    def peers(
        self, name: str, script: str, interpreter: str | None = None, /, **options: object
    ) -> list[ProcessVariant]:
        """Start a script of benchmarks/peers. Return its peer in a list, or [] with a notice if this fails.

        Args:
            name: Name of the variant.
            script: Name of the script, without .py.
            interpreter: Python of this peer, or `None` for the common one.
            options: Options in addition to threads, device and precision.
        """
        if not self.settings.peers:
            return []
        python = Path(interpreter or self.settings.peers_python)
        if not python.exists():
            missing = name if interpreter else "peers"
            self._notice(f"no {missing}: {python} is missing. Run make bench-peers.")
            return []
        command = [str(python), str(PEER_SCRIPTS / f"{script}.py")]
        shared = {
            "threads": torch.get_num_threads(),
            "quick": self.settings.quick,
            "device": self.device.type,
            "precision": "bf16-mixed" if autocast_dtype(self.config) is torch.bfloat16 else "32-true",
        }
        try:
            return [ProcessVariant(name, command, shared | options)]
        except RuntimeError as error:
            self._notice(str(error))
            return []

    def _notice(self, sentence: str) -> None:
        if sentence not in self.notices:
            self.notices.append(sentence)


def pong_spec(num_envs: int) -> EnvSpec:
    """Return Pong's spec for the networks: images of 64 x 64 x 3 bytes, and 6 actions."""
    image = ArraySpec((64, 64, 3), np.dtype(np.uint8))
    return EnvSpec(
        name="atari/pong",
        observation={"image": image},
        action=ActionSpec(size=PONG_ACTIONS, is_discrete=True),
        num_envs=num_envs,
        action_repeat=4,
    )
