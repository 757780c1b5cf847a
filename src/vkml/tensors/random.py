"""Random numbers from generators that give the same on every platform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import CaptureError
from vkml.ir import DType, dtypes
from vkml.tensors.capture import is_capturing
from vkml.tensors.creation import _of_array, _sizes
from vkml.tensors.promotion import checked, get_default_dtype
from vkml.tensors.tensor import Tensor


class Generator:
    """A stream of random numbers, the same for the same seed on every machine."""

    def __init__(self, seed: int = 0) -> None:
        self._philox = np.random.Generator(np.random.Philox(seed))
        self._seed = seed

    def manual_seed(self, seed: int) -> Generator:
        """Begins anew with a seed."""
        self.__init__(seed)  # type: ignore[misc]
        return self

    def initial_seed(self) -> int:
        """The seed that it began with."""
        return self._seed

    def get_state(self) -> dict[str, Any]:
        """What `set_state` takes to go on from here."""
        return dict(self._philox.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._philox.bit_generator.state = state


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Begins the default stream anew."""
    return default_generator.manual_seed(seed)


def _made(array: Any, dtype: DType | None, device: Any, requires_grad: bool) -> Tensor:
    if is_capturing():
        raise CaptureError(
            "random numbers of a captured function would be the same in each run: draw them outside"
        )
    made = _of_array(np.asarray(array).astype((checked(dtype) or get_default_dtype()).storage), device)
    return made.requires_grad_() if requires_grad else made


def rand(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers from [0, 1), equally likely."""
    stream = (generator or default_generator)._philox
    return _made(stream.random(_sizes(size), np.float32), dtype, device, requires_grad)


def randn(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers of the normal distribution of mean 0 and variance 1."""
    stream = (generator or default_generator)._philox
    return _made(stream.standard_normal(_sizes(size), np.float32), dtype, device, requires_grad)


def randint(
    low: int, high: int, size: Sequence[int], *, generator: Generator | None = None,
    dtype: DType | None = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Integers from [low, high), equally likely."""
    stream = (generator or default_generator)._philox
    return _made(stream.integers(low, high, tuple(size)), dtype or dtypes.INT64, device, False)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """The numbers from 0 to n - 1 in any order, all equally likely."""
    stream = (generator or default_generator)._philox
    return _made(stream.permutation(n), dtype or dtypes.INT64, device, False)
