"""Parameters and buffers whose shape is not known yet."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from vkml.errors import InvalidArgument
from vkml.ir import DType
from vkml.nn.module import Parameter
from vkml.tensors import Tensor
from vkml.tensors.creation import empty
from vkml.tensors.device import device as DeviceName
from vkml.tensors.promotion import get_default_dtype
from vkml.tensors.tensor import Size, device_name
from vkml.tracing import Traced
from vkml.tracing.meta import absent


class Uninitialized(InvalidArgument, RuntimeError, ValueError):
    """A tensor is used that has no shape yet."""


class UninitializedTensor(Tensor):
    """What parameters and buffers without a shape share.

    They can be moved and converted, and be given a shape by `materialize`; anything else is an error.
    """

    __slots__ = ()
    cls_to_become: ClassVar[type[Tensor]]
    """What it is once it has a shape."""

    def __init__(self, requires_grad: bool, device: Any, dtype: DType | None) -> None:
        dtype = get_default_dtype() if dtype is None else dtype
        Tensor.__init__(self, absent(dtype, ()))
        self.__dict__["where"] = "cpu" if device is None else device_name(device)
        self.requires_grad_(requires_grad)

    def materialize(self, shape: tuple[int, ...], device: Any = None, dtype: DType | None = None) -> None:
        """Gives it a shape, and memory that is yet to be written.

        Args:
            shape: its sizes.
            device: where; its own where left out.
            dtype: of its elements; its own where left out.
        """
        tracks = self._traced.tracks
        place = self.__dict__.pop("where") if device is None else device
        made = empty(*shape, dtype=self.dtype if dtype is None else dtype, device=place)
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        self._hold(made.value)
        self._version += 1
        self.requires_grad_(tracks)

    @property
    def value(self) -> Traced:
        self._refuse()

    @property
    def shape(self) -> Size:
        """Has none yet."""
        self._refuse()

    @property
    def ndim(self) -> int:
        """Has none yet."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Uninitialized(
            f"a {type(self).__name__} has no shape and no elements yet: call the module that it is of with a "
            "batch first, or load a state that has it"
        )

    @property
    def device(self) -> DeviceName:
        return DeviceName(str(self.__dict__["where"]))

    @property
    def is_meta(self) -> bool:
        return False

    @property
    def is_leaf(self) -> bool:
        return True

    @property
    def requires_grad(self) -> bool:
        return self._traced.tracks

    @requires_grad.setter
    def requires_grad(self, is_on: bool) -> None:
        self.requires_grad_(is_on)

    def requires_grad_(self, is_on: bool = True) -> Tensor:
        self._traced.tracks = self._traced.is_leaf = is_on
        return self

    def detach(self) -> Tensor:
        """Itself: there is nothing that gradients could flow through."""
        return self

    def _become_elsewhere(self, arguments: Any, device: Any, dtype: DType | None) -> None:
        for given in arguments:
            if isinstance(given, DType):
                dtype = given
            elif given is not None:
                device = given
        if dtype is not None:
            tracks = self._traced.tracks
            self._hold(absent(dtype, ()))
            self.requires_grad_(tracks)
        if device is not None:
            self.__dict__["where"] = device_name(device)

    def _become_empty(self, device: Any) -> None:
        self.__dict__["where"] = device_name(device)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        made = memo[id(self)] = type(self).__new__(type(self))
        UninitializedTensor.__init__(made, self.requires_grad, self.device, self.dtype)
        return made

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(UninitializedTensor, Parameter):
    """A parameter whose shape is not known yet; see `vkml.nn.lazy`.

    Args:
        requires_grad: whether it is learned.
        device: where it will be.
        dtype: of its elements.
    """

    __slots__ = ()
    cls_to_become = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: DType | None = None) -> None:
        super().__init__(requires_grad, device, dtype)


class UninitializedBuffer(UninitializedTensor):
    """A buffer whose shape is not known yet; see `vkml.nn.lazy`.

    Args:
        requires_grad: whether gradients flow to it.
        device: where it will be.
        dtype: of its elements.
    """

    __slots__ = ()
    cls_to_become = Tensor

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: DType | None = None) -> None:
        super().__init__(requires_grad, device, dtype)
