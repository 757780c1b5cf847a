"""Vector-Jacobian products: what operators ask for to write their gradients in operators.

An operator states its product beside its type rule and its evaluation (`Operator.vjp`). It is written over an
`Emitter`, which applies operators to values of some kind, so that a gradient is a graph like any other: it is
fused, placed, run and differentiated once more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.ir import scalar
from vkml.ir.dtypes import INT64, DType
from vkml.ir.scalar import Scalar, arithmetic_type, constant, ordered, substituted
from vkml.ir.scalar_derivatives import times
from vkml.ir.size import Size
from vkml.ir.types import TensorType

if TYPE_CHECKING:
    from vkml.ir.graph import Node

_FORMS_KEPT = 4096

T = TypeVar("T")
"""A value that operators are applied to."""


class Emitter(Protocol[T]):
    """Applies operators, in their newest form, to values of the kind `T`."""

    def apply(self, op: str, *inputs: T | None, domain: str = "", **attributes: Any) -> T:
        """The first output of an operator.

        Args:
            op: its name.
            inputs: None where one is absent.
            domain: the operator's.
            attributes: those that are not the default's.
        """

    def apply_all(
        self, op: str, inputs: Sequence[T | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[T]:
        """The first `outputs` outputs of an operator."""

    def constant(self, value: Any, dtype: DType) -> T:
        """A tensor of known elements: shapes, axes, numbers."""

    def type_of(self, value: T) -> TensorType:
        """The type of a value, whose sizes are known."""

    def elements_of(self, value: T) -> np.ndarray[Any, Any] | None:
        """A constant's elements; None for other values."""

    def note_sum(self, value: T, axis: int, total: T) -> None:
        """Notes what a value's sum along an axis is, that of one element there."""

    def known_sum(self, value: T, axis: int) -> T | None:
        """What `note_sum` noted."""

    def pulled_back(
        self,
        write: Callable[[], Sequence[T | None]],
        inputs: Sequence[T | None],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> list[T | None]:
        """Cotangents of inputs by the operators that `write` applies to them.

        Args:
            write: applies operators; its results are what the cotangents are of, None where there is none.
            inputs: what it reads.
            cotangents: of its results, None where one has none.
            needed: of each input, whether its cotangent is wanted.
        """


def reshaped(build: Emitter[T], x: T, dims: Sequence[int]) -> T:
    """`x` under another shape of as many elements."""
    if build.type_of(x).dims == tuple(dims):
        return x
    return build.apply("Reshape", x, build.constant(list(dims), INT64), allowzero=1)


def expanded(build: Emitter[T], x: T, dims: Sequence[int]) -> T:
    """`x` broadcast to a shape."""
    if build.type_of(x).dims == tuple(dims):
        return x
    return build.apply("Expand", x, build.constant(list(dims), INT64))


def transposed(build: Emitter[T], x: T, order: Sequence[int]) -> T:
    """`x` with its axes in another order."""
    return x if list(order) == list(range(len(order))) else build.apply("Transpose", x, perm=tuple(order))


def summed(build: Emitter[T], x: T, axes: Sequence[int], *, keep: bool = False) -> T:
    """The sum over axes; over none it is `x`."""
    if not axes:
        return x
    known = build.known_sum(x, axes[0]) if len(axes) == 1 else None
    if known is not None:
        dims = build.type_of(known).dims
        return known if keep else reshaped(build, known, (*dims[: axes[0]], *dims[axes[0] + 1 :]))
    return build.apply("ReduceSum", x, build.constant(list(axes), INT64), keepdims=int(keep))


def sum_to(build: Emitter[T], x: T, dims: Sequence[int]) -> T:
    """The sum of `x` over the axes along which a tensor of shape `dims` was broadcast to its shape."""
    found = build.type_of(x).dims
    more = len(found) - len(dims)
    axes = [axis for axis, size in enumerate(found) if size != 1 and (axis < more or dims[axis - more] == 1)]
    return reshaped(build, summed(build, x, axes), dims)


def sliced(build: Emitter[T], x: T, axis: int, start: int, end: int) -> T:
    """The elements `start` … `end` - 1 along an axis."""
    if start == 0 and end == build.type_of(x).dims[axis]:
        return x
    stated = [build.constant([entry], INT64) for entry in (start, end, axis)]
    return build.apply("Slice", x, *stated)


def reversed_along(build: Emitter[T], x: T, axes: Sequence[int]) -> T:
    """`x` with its elements along axes in reverse order."""
    starts, ends = [-1] * len(axes), [-(2**62)] * len(axes)
    stated = [build.constant(entries, INT64) for entries in (starts, ends, list(axes), starts)]
    return build.apply("Slice", x, *stated)


def padded(build: Emitter[T], x: T, begins: Sequence[int], ends: Sequence[int]) -> T:
    """`x` with zeros before and behind every axis; negative counts crop."""
    if not any(begins) and not any(ends):
        return x
    return build.apply("Pad", x, build.constant([*begins, *ends], INT64))


def behind(build: Emitter[T], x: T, other: T) -> T:
    """A copy of a value that is not there before another one is.

    What reads it could else run at once, for plans begin everything as early as they can, and what it makes
    would be kept beside all that others make. That goes for what is made of one operand alone, too.
    """
    first = reshaped(build, sliced(build, reshaped(build, other, (-1,)), 0, 0, 1), ())
    kind = scalar.arithmetic_type(build.type_of(x).dtype)
    one, another = (scalar.argument(at, build.type_of(value).dtype) for at, value in enumerate((x, first)))
    # Selects the value, whatever the other one is: nothing is less than itself.
    form = scalar.where(another < another, scalar.convert(another, kind), one)
    return expression(build, form, [x, first], build.type_of(x).dtype)


def zeros(build: Emitter[T], type_: TensorType) -> T:
    """A tensor of zeros."""
    return expanded(build, build.constant(0, type_.dtype), type_.dims)


def converted(build: Emitter[T], x: T, dtype: DType) -> T:
    """`x` in another element type."""
    return x if build.type_of(x).dtype == dtype else build.apply("Cast", x, to=dtype.code)


def conjugate(build: Emitter[T], x: T) -> T:
    """The conjugate of complex `x`; floats are their own."""
    return build.apply("Conj", x, domain="vkml") if build.type_of(x).dtype.is_complex else x


def widened(build: Emitter[T], x: T) -> T:
    """`x` in the type in which its elements are computed: floats of 16 bits as float32."""
    return converted(build, x, arithmetic_type(build.type_of(x).dtype))


def expression(build: Emitter[T], form: Scalar, values: Sequence[T], dtype: DType) -> T:
    """A form applied to elements at the same (broadcast) places.

    Args:
        build: the emitter.
        form: of arguments that are elements of `values`.
        values: those that the form does not name may be any.
        dtype: of the result.
    """
    compact, used = _compact(form, tuple([build.type_of(value).dtype for value in values]), dtype)
    return build.apply("Expression", *[values[at] for at in used], domain="vkml", form=compact, to=dtype.code)


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _compact(form: Scalar, types: tuple[DType, ...], dtype: DType) -> tuple[Scalar, tuple[int, ...]]:
    """A form of the values alone that it names, and which these are."""
    used = sorted({int(part.value) for part in ordered([form]) if part.operation == "argument"})
    given = {at: scalar.argument(n, types[at]) for n, at in enumerate(used)}
    made = substituted(
        scalar.convert(form, dtype), lambda x: given[int(x.value)] if x.operation == "argument" else None
    )
    return made, tuple(used)


def arguments(build: Emitter[T], values: Sequence[T | None]) -> list[Scalar | None]:
    """An element of each value: a number where it has only one, which is known; None for what is absent."""
    found: list[Scalar | None] = []
    for at, value in enumerate(values):
        if value is None:
            found.append(None)
            continue
        dtype, elements = build.type_of(value).dtype, build.elements_of(value)
        if elements is not None and elements.size == 1:
            found.append(constant(elements.reshape(-1)[0].item(), dtype))
        else:
            found.append(scalar.argument(at, dtype))
    return found


def pointwise(build: Emitter[T], form: Callable[..., Scalar], *values: T, dtype: DType | None = None) -> T:
    """A form applied to elements at the same (broadcast) places of floats.

    Args:
        build: the emitter.
        form: a function of one element of each value, in the widest of the types in which these are computed.
        values: that the form is of.
        dtype: of the result; by default the first value's.
    """
    result = dtype or build.type_of(values[0]).dtype
    elements = [element for element in arguments(build, values) if element is not None]
    return expression(build, _of_elements(form, elements), values, result)


def reciprocal(build: Emitter[T], count: int | Size, dtype: DType) -> T:
    """1 over a number of elements, in the type that elements of `dtype` are computed in.

    The forms of `pointwise` read it as a number where the count is known, and as a value where it is open.
    """
    wide = arithmetic_type(dtype)
    if isinstance(count, Size):
        return build.apply("Reciprocal", build.apply("Cast", build.constant(count, INT64), to=wide.code))
    return build.constant(1 / count, wide)


def pointwise_of_arguments(build: Emitter[T], form: Callable[..., Scalar], *values: T) -> T:
    """As `pointwise`, for a form that is a function of a module's; constants are read like other values.

    What such a form comes to for elements of these types is kept.
    """
    types = tuple([build.type_of(value).dtype for value in values])
    compact, used = _compact(_of_arguments(form, types), types, types[0])
    return build.apply(
        "Expression", *[values[at] for at in used], domain="vkml", form=compact, to=types[0].code
    )


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _of_arguments(form: Callable[..., Scalar], types: tuple[DType, ...]) -> Scalar:
    return _of_elements(form, [scalar.argument(at, dtype) for at, dtype in enumerate(types)])


def _of_elements(form: Callable[..., Scalar], elements: Sequence[Scalar]) -> Scalar:
    wide = max((element.dtype for element in elements), key=lambda type_: type_.bits)
    return form(*(scalar.convert(element, wide) for element in elements))


Elements = tuple["Scalar | None", ...]
_PASSES = object()
_products: dict[Hashable, tuple[Node, object]] = {}


def pointwise_vjp(
    build: Emitter[T],
    node: Node,
    write: Callable[[Elements, Sequence[DType | None], DType], Scalar | None],
    slope: Callable[[Scalar, Elements, int], Scalar | None],
    inputs: Sequence[T | None],
    output: T,
    cotangent: T,
    needed: Sequence[bool],
) -> list[T | None]:
    """The product of a pointwise operator, from its scalar form.

    What it comes to for a node and elements of these types is kept.

    Args:
        build: the emitter.
        node: of the operator.
        write: gives its form of elements, their types and that of the result; None where it has none.
        slope: the derivative of a form by an argument.
        inputs: of the node.
        output: of the node; read instead of computed again where the derivative contains it.
        cotangent: of the output.
        needed: of each input, whether its product is wanted.

    Raises:
        NotDifferentiable: there is no form.
    """
    elements = tuple(arguments(build, inputs))
    types = tuple([None if value is None else build.type_of(value).dtype for value in inputs])
    result, incoming = build.type_of(output).dtype, build.type_of(cotangent).dtype
    made: list[T | None] = []
    values = [*_present(inputs, cotangent), cotangent, output]
    for at, value in enumerate(inputs):
        if value is None or not needed[at]:
            made.append(None)
            continue
        key = (id(node), elements, types, result, incoming, at)
        kept = _products.get(key)
        if kept is None:
            if len(_products) >= _FORMS_KEPT:
                _products.clear()
            product = _product(node, write, slope, elements, types, result, incoming, at)
            kept = _products[key] = (node, product)  # with the node, nothing else has its number
        type_ = build.type_of(value)
        if kept[1] is None:
            made.append(None)
            continue
        if kept[1] is _PASSES:
            found = converted(build, cotangent, type_.dtype)
        else:
            assert isinstance(kept[1], Scalar)
            if type_.dtype.is_complex:
                found = _complex_product(build, kept[1], values, cotangent, type_.dtype)
            else:
                found = expression(build, kept[1], values, type_.dtype)
        made.append(sum_to(build, found, type_.dims))
    return made


def _complex_product(build: Emitter[T], slope: Scalar, values: Sequence[T], cotangent: T, dtype: DType) -> T:
    """The conjugate of a derivative times a cotangent.

    So the gradient of a real function by x + iy is its derivative by x plus i times that by y, as PyTorch has
    it. The conjugate is an operator of its own, no step of the form, for forms have one derivative each.
    """
    if slope.is_constant:
        factor = build.constant(complex(slope.value).conjugate(), dtype)
    else:
        factor = conjugate(build, expression(build, slope, values, dtype))
    return build.apply("Mul", factor, cotangent)


def _product(
    node: Node,
    write: Callable[[Elements, Sequence[DType | None], DType], Scalar | None],
    slope: Callable[[Scalar, Elements, int], Scalar | None],
    elements: Elements,
    types: Sequence[DType | None],
    result: DType,
    incoming: DType,
    at: int,
) -> object:
    """The form of an input's product: of inputs, cotangent and output; `_PASSES`, or None for 0.

    Of complex numbers that of the derivative alone.
    """
    form = write(elements, types, result)
    if form is None:
        raise NotDifferentiable(f"{node.op} has no gradient by any of its inputs")
    found = slope(form, elements, at)
    if found is None:
        return None
    last = len(types)
    if arithmetic_type(result) == result and form.operation in _KEPT:
        # What 16 bits have rounded is not what the derivative is made of.
        known = scalar.argument(last + 1, result)
        found = substituted(found, lambda x: known if x is form else None)
    if found.is_constant and found.value == 1:
        return _PASSES
    if found.dtype.is_complex:
        return found
    return times(found, scalar.convert(scalar.argument(last, incoming), found.dtype))


_KEPT = frozenset(("exp", "expm1", "sigmoid", "tanh", "sqrt", "tan", "power", "divide"))
"""Operations whose derivative is simple in the result."""


def _present(values: Sequence[T | None], other: T) -> list[T]:
    """The values, another in the place of those that are absent, which nothing reads."""
    return [other if value is None else value for value in values]
