"""Load the numbers recorded from the author's implementation into our modules."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reverie.buffers import SampledPositions, SequenceBatch, StoredLatent
from reverie.models import ModelConfig, OptimizerConfig
from reverie.utils.ranks import ALONE, Ranks
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec
from reverie.workflows.world_models import ControllerConfig, DreamerConfig, DreamerWorkflow, WorldModelConfig

from ..workflows.tiny import parameters as all_parameters

FOLDER = Path(__file__).parent
CASES = ("pixels", "pixels_strided", "vector")
Arrays = dict[str, NDArray]


@dataclass(frozen=True)
class Golden:
    """One recorded run, and our workflow with its initial parameters."""

    case: str
    arrays: Arrays
    workflow: DreamerWorkflow

    def batch(self, index: int) -> SequenceBatch:
        """Return a recorded batch in our format."""
        get = lambda name: self.arrays[f"batch{index}/{name}"]  # noqa: E731
        key = "vector" if self.case == "vector" else "image"
        action = torch.from_numpy(get("action"))
        if action.ndim == 2:
            action = torch.nn.functional.one_hot(action.long(), 6)
        windows = action.shape[0]
        return SequenceBatch(
            observation={key: torch.from_numpy(get(key))},
            action=action.float(),
            reward=torch.from_numpy(get("reward")),
            is_first=torch.from_numpy(get("is_first")),
            is_last=torch.from_numpy(get("is_last")),
            is_terminal=torch.from_numpy(get("is_terminal")),
            context=StoredLatent(
                deter=torch.from_numpy(get("dyn/deter")[:, 0]),
                stoch=torch.from_numpy(get("dyn/stoch")[:, 0].argmax(-1).astype(np.uint8)),
            ),
            positions=SampledPositions(np.zeros(windows, np.int64), np.zeros(windows, np.int64)),
        )

    def named(self, prefix: str) -> dict[str, Tensor]:
        """Return recorded tensors (`param0`, `param5`, `grad`) with our parameter names and layouts."""
        found = {}
        for ours, theirs, layout in name_map(self.case):
            if f"{prefix}/{theirs}" in self.arrays:
                found[ours] = layout(torch.from_numpy(self.arrays[f"{prefix}/{theirs}"]))
        return found


def load(case: str, ranks: Ranks = ALONE) -> Golden:
    """Return the recorded run `case`, and our workflow with its initial parameters."""
    arrays = dict(np.load(FOLDER / f"{case}.npz"))
    is_vector = case == "vector"
    spec = ArraySpec((5,), np.dtype(np.float32)) if is_vector else ArraySpec((64, 64, 3), np.dtype(np.uint8))
    env = EnvSpec(
        name=case,
        observation={"vector" if is_vector else "image": spec},
        action=ActionSpec(size=2, is_discrete=False) if is_vector else ActionSpec(size=6, is_discrete=True),
        num_envs=1,
        action_repeat=1,
    )
    model = ModelConfig(
        units=16, deter=64, hidden=16, stoch=4, classes=4, depth=2, strided=case == "pixels_strided"
    )
    config = DreamerConfig(
        model=model,
        world_model=WorldModelConfig(),
        controller=ControllerConfig(horizon=4, actor_unimix=0.0),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_updates=3),
    )
    workflow = DreamerWorkflow(env, config, torch.device("cpu"), ranks=ranks)
    golden = Golden(case, arrays, workflow)
    parameters = golden.named("param0")
    targets = all_parameters(workflow)
    assert parameters.keys() == targets.keys(), parameters.keys() ^ targets.keys()
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(parameters[name])
    return golden


def name_map(case: str, stoch: int = 16):
    """Yield (our name, their name, layout function) for `stoch` latents times classes."""
    yield from _rssm()
    heads = [
        ("world_model.reward", "rew", 1, "out", "logits"),
        ("world_model.continuation", "con", 1, "out", "logit"),
        ("controller.critic", "val", 3, "out", "logits"),
        ("controller.slow_critic", "slowval", 3, "out", "logits"),
    ]
    if case == "vector":
        heads += [("controller.actor", "pol", 3, "out", "action/mean")]
        yield from _dense("controller.actor.std_out", "pol/head/action/stddev")
        yield from _mlp("world_model.encoder.mlp", "enc/mlp{}", "enc/mlp{}norm", 3)
        yield "world_model.decoder.mlp.0.weight", "dec/mlp/linear0/kernel", lambda w: _deter_first(w, stoch)
        decoder = _mlp("world_model.decoder.mlp", "dec/mlp/linear{}", "dec/mlp/norm{}", 3)
        yield from (row for row in decoder if row[0] != "world_model.decoder.mlp.0.weight")
        yield from _dense("world_model.decoder.vector.0", "dec/vec/vector/pred")
    else:
        heads += [("controller.actor", "pol", 3, "out", "action/logits")]
        yield from _images(case == "pixels_strided")
    for ours, theirs, layers, out, their_out in heads:
        yield from _mlp(f"{ours}.mlp", f"{theirs}/mlp/linear{{}}", f"{theirs}/mlp/norm{{}}", layers)
        yield from _dense(f"{ours}.{out}", f"{theirs}/head/{their_out}")


def _rssm():
    core = "world_model.rssm.core"
    for index, name in enumerate(("deter_in", "stoch_in", "action_in")):
        yield from _dense(f"{core}.{name}.0", f"dyn/dynin{index}")
        yield f"{core}.{name}.1.scale", f"dyn/dynin{index}norm/scale", _same
    yield f"{core}.mix_weight", "dyn/dynhid0/kernel", _same
    yield f"{core}.mix_bias", "dyn/dynhid0/bias", _same
    yield f"{core}.mix_norm.scale", "dyn/dynhid0norm/scale", _same
    yield f"{core}.gates.weight", "dyn/dyngru/kernel", _same
    yield f"{core}.gates.bias", "dyn/dyngru/bias", _same
    rssm = "world_model.rssm"
    yield from _dense(f"{rssm}.posterior_in", "dyn/obs0")
    yield f"{rssm}.posterior_norm.scale", "dyn/obs0norm/scale", _same
    yield from _dense(f"{rssm}.posterior_out", "dyn/obslogit")
    yield from _mlp(f"{rssm}.prior.0", "dyn/prior{}", "dyn/prior{}norm", 2)
    yield from _dense(f"{rssm}.prior.1", "dyn/priorlogit")


def _images(strided: bool):
    up = (lambda w: w.permute(2, 3, 0, 1).flip(2, 3)) if strided else _conv
    for index in range(4):
        yield f"world_model.encoder.cnn.{3 * index}.weight", f"enc/cnn{index}/kernel", _conv
        yield f"world_model.encoder.cnn.{3 * index}.bias", f"enc/cnn{index}/bias", _same
        yield f"world_model.encoder.cnn.{3 * index + 1}.scale", f"enc/cnn{index}norm/scale", _same
    decoder = "world_model.decoder.image"
    yield f"{decoder}.from_deter.weight", "dec/sp0/kernel", _same
    yield f"{decoder}.from_deter.bias", "dec/sp0/bias", _same
    yield from _dense(f"{decoder}.from_stoch.0", "dec/sp1")
    yield f"{decoder}.from_stoch.1.scale", "dec/sp1norm/scale", _same
    yield from _dense(f"{decoder}.from_stoch.3", "dec/sp2")
    yield f"{decoder}.norm.scale", "dec/spnorm/scale", _same
    for position, index in enumerate((2, 1, 0)):
        yield f"{decoder}.cnn.{3 * position}.weight", f"dec/conv{index}/kernel", up
        yield f"{decoder}.cnn.{3 * position}.bias", f"dec/conv{index}/bias", _same
        yield f"{decoder}.cnn.{3 * position + 1}.scale", f"dec/conv{index}norm/scale", _same
    yield f"{decoder}.cnn.9.weight", "dec/imgout/kernel", up
    yield f"{decoder}.cnn.9.bias", "dec/imgout/bias", _same


def _mlp(ours: str, linear: str, norm: str, layers: int):
    for index in range(layers):
        yield from _dense(f"{ours}.{3 * index}", linear.format(index))
        yield f"{ours}.{3 * index + 1}.scale", f"{norm.format(index)}/scale", _same


def _dense(ours: str, theirs: str):
    yield f"{ours}.weight", f"{theirs}/kernel", lambda w: w.t()
    yield f"{ours}.bias", f"{theirs}/bias", _same


def _deter_first(kernel: Tensor, stoch: int) -> Tensor:
    """Reorder a kernel, because only the reference's vector decoder reads concat[stoch, deter]."""
    return torch.cat([kernel[stoch:], kernel[:stoch]]).t()


def _same(array: Tensor) -> Tensor:
    return array


def _conv(kernel: Tensor) -> Tensor:
    return kernel.permute(3, 2, 0, 1)  # (h, w, in, out) -> (out, in, h, w)
