"""Padding as modules."""

from __future__ import annotations

from typing import ClassVar

from vkml.nn import functional
from vkml.nn.functional.arguments import Sizes, sizes
from vkml.nn.module import Module
from vkml.tensors import Tensor


class _Pad(Module):
    mode: ClassVar[str]
    rank: ClassVar[int]

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = sizes(padding, 2 * self.rank, "padding")

    def forward(self, input: Tensor) -> Tensor:
        return functional.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return functional.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Sizes) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ReflectionPad(_Pad):
    mode = "reflect"


class _ReplicationPad(_Pad):
    mode = "replicate"


class _CircularPad(_Pad):
    mode = "circular"


class ConstantPad1d(_ConstantPad):
    """A number around the last axis; see `functional.pad`.

    Args:
        padding: 2 numbers, before and behind each axis, the last axis first; or one for all.
        value: the number.
    """

    rank = 1


class ConstantPad2d(_ConstantPad):
    """A number around the last two axes; see `functional.pad`.

    Args:
        padding: 4 numbers, before and behind each axis, the last axis first; or one for all.
        value: the number.
    """

    rank = 2


class ConstantPad3d(_ConstantPad):
    """A number around the last three axes; see `functional.pad`.

    Args:
        padding: 6 numbers, before and behind each axis, the last axis first; or one for all.
        value: the number.
    """

    rank = 3


class ZeroPad1d(_ZeroPad):
    """Zeros around the last axis; see `functional.pad`.

    Args:
        padding: 2 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around the last two axes; see `functional.pad`.

    Args:
        padding: 4 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around the last three axes; see `functional.pad`.

    Args:
        padding: 6 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 3


class ReflectionPad1d(_ReflectionPad):
    """The mirror image, without the ends once more, along the last axis; see `functional.pad`.

    Args:
        padding: 2 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 1


class ReflectionPad2d(_ReflectionPad):
    """The mirror image, without the ends once more, along the last two axes; see `functional.pad`.

    Args:
        padding: 4 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 2


class ReflectionPad3d(_ReflectionPad):
    """The mirror image, without the ends once more, along the last three axes; see `functional.pad`.

    Args:
        padding: 6 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 3


class ReplicationPad1d(_ReplicationPad):
    """The ends once more beyond them, along the last axis; see `functional.pad`.

    Args:
        padding: 2 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 1


class ReplicationPad2d(_ReplicationPad):
    """The ends once more beyond them, along the last two axes; see `functional.pad`.

    Args:
        padding: 4 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 2


class ReplicationPad3d(_ReplicationPad):
    """The ends once more beyond them, along the last three axes; see `functional.pad`.

    Args:
        padding: 6 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 3


class CircularPad1d(_CircularPad):
    """The other end beyond each, along the last axis; see `functional.pad`.

    Args:
        padding: 2 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 1


class CircularPad2d(_CircularPad):
    """The other end beyond each, along the last two axes; see `functional.pad`.

    Args:
        padding: 4 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 2


class CircularPad3d(_CircularPad):
    """The other end beyond each, along the last three axes; see `functional.pad`.

    Args:
        padding: 6 numbers, before and behind each axis, the last axis first; or one for all.
    """

    rank = 3
