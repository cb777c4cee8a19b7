"""Write an agent as an ONNX file."""

import json
import logging
import math
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto, helper

import reverie
from reverie.commands.evaluate import require_writable
from reverie.envs.spaces import parts_of
from reverie.utils.durable_io import replace_file
from reverie.utils.errors import UserError, first_line

from .step import STATE, PolicyStep

METADATA = "reverie"
"""Key of the JSON text in the file's metadata."""

_SUFFIX = ".onnx"
# Protobuf messages, and thus ONNX files without external data, are limited to 2 GiB.
MOST_BYTES = 2**31 - 2**20


def require_new_file(out: Path) -> None:
    """Raise a `UserError` unless `out` is a writable path of a new .onnx file."""
    if out.suffix != _SUFFIX:
        raise UserError(f"out={out} must end with {_SUFFIX}.")
    if os.path.lexists(out):
        raise UserError(f"out={out} already exists. Choose a new file.")
    require_writable("out", out)


def export_onnx(agent: reverie.Agent, out: str | Path) -> dict[str, Any]:
    """Write an agent's encoder, recurrent step and policy to a new ONNX file, as one float32 function.

    `PolicyStep` describes its inputs and outputs. The file is written atomically.

    Args:
        agent: An agent on the CPU: `reverie.load(..., device="cpu")`.
        out: Path of the file, which must end with `.onnx`.

    Returns:
        The metadata, which the file contains as JSON under the key `reverie`.

    Raises:
        UserError: If the agent is from a population or on a GPU, the networks exceed 2 GiB, or the file
            exists or cannot be written, or torch.onnx cannot export a class of the user's own code.
    """
    path = Path(out)
    require_new_file(path)
    device = next(agent.world_model.parameters()).device
    if device.type != "cpu":
        raise UserError(f"The agent is on {device}. Load it with device='cpu'.")
    step = PolicyStep(
        agent._dreamer.workflow, agent.observation_space, agent.action_space, agent._config.env.image_size
    )
    if (size := sum(each.nbytes for each in step.parameters())) > MOST_BYTES:
        raise UserError(f"The networks need {size / 2**30:.1f} GiB. An ONNX file has at most 2 GiB.")
    model = _traced(step)
    spec = agent._spec
    about = {
        "reverie": reverie.__version__,
        "preset": agent._config.name,
        "environment": spec.name,
        "action_repeat": spec.action_repeat,
        "step": agent.step,
        "parameters": sum(math.prod(each.dims) for each in model.graph.initializer),
        "model": {name: value for name, value in asdict(step.rssm.config).items() if name != "init"},
        "observation": {key: str(part.dtype) for key, part in parts_of(agent.observation_space).items()},
        "action": str(agent.action_space),
        "state": {name: f"next_{name}" for name in STATE},
        "noise": step.noise,
    }
    helper.set_model_props(model, {METADATA: json.dumps(about)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [model.SerializeToString()])
    except OSError as error:
        raise UserError(f"out={out} cannot be written: {error.strerror}.") from error
    return about


def _traced(step: PolicyStep) -> ModelProto:
    """Return the function as an ONNX graph."""
    inputs, workflow = step.example(), step._workflow
    # torch reports operators that it cannot register without torchvision.
    logger = logging.getLogger("torch.onnx")
    level, dtype = logger.level, workflow.autocast_dtype
    logger.setLevel(logging.ERROR)
    # Runtimes on a CPU lack kernels for bfloat16, so the function does not autocast.
    workflow.autocast_dtype = torch.float32
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch 2.13 raises this warning in its own exporter.
            warnings.filterwarnings("ignore", ".isinstance.treespec, LeafSpec.. is deprecated", FutureWarning)
            program = torch.onnx.export(
                step.eval(),
                kwargs={"inputs": inputs},
                input_names=[*inputs],
                output_names=step.output_names,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        # The cause names the operator or the line.
        raise UserError(
            f"torch.onnx cannot export this agent: {first_line(error.__cause__ or error)}"
        ) from error
    finally:
        logger.setLevel(level)
        workflow.autocast_dtype = dtype
    assert program is not None
    return program.model_proto
