"""The exported function: the model's step with one observation, and the action."""

import torch
from gymnasium import spaces
from torch import Tensor, nn

from reverie.buffers import OBSERVATION_PREFIX
from reverie.envs.spaces import is_image_space, parts_of
from reverie.workflows.world_models import DreamerWorkflow

from .conversion import convert_action, convert_part, resized_axes, tensor_dtype

STATE = ("deter", "stoch", "prev_action")
"""Inputs with the recurrent state. The output `next_<name>` is the input `<name>` of the next step."""


class PolicyStep(nn.Module):
    """Encoder, recurrent step and policy as one function without a batch axis.

    `reverie.Agent.act` calls the same function between the conversions of spaces. Here, the recurrent state
    and the random numbers are arguments.

    Args:
        workflow: Networks, on the CPU.
        observation_space: The environment's space. Inputs are its elements.
        action_space: The environment's space. The output `action` is its element.
        image_size: Height and width of the model's images, in pixels.
    """

    def __init__(
        self,
        workflow: DreamerWorkflow,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        image_size: int,
    ) -> None:
        super().__init__()
        self._workflow, self._action_space, self._image_size = workflow, action_space, image_size
        self._parts = parts_of(observation_space)
        self._axes = {
            key: resized_axes(part, image_size) for key, part in self._parts.items() if is_image_space(part)
        }
        # Only these networks act. The exporter omits the prior, because it is not called.
        self.encoder, self.rssm = workflow.world_model.encoder, workflow.world_model.rssm
        self.actor = workflow.controller.actor

    @property
    def noise(self) -> dict[str, str]:
        """The distribution of each input with random numbers: standard exponential or standard normal."""
        is_discrete = self.actor.action.is_discrete
        return {"latent_noise": "exponential", "action_noise": "exponential" if is_discrete else "normal"}

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs of `forward`."""
        return ["action", *(f"next_{name}" for name in STATE)]

    def example(self) -> dict[str, Tensor]:
        """Return all inputs by name, with zero observations and states and constant noise."""
        sizes = self.rssm.config
        shapes = {"deter": (sizes.deter,), "stoch": (sizes.stoch, sizes.classes)}
        shapes["prev_action"] = (self.actor.action.size,)
        seen: dict[str, Tensor] = {}
        for key, part in self._parts.items():
            assert part.shape is not None and part.dtype is not None
            seen[OBSERVATION_PREFIX + key] = torch.zeros(part.shape, dtype=tensor_dtype(part.dtype))
        state = {name: torch.zeros(shape) for name, shape in shapes.items()}
        noise = {
            "latent_noise": torch.ones(shapes["stoch"]),
            "action_noise": torch.ones(shapes["prev_action"]),
        }
        return {**seen, "is_first": torch.tensor(True), **state, **noise}

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the action in the environment's units, followed by the new state.

        Args:
            inputs: By name, see `example`. `observation.<key>` in the environment's shape and dtype,
                `is_first` (), `deter` (D,), `stoch` (S, C) one-hot, `prev_action` (A,) in the model's format,
                `latent_noise` (S, C), `action_noise` (A,). With `is_first`, the state is ignored.
        """
        converted: dict[str, Tensor] = {}
        for key, part in self._parts.items():
            value, axes = inputs[OBSERVATION_PREFIX + key], self._axes.get(key, (1, 0))
            converted[OBSERVATION_PREFIX + key] = convert_part(part, value, self._image_size, axes)
        given = converted | {name: x for name, x in inputs.items() if name not in converted}
        # `latent_noise` has an axis for time, too.
        rows = {name: x[None, None] if name == "latent_noise" else x[None] for name, x in given.items()}
        outputs = self._workflow.policy_on_tensors(rows)
        action, deter, stoch = (outputs[name][0] for name in ("action", "deter", "stoch"))
        return convert_action(self._action_space, action), deter, stoch, action
