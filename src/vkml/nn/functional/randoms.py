"""Random numbers of layers: from one place, in the default generator's stream."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.tensors import Tensor
from vkml.tensors.random import rand


def uniform(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Numbers from [0, 1), equally likely, of a tensor's type and on its device."""
    return rand(*shape, device=like.device).to(like.dtype)
