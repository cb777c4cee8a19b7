"""Registry of the parts of an agent that settings can replace by a name or the user's own `module:Class`.

A class implements the protocol of its part. It is created with the arguments of the built-in classes. The
plan also creates and trains it on torch's `meta` device, where tensors have shapes and dtypes but no values.

Shapes: B batch, T time, F `feature` (recurrent state and flat latents), E tokens, N imagined trajectories, H
imagined steps.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from .errors import CODE_FAULTS, UserError, did_you_mean, import_for, with_place

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ..buffers import SequenceBatch
    from ..models import LatentState

_PAGE = "docs/components.md lists them"


class EncoderLike(Protocol):
    """`model.encoder`: a `torch.nn.Module` that encodes observations.

    Created as `Class(observation, config)`: the `ArraySpec` of each key, and the `ModelConfig`.
    """

    size: int
    """Width E of the tokens."""

    def forward(self, observation: "dict[str, Tensor]") -> "Tensor":
        """Return float tokens (B, T, E) of observations (B, T, ...) by key. Images are uint8."""
        ...


class DecoderLike(Protocol):
    """`model.decoder`: a `torch.nn.Module` that predicts observations.

    Created as `Class(observation, config)`. See `EncoderLike`.
    """

    image_channels: dict[str, int]
    """Number of channels of each image key, in the order of pictures. Without images, it is empty."""

    def forward(self, state: "LatentState") -> "dict[str, Tensor]":
        """Return float predictions (B, T, ...) of observations by key, in any range."""
        ...

    def losses(self, state: "LatentState", observation: "dict[str, Tensor]") -> "dict[str, Tensor]":
        """Return a float32 loss (B, T) for each key of the stored observations (B, T, ...)."""
        ...

    def to_raw(self, predictions: "dict[str, Tensor]") -> "dict[str, Tensor]":
        """Convert results of `forward` to the ranges of observations: images to uint8, vectors to float32."""
        ...


class HeadLike(Protocol):
    """`model.reward_head`, `model.value_head`: a `torch.nn.Module` that predicts a number in raw units.

    Created as `Class(feature_size, layers, config)`.
    """

    def forward(self, feature: "Tensor") -> "Tensor":
        """Return outputs (..., O), e.g. logits of bins, for features (..., F)."""
        ...

    def mean(self, logits: "Tensor") -> "Tensor":
        """Return the expected numbers (...), float32, from outputs of `forward`."""
        ...

    def loss(self, logits: "Tensor", value: "Tensor", other: Any = None, other_scale: float = 1) -> "Tensor":
        """Return losses (...), float32: for `value` (...), plus `other_scale` times for `other`, if given."""
        ...


class ObjectiveLike(Protocol):
    """`world_model.objective`: a `torch.nn.Module` with a loss that shapes the states.

    Created as `Class(feature_size, token_size, config, ranks)` with the `WorldModelConfig`. `ranks.gather(x)`
    returns the rows of all processes of `torchrun`.
    """

    def loss(self, feature: "Tensor", tokens: "Tensor", steps: "SequenceBatch") -> "tuple[Tensor, dict]":
        """Return a float32 loss, 0-d or (B, T), and metrics (detached 0-d tensors by name).

        `feature` is (B, T, F), and `tokens` is (B, T, E). `steps` has the actions, rewards and flags.
        """
        ...


class ActorLossLike(Protocol):
    """`controller.actor_loss`: a `torch.nn.Module` without parameters. Created as `Class()`."""

    def forward(
        self, log_prob: "Tensor", entropy: "Tensor", advantage: "Tensor", entropy_scale: "float | Tensor"
    ) -> "Tensor":
        """Return the loss of each imagined action (N, H), float32.

        `log_prob` and `entropy` are (N, H) in nats, with gradients of the actor. `advantage` (N, H) is
        normalized and detached.
        """
        ...


class SamplerLike(Protocol):
    """`buffer.sampler`: chooses the windows of each batch, on the host. Created as `Class(num_rows)`.

    Each row in [0, num_rows) contains at most one record. The row of a window is the row of its first record.
    A row is reused after its record was evicted. All arrays of rows are int64.
    """

    def added(self, rows: "np.ndarray") -> None:
        """Reset the data of these rows, because they received new records."""
        ...

    def draw(self, rows: "np.ndarray", count: int, generator: "np.random.Generator") -> "np.ndarray":
        """Return `count` indices into `rows`, which lists all windows, stream by stream, oldest first.

        Draw random numbers only from `generator`. Checkpoints contain its state.
        """
        ...

    def learned(self, rows: "np.ndarray", losses: "np.ndarray") -> None:
        """Receive the world model's loss, float32, of each window of a batch after its update.

        Rows may repeat. A loss is the weighted sum of the losses per step, averaged over the window.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints by name. Arrays with a first axis of `num_rows` belong to rows."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of `state_dict`. Rows without a record have the values of the current state."""
        ...


@dataclass(frozen=True, slots=True)
class _Part:
    """A replaceable part: its protocol, and the class of each built-in name, or `None` without an object."""

    protocol: type
    known: Mapping[str, str | None]


_TOKENS, _HEADS = "reverie.workflows.world_models.objectives:TokenPrediction", "reverie.models.heads"
PARTS = {
    "model.encoder": _Part(EncoderLike, {"default": "reverie.models.encoder:Encoder"}),
    "model.decoder": _Part(DecoderLike, {"default": "reverie.models.decoder:Decoder"}),
    "model.reward_head": _Part(HeadLike, {"two_hot": f"{_HEADS}:TwoHotHead"}),
    "model.value_head": _Part(HeadLike, {"two_hot": f"{_HEADS}:TwoHotHead"}),
    "world_model.objective": _Part(
        ObjectiveLike, {"reconstruction": None, "barlow": _TOKENS, "infonce": _TOKENS, "none": None}
    ),
    "controller.actor_loss": _Part(ActorLossLike, {"reinforce": f"{_HEADS}:Reinforce"}),
    "buffer.sampler": _Part(SamplerLike, {"uniform": None}),
}
"""The replaceable parts by their settings."""


def check_part(setting: str, value: str) -> None:
    """Raise `UserError` unless a value is a built-in name or `module:Class`. The module is not imported."""
    known, (module, _, name) = PARTS[setting].known, value.partition(":")
    if value not in known and not all(each.isidentifier() for each in (*module.split("."), name)):
        hint = did_you_mean(value, known)
        raise UserError(f"{setting}={value} is not one of {', '.join(known)}, or module:Class.{hint}")


def own_classes(config: Any) -> list[str]:
    """Return the settings of a Dreamer run that name classes, such as "model.encoder=my_module:MyEncoder"."""
    values = {setting: attrgetter(setting)(config) for setting in PARTS}
    return [f"{name}={value}" for name, value in values.items() if value not in PARTS[name].known]


def make_part(setting: str, value: str, *arguments: Any) -> Any:
    """Return an object of the class that a setting names, or `None` for a name without a class.

    Raises:
        UserError: If the module or class is missing, lacks a member of the protocol, or cannot be created.
    """
    part = PARTS[setting]
    if value in part.known:
        module, _, name = (part.known[value] or "").partition(":")
        return getattr(importlib.import_module(module), name)(*arguments) if module else None
    asked, (module, _, name) = f"{setting}={value}", value.partition(":")
    found = getattr(imported := import_for(asked, module), name, None)
    if not isinstance(found, type):
        raise UserError(f"{asked}: {module} has no class {name}.{did_you_mean(name, vars(imported))}")
    methods = [each for each in vars(part.protocol) if each[0] != "_" and callable(vars(part.protocol)[each])]
    is_network = setting != "buffer.sampler"
    from torch import nn

    if is_network and not issubclass(found, nn.Module):
        raise UserError(f"{asked}: {name} is not a torch.nn.Module. Define it as class {name}(nn.Module).")
    # `nn.Module.forward` only raises an error.
    if missing := [each for each in methods if getattr(found, each, None) in (None, nn.Module.forward)]:
        raise UserError(f"{asked}: {name} has no method {missing[0]} of {part.protocol.__name__}. {_PAGE}.")
    try:
        made = found(*arguments)
        # The plan reads a sampler's state.
        has_state = is_network or isinstance(made.state_dict(), Mapping)
    except CODE_FAULTS as error:
        raise UserError(f"{asked} cannot be created: {with_place(error)}.") from error
    if not has_state:
        raise UserError(f"{asked}: state_dict of {name} must return a dict of the state by name.")
    if missing := [each for each in part.protocol.__annotations__ if not hasattr(made, each)]:
        raise UserError(f"{asked}: {name} has no attribute {missing[0]}. Assign it in __init__ ({_PAGE}).")
    return made
