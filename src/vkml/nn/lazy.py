"""Layers that learn the number of their inputs from their first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from vkml.ir import DType, dtypes
from vkml.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from vkml.nn.functional.arguments import Sizes
from vkml.nn.linear import Linear
from vkml.nn.module import Module
from vkml.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from vkml.nn.uninitialized import UninitializedBuffer, UninitializedParameter, UninitializedTensor
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import zeros


class LazyModuleMixin(Module):
    """What a module is first of that has parameters without a shape.

    Before its first `forward`, `initialize_parameters` is called with the same arguments, and gives them
    their shapes; the module then becomes `cls_to_become`, where that is said. Parameters stay the same
    objects. A state that has them gives them their shapes, too.
    """

    cls_to_become: ClassVar[type[Module] | None] = None
    """The class that it has once all is known."""

    def initialize_parameters(self, *arguments: Any, **named: Any) -> None:
        """Gives parameters and buffers their shapes and first values, by the first arguments."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self) -> bool:
        """Whether parameters or buffers have no shape yet."""
        return any(isinstance(value, UninitializedTensor) for value in self._own())

    def _own(self) -> Iterator[Tensor | None]:
        yield from self._parameters.values()
        yield from self._buffers.values()

    def _called(self, *arguments: Any, **named: Any) -> Any:
        if not self.__dict__.get("_is_initialized", False):
            with no_grad():
                self.initialize_parameters(*arguments, **named)
            if self.has_uninitialized_params():
                raise RuntimeError(f"module {type(self).__name__} has not been fully initialized")
            self._is_initialized = True
            if self.cls_to_become is not None:
                del self._is_initialized
                self.__class__ = self.cls_to_become  # type: ignore[assignment]
            return self._called(*arguments, **named)
        return super()._called(*arguments, **named)


class _LazyChannels(LazyModuleMixin):
    """A layer that has to know one number, of features or channels."""

    _counted: ClassVar[str]
    """The attribute that it is."""

    def reset_parameters(self) -> None:
        """Nothing before the number is known; then as the layer begins."""
        if not self.has_uninitialized_params() and getattr(self, self._counted):
            super().reset_parameters()  # type: ignore[misc]

    def _await(self, weight: bool, bias: bool, device: Any, dtype: DType | None) -> None:
        """Has parameters without shapes."""
        for name, is_there in (("weight", weight), ("bias", bias)):
            if is_there:
                setattr(self, name, UninitializedParameter(device=device, dtype=dtype))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what has no shape yet, by the number."""
        raise NotImplementedError

    def _count(self, input: Tensor) -> int:
        """The number, from an input."""
        raise NotImplementedError

    def initialize_parameters(self, input: Tensor, *arguments: Any, **named: Any) -> None:
        """Learns the number from an input."""
        setattr(self, self._counted, self._count(input))
        if self.has_uninitialized_params():
            for name, shape in self._shapes().items():
                value = getattr(self, name)
                if value is not None:
                    value.materialize(shape)
            self.reset_parameters()


class LazyLinear(_LazyChannels, Linear):
    """A `Linear` whose `in_features` is the last axis of its first input.

    Args:
        out_features: of the last axis of the result.
        bias: whether something is added.
        device: of the parameters.
        dtype: of the parameters.

    Example:
        >>> import vkml
        >>> from vkml import nn
        >>> layer = nn.LazyLinear(2)
        >>> layer.weight
        <UninitializedParameter>
        >>> layer(vkml.ones(4, 3)).shape
        vkml.Size([4, 2])
        >>> layer
        Linear(in_features=3, out_features=2, bias=True)
    """

    cls_to_become = Linear
    _counted = "in_features"

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._await(True, bias, device, dtype)

    def _count(self, input: Tensor) -> int:
        return input.shape[-1]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_features, self.in_features), "bias": (self.out_features,)}


# -- convolutions --------------------------------------------------------------------------------------------


class _LazyConvNd(_LazyChannels):
    _counted = "in_channels"
    rank: ClassVar[int]
    is_transposed: ClassVar[bool]
    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]

    def _count(self, input: Tensor) -> int:
        if input.ndim not in (self.rank + 1, self.rank + 2):
            raise RuntimeError(
                f"Expected {self.rank + 1}D (unbatched) or {self.rank + 2}D (batched) input to "
                f"{type(self).__name__}, but got input of size: {list(input.shape)}"
            )
        found = input.shape[-self.rank - 1]
        if found % self.groups:
            raise ValueError(f"in_channels must be divisible by groups, {found} is not by {self.groups}")
        return found

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        one, other = self.out_channels, self.in_channels
        if self.is_transposed:
            one, other = other, one
        return {"weight": (one, other // self.groups, *self.kernel_size), "bias": (self.out_channels,)}


class _LazyConv(_LazyConvNd):
    def __init__(
        self, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros",
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(  # type: ignore[call-arg]
            0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode
        )
        if out_channels % groups:
            raise ValueError(f"out_channels must be divisible by groups, {out_channels} is not by {groups}")
        self.out_channels = out_channels
        self._await(True, bias, device, dtype)


class _LazyConvTranspose(_LazyConvNd):
    def __init__(
        self, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(  # type: ignore[call-arg]
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode
        )
        if out_channels % groups:
            raise ValueError(f"out_channels must be divisible by groups, {out_channels} is not by {groups}")
        self.out_channels = out_channels
        self._await(True, bias, device, dtype)


class LazyConv1d(_LazyConv, Conv1d):
    """A `Conv1d` whose `in_channels` is that of its first input.

    Other arguments as for `Conv1d`.
    """

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """A `Conv2d` whose `in_channels` is that of its first input.

    Other arguments as for `Conv2d`.
    """

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """A `Conv3d` whose `in_channels` is that of its first input.

    Other arguments as for `Conv3d`.
    """

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """A `ConvTranspose1d` whose `in_channels` is that of its first input.

    Other arguments as for `ConvTranspose1d`.
    """

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """A `ConvTranspose2d` whose `in_channels` is that of its first input.

    Other arguments as for `ConvTranspose2d`.
    """

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """A `ConvTranspose3d` whose `in_channels` is that of its first input.

    Other arguments as for `ConvTranspose3d`.
    """

    cls_to_become = ConvTranspose3d


# -- normalisations ------------------------------------------------------------------------------------------


class _LazyNorm(_LazyChannels):
    _counted = "num_features"
    num_features: int

    def _await_all(self, affine: bool, tracks: bool, bias: bool, device: Any, dtype: DType | None) -> None:
        self.affine, self.track_running_stats = affine, tracks
        self._await(affine, affine and bias, device, dtype)
        if tracks:
            for name in ("running_mean", "running_var"):
                self.register_buffer(name, UninitializedBuffer(device=device, dtype=dtype))
            self.register_buffer("num_batches_tracked", zeros((), device=device, dtype=dtypes.INT64))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (self.num_features,))


class _LazyBatchNorm(_LazyNorm):
    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: DType | None = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, False, False, device, dtype)  # type: ignore[call-arg]
        self._await_all(affine, track_running_stats, bias, device, dtype)

    def _count(self, input: Tensor) -> int:
        return input.shape[1]


class _LazyInstanceNorm(_LazyNorm):
    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, False, False, device, dtype)  # type: ignore[call-arg]
        self._await_all(affine, track_running_stats, bias, device, dtype)

    def _count(self, input: Tensor) -> int:
        is_single: bool = input.ndim == self.axes[0]
        return input.shape[0 if is_single else 1]


class LazyBatchNorm1d(_LazyBatchNorm, BatchNorm1d):
    """A `BatchNorm1d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm1d`.
    """

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm, BatchNorm2d):
    """A `BatchNorm2d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm2d`.
    """

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm, BatchNorm3d):
    """A `BatchNorm3d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm3d`.
    """

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyInstanceNorm, InstanceNorm1d):
    """An `InstanceNorm1d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm1d`.
    """

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, InstanceNorm2d):
    """An `InstanceNorm2d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm2d`.
    """

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, InstanceNorm3d):
    """An `InstanceNorm3d` whose `num_features` is that of its first input.

    Other arguments as for `BatchNorm3d`.
    """

    cls_to_become = InstanceNorm3d
