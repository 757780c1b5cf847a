"""`Tensor`: elements on a device, with PyTorch's interface."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from vkml.engine.device_array import on_host
from vkml.errors import CaptureError, NotDifferentiable
from vkml.ir import DType, TensorType, dtypes
from vkml.ir.gradients import converted
from vkml.tensors import operations as op
from vkml.tensors.backward import compute, run_backward
from vkml.tensors.capture import captures, is_capturing
from vkml.tensors.copying import deep, reduced, shallow
from vkml.tensors.device import device as DeviceName
from vkml.tensors.device import device_named
from vkml.tensors.holding import Holding, placed_at
from vkml.tensors.hooks import GradientHooks, Hook, RemovableHandle
from vkml.tensors.in_place import InPlace
from vkml.tensors.indexing import read, write
from vkml.tensors.methods import Operations
from vkml.tensors.moving import joined_to
from vkml.tensors.printing import text_of
from vkml.tensors.promotion import checked, default_complex, get_default_dtype
from vkml.tensors.random_in_place import RandomInPlace
from vkml.tensors.structure import note_change
from vkml.tensors.views import View, untracked
from vkml.tracing import EMITTER, Traced, apply, value_of
from vkml.tracing.meta import META, absent, is_meta
from vkml.tracing.moves import moved
from vkml.tracing.value import mode, tracking

Array = np.ndarray[Any, Any]
Real: TypeAlias = float
Flag: TypeAlias = bool
"""Names that methods of tensors do not take."""
MOST_PENDING = 2000
"""Depth of what is recorded at which it is computed, though nobody looks: memory stays bounded."""


class Size(tuple[int, ...]):
    """The sizes of a tensor's axes.

    Args:
        iterable: whole numbers.
    """

    __slots__ = ()

    def numel(self) -> int:
        """How many elements a tensor of these sizes has."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"vkml.Size({list(self)})"


class Tensor(Holding, Operations, InPlace, RandomInPlace):
    """A tensor; made by `vkml.tensor`, `vkml.zeros`, … and by operations on others.

    Operations are recorded; they run, fused, when an element is looked at: by `numpy`, `item`, `print`, or by
    an optimizer's step.

    Example:
        >>> import vkml
        >>> x = vkml.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([2., 4.])
    """

    __slots__ = ("__dict__", "__weakref__", "_grad")

    def __init__(self, value: Traced, base: Tensor | None = None, view: View | None = None) -> None:
        try:
            value.holders += 1
        except AttributeError:
            raise TypeError(
                "tensors are made by vkml.tensor(data), vkml.zeros(size) and kin, and by operations on others"
            ) from None
        # What another tensor has, too, was there before.
        is_inferred = mode.infers and value.holders == 1 if base is None else base._traced.is_inferred
        if is_inferred:
            value.is_inferred = True
        self._traced: Traced = value
        self._base, self._view = base, view
        if base is not None:
            value.views += 1
            self._share()
        self._version = 0
        self._seen = 0 if base is None else base._root._version
        self._grad: Tensor | None = None
        self._keeps_grad = False
        if captures.latest is not None:
            captures.latest.made[id(self)] = weakref.ref(self)
        if value.application is not None and value.application.depth > MOST_PENDING and value.data is None:
            compute([self])

    def __del__(self) -> None:
        traced = getattr(self, "_traced", None)
        if traced is not None:
            traced.holders -= 1
            if self._base is not None:
                traced.views -= 1

    # -- description ----------------------------------------------------------------------------------------

    @property
    def tensor_type(self) -> TensorType:
        """Element type and sizes."""
        return self._traced.type

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self._traced.type.dtype

    @property
    def shape(self) -> Size:
        """Its sizes."""
        return Size(self._traced.dims)

    def size(self, dim: int | None = None) -> Any:
        """All sizes, or that of one axis.

        Args:
            dim: the axis; None: all.
        """
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self._traced.dims)

    def dim(self) -> int:
        """How many axes it has."""
        return self.ndim

    def numel(self) -> int:
        """How many elements it has."""
        return self.shape.numel()

    @property
    def device(self) -> DeviceName:
        """The device that it is on: its name, with `type` and `index`."""
        place = self._traced.device
        return device_named("cpu" if place is None else place.info.name)

    @property
    def is_leaf(self) -> bool:
        """Whether it was not made by operations that gradients flow through."""
        value = self.value
        return value.is_leaf or not value.tracks

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[at] for at in range(len(self)))

    # -- elements on the host -------------------------------------------------------------------------------

    def _elements(self) -> Array:
        if captures.latest is not None:
            raise CaptureError(
                "a captured function cannot look at the elements of a tensor: return it, and look at it then"
            )
        value = self.value
        if value.data is None:
            compute([self], value)
        return cast(Array, on_host(value.data))

    def numpy(self, *, force: Flag = False) -> Array:
        """Its elements as an array of the host.

        Args:
            force: whether one that requires grad is taken without.

        Raises:
            RuntimeError: it requires grad; `detach` it first.
        """
        if self.requires_grad and not force:
            raise NotDifferentiable("the tensor requires grad: use tensor.detach().numpy()")
        found = self._elements()
        return np.array(found) if found is self.value.data else found

    def item(self) -> Any:
        """Its only element as a number of Python's."""
        data = self.value.data
        if type(data) is np.ndarray and data.size == 1 and data.dtype.isbuiltin == 1 and not is_capturing():
            return data.item()
        if self.numel() != 1:
            raise RuntimeError(f"a tensor with {self.numel()} elements cannot be converted to a number")
        return self._elements().reshape(-1)[0].item()

    def tolist(self) -> Any:
        """Its elements as nested lists."""
        return self._elements().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[Any, Any] | None = None,
        dl_device: tuple[Any, Any] | None = None,
        copy: Flag | None = None,
    ) -> Any:
        if stream not in (None, -1):
            raise ValueError("elements are exported on the host, which has no streams")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"elements are exported on the host, {self.__dlpack_device__()}, not {dl_device}"
            )
        if copy is not False:
            return self.numpy().__dlpack__(max_version=max_version)
        if self.requires_grad:
            raise NotDifferentiable("the tensor requires grad: export tensor.detach()")
        if self.device != "cpu":
            raise BufferError(f"elements of {self.device} are copied to the host, and copy=False")
        return self._elements().__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host: elements of a device are copied there

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise RuntimeError("the truth of a tensor of several elements, or of none, is ambiguous")
        return bool(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self._real_item())

    def __int__(self) -> int:
        return int(self._real_item())

    def _real_item(self) -> Any:
        if self.numel() != 1:
            raise ValueError(f"a tensor with {self.numel()} elements cannot be converted to a number")
        found = self.item()
        if isinstance(found, complex):
            if found.imag:
                raise RuntimeError(f"{found} is no real number: use tensor.real, or abs")
            return found.real
        return found

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError("only integer tensors of a single element can be an index")
        return int(self.item())

    def __repr__(self) -> str:
        return self._text("tensor")

    def _text(self, name: str) -> str:
        if self.is_meta:
            return f"{name}(..., device='meta', size={tuple(self.shape)})"
        elements = self._elements()
        notes = [] if self.device == "cpu" else [f"device='{self.device}'"]
        plain = [get_default_dtype()]
        if elements.size:
            plain += [dtypes.INT64, dtypes.BOOL, default_complex()]
        elif self.ndim != 1:
            notes.append(f"size={tuple(self.shape)}")
        if self.dtype not in plain:
            notes.append(f"dtype=vkml.{self.dtype.numpy_name}")
        if self.requires_grad:
            notes.append("requires_grad=True")
        return text_of(name, elements, notes)

    # -- elsewhere, otherwise -------------------------------------------------------------------------------

    def to(
        self, *arguments: Any, device: Any = None, dtype: DType | None = None, non_blocking: Flag = False,
        copy: Flag = False,
    ) -> Tensor:  # fmt: skip
        """On another device, of another type, or like another tensor; itself where it is so already.

        Args:
            *arguments: a device's name, a type, both, or a tensor whose device and type they are to be.
            device: by name.
            dtype: by name.
            non_blocking: for PyTorch's sake: nothing is waited for that nobody looks at.
            copy: whether it is a tensor of its own in any case.

        Returns:
            Its own elements elsewhere, through which gradients flow; itself where nothing changes.
        """
        for given in arguments:
            if isinstance(given, DType):
                dtype = given
            elif isinstance(given, Tensor):
                device, dtype = given.device, given.dtype
            elif isinstance(given, Flag):
                continue  # non_blocking
            elif given is not None:
                device = given
        found = self.clone() if copy else self
        checked(dtype)
        if dtype is not None and dtype != self.dtype:
            found = Tensor(converted(EMITTER, found.value, dtype))
        if device is not None and device_name(device) != found.device:
            found = found._moved(device_name(device))
        return found

    def _moved(self, name: str) -> Tensor:
        from vkml.engine.ort_value import device_of

        if is_meta(name):
            found = Tensor(absent(self.dtype, self.shape))
            return found.requires_grad_() if self.requires_grad else found
        if captures.latest is not None:
            return Tensor(_sent(self.value, device_of(name)))
        made = value_of(self._elements(), device_of(name))
        return Tensor(joined_to(made, self.value, self.device))

    def _become_elsewhere(self, arguments: Sequence[Any], device: Any, dtype: DType | None) -> None:
        """Becomes what `to` makes of it; the element type of floats alone changes."""
        with tracking(False):
            kept = [x for x in arguments if self.dtype.is_float or not isinstance(x, DType)]
            made = self.detach().to(*kept, device=device, dtype=dtype if self.dtype.is_float else None)
            if made.device != self.device or made.dtype != self.dtype:
                self._put(made.value)
                if self._grad is not None:
                    self._grad = self._grad.to(made.device, made.dtype)

    def _become_empty(self, device: Any) -> None:
        """Becomes one on a device whose elements are yet to be written."""
        from vkml.tensors.creation import empty

        with tracking(False):
            self._put(empty(*self.shape, dtype=self.dtype, device=device).value)
            self._grad = None

    @property
    def is_meta(self) -> Flag:
        """Whether it has a type and a shape, and no elements."""
        return self._traced.device is META

    def cpu(self) -> Tensor:
        """On the CPU."""
        return self.to("cpu")

    def clone(self) -> Tensor:
        """A tensor of its own with the same elements, through which gradients flow."""
        return (
            Tensor(untracked(self.value)) if not self.value.tracks else Tensor(apply("Identity", self.value))
        )

    def contiguous(self) -> Tensor:
        """Itself, or a copy where it shows elements of another tensor that lie in another order."""
        return self if self.is_contiguous() else self.clone()

    # -- operations -----------------------------------------------------------------------------------------

    abs, acos, acosh, add, all, amax, amin = op.abs, op.acos, op.acosh, op.add, op.all, op.amax, op.amin
    any, argmax, argmin, asin, asinh = op.any, op.argmax, op.argmin, op.asin, op.asinh
    atan, atanh, bitwise_and, bitwise_not = op.atan, op.atanh, op.bitwise_and, op.bitwise_not
    bitwise_or, bitwise_xor, broadcast_to = op.bitwise_or, op.bitwise_xor, op.broadcast_to
    ceil, chunk, clamp, clip, cos, cosh = op.ceil, op.chunk, op.clamp, op.clamp, op.cos, op.cosh
    cumsum, div, divide, eq, erf, exp = op.cumsum, op.div, op.div, op.eq, op.erf, op.exp
    expm1, log1p = op.expm1, op.log1p
    expand, flatten, floor, floor_divide = op.expand, op.flatten, op.floor, op.floor_divide
    fmod, gather, ge, gt, index_select = op.fmod, op.gather, op.ge, op.gt, op.index_select
    isfinite, isinf, isnan, le, lerp = op.isfinite, op.isinf, op.isnan, op.le, op.lerp
    log, log10, log2, log_softmax = op.log, op.log10, op.log2, op.log_softmax
    logical_and, logical_not, logical_or = op.logical_and, op.logical_not, op.logical_or
    logical_xor, logsumexp, lt, matmul = op.logical_xor, op.logsumexp, op.lt, op.matmul
    maximum, mean, minimum, mm, mul, multiply = op.maximum, op.mean, op.minimum, op.matmul, op.mul, op.mul
    ne, neg, norm, permute, pow, prod = op.ne, op.neg, op.norm, op.permute, op.pow, op.prod
    reciprocal, relu, remainder, reshape = op.reciprocal, op.relu, op.remainder, op.reshape
    round, rsqrt, sigmoid, sign, sin, sinh = op.round, op.rsqrt, op.sigmoid, op.sign, op.sin, op.sinh
    softmax, sort, split, sqrt, square = op.softmax, op.sort, op.split, op.sqrt, op.square
    squeeze, std, sub, subtract, sum = op.squeeze, op.std, op.sub, op.sub, op.sum
    tan, tanh, topk, transpose, tril, triu = op.tan, op.tanh, op.topk, op.transpose, op.tril, op.triu
    trunc, unsqueeze, var, view = op.trunc, op.unsqueeze, op.var, op.reshape

    __add__ = __radd__ = op.add
    __mul__ = __rmul__ = op.mul
    __sub__, __truediv__, __floordiv__ = op.sub, op.div, op.floor_divide
    __mod__, __pow__, __matmul__ = op.remainder, op.pow, op.matmul
    __and__ = __rand__ = op.bitwise_and
    __or__ = __ror__ = op.bitwise_or
    __xor__ = __rxor__ = op.bitwise_xor
    __neg__, __abs__, __invert__ = op.neg, op.abs, op.bitwise_not
    __lt__, __le__, __gt__, __ge__ = op.lt, op.le, op.gt, op.ge
    __eq__, __ne__ = op.eq, op.ne  # type: ignore[assignment]
    __hash__ = object.__hash__
    __array_priority__ = 1000

    def __rsub__(self, other: Any) -> Tensor:
        return op.add(op.neg(self), other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return op.div(other, self)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return op.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Tensor:
        return op.remainder(other, self)

    def __rpow__(self, other: Any) -> Tensor:
        return op.pow(other, self)

    def __getitem__(self, index: Any) -> Tensor:
        return read(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        write(self, index, value)

    @property
    def T(self) -> Tensor:
        """The axes in reverse."""
        return op.permute(self, *range(self.ndim)[::-1])

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return op.transpose(self, -2, -1)

    def t(self) -> Tensor:
        """A matrix with rows and columns exchanged."""
        return op.permute(self, *range(self.ndim)[::-1])

    def view_as(self, other: Tensor) -> Tensor:
        """The elements under the shape of another.

        Args:
            other: of as many elements.

        Raises:
            RuntimeError: the numbers of elements differ.
        """
        return op.reshape(self, *other.shape)

    def expand_as(self, other: Tensor) -> Tensor:
        """Repeated to the shape of another.

        Args:
            other: of a shape that it can be repeated to; see `expand`.
        """
        return op.expand(self, *other.shape)

    # -- gradients ------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> Flag:
        """Whether gradients flow to it, or through it."""
        return self.value.tracks

    @requires_grad.setter
    def requires_grad(self, is_on: Flag) -> None:
        self.requires_grad_(is_on)

    def requires_grad_(self, is_on: Flag = True) -> Tensor:
        """Has `backward` leave the gradient by it in `grad`; returns it.

        Args:
            is_on: False: has it leave none.

        Raises:
            RuntimeError: it is not of floats or complex numbers; or it is no leaf, and is to have none.
        """
        if is_on and not self.dtype.is_inexact:
            raise NotDifferentiable(
                f"only tensors of floats and complex numbers can require grad, not of {self.dtype.numpy_name}"
            )
        value = self.value
        if not is_on and not self.is_leaf:
            raise NotDifferentiable("only a leaf can stop to require grad; use detach()")
        if is_on != value.tracks:
            note_change()
        if is_on and not value.tracks:
            self._cut(value)
            self._traced.tracks = self._traced.is_leaf = True
            self._own()
        elif not is_on:
            self._cut(value)
        self._traced.hooks = value.hooks
        return self

    @property
    def grad(self) -> Tensor | None:
        """The sum of the gradients that `backward` has found by it; None for none."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and (value.shape != self.shape or value.dtype != self.dtype):
            raise RuntimeError(f"a gradient is like its tensor: {self.dtype.numpy_name}{list(self.shape)}")
        self._grad = value

    def __copy__(self) -> Tensor:
        return shallow(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        return deep(self, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return reduced(self)

    def detach(self) -> Tensor:
        """The same elements, through which no gradient flows."""
        made = Tensor(untracked(self.value))
        made._traced.is_inferred = self._traced.is_inferred
        made._traced.share(self._traced)
        return made

    def detach_(self) -> Tensor:
        """Cuts it from what it was made of; returns it."""
        self._cut(self.value)
        return self

    def _cut(self, value: Traced) -> None:
        """Has it hold its value without a history, in the same memory."""
        self._hold(untracked(value))
        self._traced.share(value)

    def retain_grad(self) -> None:
        """Has `backward` leave the gradient by it in `grad` though it is no leaf."""
        self._keeps_grad = self.value.tracks
        self._own()

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Has `hook` called with the whole gradient by it; what it returns, alike, flows on instead.

        It is that by the elements which the tensor has now; a leaf's, by those that it is given later, too.

        Args:
            hook: given the gradient; None from it changes nothing.

        Returns:
            What takes the hook off again.

        Raises:
            RuntimeError: the tensor does not require grad.
        """
        if not self.value.tracks:
            raise NotDifferentiable("a hook is called with the gradient by a tensor that requires grad")
        value = self.value
        if value.hooks is None:
            value.hooks = GradientHooks()
        return RemovableHandle(value.hooks, "table", Hook(hook))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Has `hook` called with it when `backward` has left its gradient in `grad`; it has to be a leaf.

        Args:
            hook: given the tensor.

        Returns:
            What takes the hook off again.

        Raises:
            RuntimeError: the tensor is no leaf that requires grad.
        """
        if not self.requires_grad or not self.is_leaf:
            raise NotDifferentiable("gradients are left in leaves that require grad, this is none")
        self.__dict__.setdefault("_accumulated", {})
        return RemovableHandle(self, "_accumulated", Hook(hook))

    def backward(
        self, gradient: Tensor | None = None, retain_graph: Flag | None = None, create_graph: Flag = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Adds the gradient of it by every leaf that requires grad to the leaf's `grad`.

        Args:
            gradient: what each of its elements counts; may be left out for a single one.
            retain_graph: whether `backward` may be called once more; as `create_graph` where left out.
            create_graph: whether the gradients can be differentiated in turn.
            inputs: the leaves, and others, that are given gradients; all leaves where left out.

        Raises:
            RuntimeError: it does not require grad, or its history is gone.
        """
        run_backward(self, gradient, retain_graph, create_graph, inputs)

    def _add_gradient(self, found: Tensor, is_named: Flag) -> None:
        latest = captures.latest
        # What a capture has made is noted nowhere: to hold it would be to keep it.
        if latest is not None and id(self) not in latest.made:
            if self._grad is not None and id(self) not in latest.graded:
                raise CaptureError(
                    "a captured function would add to gradients of before: call zero_grad() within it"
                )
            latest.graded[id(self)] = self
        if is_named or self.value.is_leaf or self._keeps_grad:
            before = self._grad
            self._grad = found if before is None else Tensor(apply("Add", before.value, found.value))
        for hook in list(self.__dict__.get("_accumulated", {}).values()):
            hook.act(self)


def _sent(value: Traced, device: Any) -> Traced:
    """A value on another device, computed there with all else that is captured."""
    return placed_at(value, device) if value.is_free else moved(value, device)


def device_name(device: Any) -> str:
    """The name of a device that is given by its name or by what has one."""
    return device if isinstance(device, str) else str(getattr(device, "name", device))
