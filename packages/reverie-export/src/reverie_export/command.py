"""Export a run's policy to an ONNX file: reverie-export format=onnx run=<folder> out=<new file>.

  reverie-export format=onnx run=experiments/<run> out=agent.onnx                   the newest checkpoint
  reverie-export format=onnx run=experiments/<run> out=agent.onnx checkpoint=best   the best evaluation
  reverie-export format=onnx run=pretrained:cartpole out=agent.onnx                 an agent in the package
  python examples/onnx_runner.py agent.onnx CartPole-v1                             run it without Reverie

Encoder, recurrent step and policy become one function. Its inputs are an observation, the recurrent state and
random numbers. Without format=, reverie-export writes weights for Reverie.
"""

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reverie import Agent
from reverie.commands.options import own_settings
from reverie.config.schema import Device, WhichCheckpoint
from reverie.orchestration.trained import load_agent
from reverie.utils.errors import exit_on_user_error
from reverie.utils.units import count_text

from .onnx_file import export_onnx, require_new_file


class Format(Enum):
    """Formats of the exported file."""

    onnx = "onnx"


@dataclass(kw_only=True, slots=True)
class OnnxConfig:
    """Settings of `reverie-export format=onnx`, written as key=value."""

    run: str
    """Run folder, folder with weights and configuration, `pretrained:<name>` or `hub:<owner>/<name>`."""

    out: str
    """New file. Its name must end with .onnx."""

    format: Format
    """Format of the file."""

    checkpoint: WhichCheckpoint = WhichCheckpoint.newest
    """Checkpoint of the run. `best` is the one with the best evaluation."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes."""

    def __post_init__(self) -> None:
        require_new_file(Path(self.out))


@exit_on_user_error()
def main() -> None:
    """Run `reverie-export format=...` with the arguments of this process."""
    asked, _ = own_settings(OnnxConfig, sys.argv[1:], "reverie-export", __doc__)
    agent = Agent(*load_agent(asked.run, Device.cpu, which=asked.checkpoint, trust=asked.trust))
    about = export_onnx(agent, asked.out)
    megabytes = Path(asked.out).stat().st_size / 1e6
    print(f"{asked.out}: {count_text(about['parameters'], 'parameter')}, {megabytes:.1f} MB")
