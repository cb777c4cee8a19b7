"""The state of the world model."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LatentState:
    """Recurrent state and categorical sample; any leading axes, usually (batch,) or (batch, time)."""

    deter: Float[Tensor, "*batch deter"]
    """Deterministic recurrent state."""

    stoch: Float[Tensor, "*batch stoch classes"]
    """One-hot samples, with the straight-through gradient where there is one."""

    @property
    def flat_stoch(self) -> Float[Tensor, "*batch flat"]:
        """Return the samples with latents and classes in one axis."""
        return self.stoch.flatten(-2)

    @property
    def feature(self) -> Float[Tensor, "*batch feature"]:
        """Return what heads read: deter, then the flat samples."""
        return torch.cat([self.deter, self.flat_stoch.to(self.deter.dtype)], -1)

    def detach(self) -> "LatentState":
        """Return the same numbers without their graph."""
        return LatentState(self.deter.detach(), self.stoch.detach())

    def flatten(self) -> "LatentState":
        """Return the state with its first two axes (batch, time) as one."""
        return LatentState(self.deter.flatten(0, 1), self.stoch.flatten(0, 1))

    def select(self, index: "int | slice | tuple[int | slice, ...]") -> "LatentState":
        """Return the states at an index into the leading axes."""
        return LatentState(self.deter[index], self.stoch[index])

    def concatenate(self, other: "LatentState", dim: int) -> "LatentState":
        """Return the states of both along an existing leading axis."""
        return LatentState(
            torch.cat([self.deter, other.deter], dim), torch.cat([self.stoch, other.stoch], dim)
        )

    @staticmethod
    def stack(states: list["LatentState"], dim: int) -> "LatentState":
        """Stack states along a new axis."""
        return LatentState(
            torch.stack([s.deter for s in states], dim), torch.stack([s.stoch for s in states], dim)
        )
