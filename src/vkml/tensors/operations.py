"""Operations on tensors, as functions; most are methods of tensors, too."""

from __future__ import annotations

import math
from builtins import any as any_of
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkml.ir import DType, dtypes, scalar
from vkml.ir.gradients import converted, expanded, expression, reshaped
from vkml.tensors import tensor as core
from vkml.tensors.promotion import get_default_dtype, result_type
from vkml.tensors.views import Expanded, Permuted, Reshaped
from vkml.tracing import EMITTER, Traced, apply, apply_all, constant, number, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Operand: TypeAlias = "Tensor | bool | int | float"
INT64, BOOL = dtypes.INT64, dtypes.BOOL


def wrap(value: Traced) -> Tensor:
    """A tensor of a value."""
    return core.Tensor(value)


# -- operands ------------------------------------------------------------------------------------------------


def value_as(operand: Operand, dtype: DType) -> Traced:
    """A tensor's value, or a number of the program, in an element type."""
    if isinstance(operand, core.Tensor):
        return converted(EMITTER, operand.value, dtype)
    if isinstance(operand, bool | int | float | np.generic):
        return number(operand, dtype)
    if isinstance(operand, np.ndarray):
        return converted(EMITTER, core.Tensor(value_of(operand.copy())).value, dtype)
    raise TypeError(f"a tensor or a number is needed, not {type(operand).__name__}")


def _pair(op: str, x: Operand, y: Operand, dtype: DType | None = None, **attributes: Any) -> Tensor:
    """An operator of two operands of a common type, broadcast with each other."""
    kind = dtype or result_type(x, y)
    return wrap(_broadcast(op, value_as(x, kind), value_as(y, kind), **attributes))


def _broadcast(op: str, x: Traced, y: Traced, **attributes: Any) -> Traced:
    _check_broadcast(x.dims, y.dims)
    return apply(op, x, y, **attributes)


def _check_broadcast(x: Sequence[int], y: Sequence[int]) -> None:
    for axis in range(1, min(len(x), len(y)) + 1):
        a, b = x[-axis], y[-axis]
        if a != b and a != 1 and b != 1:
            raise RuntimeError(
                f"the size of tensor a ({a}) must match the size of tensor b ({b}) at axis "
                f"{max(len(x), len(y)) - axis}: the shapes are {list(x)} and {list(y)}"
            )


def filled(value: Traced, dims: Sequence[int]) -> Traced:
    """A value broadcast to a shape.

    Raises:
        RuntimeError: it does not fit.
    """
    own = value.dims
    more = len(dims) - len(own)
    if more < 0 or any_of(size not in (1, dims[more + at]) for at, size in enumerate(own)):
        raise RuntimeError(f"a value of shape {list(own)} does not fill the shape {list(dims)}")
    return expanded(EMITTER, value, dims)


def axis_of(dim: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        IndexError: there is none.
    """
    most = max(rank, 1)
    if not -most <= dim < most:
        raise IndexError(f"axis {dim} is out of range: expected one of {-most} to {most - 1}")
    return dim % most


def axes_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, all where none are named."""
    if dim is None:
        return tuple(range(rank))
    if isinstance(dim, int):
        return (axis_of(dim, rank),) if rank else ()
    return tuple(axis_of(one, rank) for one in dim) or tuple(range(rank))


def floating(x: Tensor) -> Traced:
    """A tensor's value as floats: integers become the default type."""
    return x.value if x.dtype.is_float else converted(EMITTER, x.value, get_default_dtype())


# -- arithmetic ----------------------------------------------------------------------------------------------


def add(x: Operand, y: Operand, *, alpha: float = 1) -> Tensor:
    """`x` + `alpha` `y`."""
    if alpha != 1:
        y = mul(y, alpha)
    kind = result_type(x, y)
    return _pair("Or", x, y, BOOL) if kind == BOOL else _pair("Add", x, y, kind)


def sub(x: Operand, y: Operand, *, alpha: float = 1) -> Tensor:
    """`x` - `alpha` `y`."""
    if result_type(x, y) == BOOL:
        raise RuntimeError("bools are not subtracted: use ^ or logical_not()")
    return _pair("Sub", x, mul(y, alpha) if alpha != 1 else y)


def mul(x: Operand, y: Operand) -> Tensor:
    """The product, element by element."""
    kind = result_type(x, y)
    return _pair("And", x, y, BOOL) if kind == BOOL else _pair("Mul", x, y, kind)


def div(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """The quotient, of floats; rounded down or toward 0 where that is asked for."""
    kind = result_type(x, y)
    if rounding_mode is None:
        return _pair("Div", x, y, kind if kind.is_float else get_default_dtype())
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(f"rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    if kind.is_float:
        quotient = _pair("Div", x, y, kind)
        return floor(quotient) if rounding_mode == "floor" else trunc(quotient)
    if rounding_mode == "trunc":
        return _pair("Div", x, y, kind)
    return sub(_pair("Div", x, y, kind), _is_short(x, y, kind))


def _is_short(x: Operand, y: Operand, kind: DType) -> Tensor:
    """1 where a quotient that is rounded toward 0 is greater than the one rounded down."""
    rest = _pair("Mod", x, y, kind, fmod=1)
    other = _pair("Less", mul(rest, y), 0, kind)
    return other.to(kind)


def floor_divide(x: Operand, y: Operand) -> Tensor:
    """The quotient rounded down."""
    return div(x, y, rounding_mode="floor")


def remainder(x: Operand, y: Operand) -> Tensor:
    """What is left by `floor_divide`, with the sign of `y`."""
    kind = result_type(x, y)
    return sub(x, mul(floor_divide(x, y), y)) if kind.is_float else _pair("Mod", x, y, kind, fmod=0)


def fmod(x: Operand, y: Operand) -> Tensor:
    """What is left by the quotient rounded toward 0, with the sign of `x`."""
    return _pair("Mod", x, y, fmod=1)


def pow(x: Operand, y: Operand) -> Tensor:
    """`x` to the power of `y`."""
    kind = result_type(x, y)
    if isinstance(y, core.Tensor):
        return _pair("Pow", x, y, kind)
    if kind.is_integer and y < 0:
        raise RuntimeError("integers to negative powers of integers are no integers")
    # Part of the structure: short powers are products.
    return wrap(apply("Pow", value_as(x, kind), constant(y, kind)))


def square(x: Tensor) -> Tensor:
    """x²."""
    return pow(x, 2)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The greater of two, element by element; NaN where either is."""
    return _pair("Max", x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """The smaller of two, element by element; NaN where either is."""
    return _pair("Min", x, y)


def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """`x` limited to [min, max]."""
    if min is None and max is None:
        raise RuntimeError("clamp needs min or max, or both")
    kind = result_type(x, *(bound for bound in (min, max) if bound is not None))
    if isinstance(min, core.Tensor) or isinstance(max, core.Tensor):
        found = x.to(kind)
        if min is not None:
            found = _pair("Max", found, min, kind)
        return _pair("Min", found, max, kind) if max is not None else found
    low, high = (None if bound is None else value_as(bound, kind) for bound in (min, max))
    if kind.is_float:  # without a bound ONNX limits infinity
        low = number(-math.inf, kind) if low is None else low
        high = number(math.inf, kind) if high is None else high
    return wrap(apply("Clip", value_as(x, kind), low, high))


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where the condition is true, `y` elsewhere."""
    kind = result_type(x, y)
    return wrap(
        apply("Where", converted(EMITTER, condition.value, BOOL), value_as(x, kind), value_as(y, kind))
    )


def lerp(x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """`x` + `weight` (`end` - `x`)."""
    return add(x, mul(sub(end, x), weight))


def _compared(op: str) -> Callable[[Operand, Operand], Tensor]:
    def compare(x: Operand, y: Operand) -> Tensor:
        kind = result_type(x, y)
        if kind == BOOL and op not in ("Equal",):
            kind = dtypes.INT32
        return _pair(op, x, y, kind)

    compare.__doc__ = f"{op}, element by element: bools."
    return compare


eq, lt, le, gt, ge = map(_compared, ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))


def ne(x: Operand, y: Operand) -> Tensor:
    """Where two differ."""
    return logical_not(eq(x, y))


def logical_not(x: Tensor) -> Tensor:
    """Where elements are 0."""
    return wrap(apply("Not", converted(EMITTER, x.value, BOOL)))


def _logical(op: str) -> Callable[[Tensor, Tensor], Tensor]:
    def act(x: Tensor, y: Tensor) -> Tensor:
        return _pair(op, x, y, BOOL)

    act.__doc__ = f"{op} of what is not 0."
    return act


logical_and, logical_or, logical_xor = map(_logical, ("And", "Or", "Xor"))


def _bits(op: str, of_bools: str) -> Callable[[Operand, Operand], Tensor]:
    def act(x: Operand, y: Operand) -> Tensor:
        kind = result_type(x, y)
        if kind.is_float:
            raise RuntimeError(f"{op} is not defined for {kind.numpy_name}")
        return _pair(of_bools if kind == BOOL else op, x, y, kind)

    act.__doc__ = f"{op} of integers; logical of bools."
    return act


bitwise_and = _bits("BitwiseAnd", "And")
bitwise_or = _bits("BitwiseOr", "Or")
bitwise_xor = _bits("BitwiseXor", "Xor")


def bitwise_not(x: Tensor) -> Tensor:
    """Every bit the other way round; bools likewise."""
    return logical_not(x) if x.dtype == BOOL else wrap(apply("BitwiseNot", x.value))


# -- functions of one element --------------------------------------------------------------------------------


def _unary(op: str, *, keeps_type: bool = False, **attributes: Any) -> Callable[[Tensor], Tensor]:
    def act(x: Tensor) -> Tensor:
        return wrap(apply(op, x.value if keeps_type else floating(x), **attributes))

    act.__doc__ = f"ONNX's {op}, element by element."
    return act


neg, abs, sign = (_unary(op, keeps_type=True) for op in ("Neg", "Abs", "Sign"))
exp, log, sqrt, reciprocal = map(_unary, ("Exp", "Log", "Sqrt", "Reciprocal"))
sin, cos, tan, asin, acos, atan = map(_unary, ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"))
sinh, cosh, tanh, asinh, acosh, atanh = map(_unary, ("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"))
erf, sigmoid = map(_unary, ("Erf", "Sigmoid"))
floor, ceil, round = (_unary(op) for op in ("Floor", "Ceil", "Round"))
isnan, isinf = (_unary(op) for op in ("IsNaN", "IsInf"))
relu = _unary("Relu", keeps_type=True)


def _written(operation: str) -> Callable[[Tensor], Tensor]:
    """A function that ONNX has no operator for."""

    def act(x: Tensor) -> Tensor:
        value = floating(x)
        form = scalar.unary(operation, scalar.argument(0, value.type.dtype))
        return wrap(expression(EMITTER, form, [value], value.type.dtype))

    act.__doc__ = f"{operation}, element by element."
    return act


expm1, log1p = map(_written, ("expm1", "log1p"))


def trunc(x: Tensor) -> Tensor:
    """Without the fraction."""
    return where(lt(x, 0), ceil(x), floor(x)) if x.dtype.is_float else x


def rsqrt(x: Tensor) -> Tensor:
    """1 / √x."""
    return reciprocal(sqrt(x))


def log2(x: Tensor) -> Tensor:
    """The logarithm to the base of 2."""
    return mul(log(x), 1 / math.log(2))


def log10(x: Tensor) -> Tensor:
    """The logarithm to the base of 10."""
    return mul(log(x), 1 / math.log(10))


def isfinite(x: Tensor) -> Tensor:
    """Where elements are neither infinite nor NaN."""
    return logical_not(logical_or(isnan(x), isinf(x)))


# -- products ------------------------------------------------------------------------------------------------


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices, batches of them, or vectors."""
    if not x.ndim or not y.ndim:
        raise RuntimeError("both factors of a matrix product need at least one axis")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise RuntimeError(f"the shapes {list(x.shape)} and {list(y.shape)} cannot be multiplied")
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"factors of a matrix product have one type, not {x.dtype.numpy_name} and {y.dtype.numpy_name}"
        )
    return wrap(apply("MatMul", x.value, y.value))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
    """
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"linear: the input has {x.shape[-1]} features, the weight {list(weight.shape)} takes "
            f"{weight.shape[-1]}"
        )
    if x.ndim == 2:
        given = [x.value, weight.value] + ([] if bias is None else [bias.value])
        return wrap(apply("Gemm", *given, transB=1))
    found = apply("MatMul", x.value, apply("Transpose", weight.value, perm=(1, 0)))
    return wrap(found if bias is None else apply("Add", found, bias.value))


# -- reductions ----------------------------------------------------------------------------------------------


def _reduced(op: str, x: Traced, axes: Sequence[int], keepdim: bool) -> Traced:
    if not x.type.shape:
        return x
    return apply(op, x, constant(list(axes), INT64), keepdims=int(keepdim))


def sum(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over axes, over all where none are named; of integers in int64."""
    kind = dtype or (x.dtype if x.dtype.is_float else INT64)
    return wrap(_reduced("ReduceSum", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def mean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean over axes, of floats."""
    kind = dtype or x.dtype
    if not kind.is_float:
        raise RuntimeError(f"the mean of {kind.numpy_name}: convert it, or say dtype=")
    return wrap(_reduced("ReduceMean", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The product over an axis, or of all elements; of integers in int64."""
    kind = dtype or (x.dtype if x.dtype.is_float else INT64)
    return wrap(_reduced("ReduceProd", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def amax(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The greatest over axes; NaN where there is one."""
    return wrap(_reduced("ReduceMax", x.value, axes_of(dim, x.ndim), keepdim))


def amin(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest over axes; NaN where there is one."""
    return wrap(_reduced("ReduceMin", x.value, axes_of(dim, x.ndim), keepdim))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the greatest element is, along an axis or among all."""
    return _place("ArgMax", x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest element is, along an axis or among all."""
    return _place("ArgMin", x, dim, keepdim)


def _place(op: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    value = x.value if dim is not None else reshaped(EMITTER, x.value, (x.numel(),))
    if not value.type.shape:
        return wrap(constant(0, INT64))
    return wrap(apply(op, value, axis=axis_of(dim or 0, len(value.dims)), keepdims=int(keepdim)))


def var(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: float = 1, keepdim: bool = False
) -> Tensor:
    """The variance over axes, its divisor the number of elements less `correction`."""
    axes = axes_of(dim, x.ndim)
    count = math.prod(x.shape[axis] for axis in axes)
    off = sub(x, mean(x, axes, True))
    return mul(
        sum(mul(off, off), axes, keepdim), 1 / max(count - correction, 0) if count > correction else math.nan
    )


def std(
    x: Tensor, dim: int | Sequence[int] | None = None, *, correction: float = 1, keepdim: bool = False
) -> Tensor:
    """The root of `var`."""
    return sqrt(var(x, dim, correction=correction, keepdim=keepdim))


def all(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Whether all elements along an axis are not 0."""
    whole = converted(EMITTER, converted(EMITTER, x.value, BOOL), dtypes.INT32)
    return wrap(converted(EMITTER, _reduced("ReduceMin", whole, axes_of(dim, x.ndim), keepdim), BOOL))


def any(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Whether an element along an axis is not 0."""
    whole = converted(EMITTER, converted(EMITTER, x.value, BOOL), dtypes.INT32)
    return wrap(converted(EMITTER, _reduced("ReduceMax", whole, axes_of(dim, x.ndim), keepdim), BOOL))


def logsumexp(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """log Σ exp over axes, without overflow."""
    return wrap(_reduced("ReduceLogSumExp", floating(x), axes_of(dim, x.ndim), keepdim))


def norm(x: Tensor, p: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The p-norm over axes."""
    axes = axes_of(dim, x.ndim)
    if p in (1, 2):
        return wrap(_reduced(f"ReduceL{int(p)}", floating(x), axes, keepdim))
    if p == math.inf:
        return amax(abs(x), axes, keepdim)
    return pow(sum(pow(abs(x), p), axes, keepdim), 1 / p)


def softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """exp x / Σ exp x along an axis."""
    return wrap(apply("Softmax", floating(x.to(dtype) if dtype else x), axis=axis_of(dim, x.ndim)))


def log_softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """The logarithm of `softmax`."""
    return wrap(apply("LogSoftmax", floating(x.to(dtype) if dtype else x), axis=axis_of(dim, x.ndim)))


def cumsum(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Sums of all elements up to each, along an axis."""
    kind = dtype or (x.dtype if x.dtype.is_float else INT64)
    return wrap(apply("CumSum", converted(EMITTER, x.value, kind), constant(axis_of(dim, x.ndim), INT64)))


# -- shapes --------------------------------------------------------------------------------------------------


def _dims_of(given: Sequence[Any]) -> tuple[int, ...]:
    """Sizes given one by one, or as one sequence."""
    if len(given) == 1 and isinstance(given[0], tuple | list):
        given = given[0]
    return tuple(int(size) for size in given)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements under another shape, of which one size may be -1."""
    dims, count = list(_dims_of(shape)), x.numel()
    if dims.count(-1) > 1:
        raise RuntimeError("only one size can be -1")
    if -1 in dims:
        rest = -math.prod(dims)
        if not rest or count % rest:
            raise RuntimeError(f"the shape {dims} is not one for {count} elements")
        dims[dims.index(-1)] = count // rest
    if math.prod(dims) != count or min(dims, default=0) < 0:
        raise RuntimeError(f"the shape {dims} is not one for {count} elements")
    return x._shown(Reshaped(tuple(dims)))


def permute(x: Tensor, *order: Any) -> Tensor:
    """The axes in another order."""
    axes = tuple(axis_of(axis, x.ndim) for axis in _dims_of(order))
    if sorted(axes) != list(range(x.ndim)):
        raise RuntimeError(f"{list(order)} is no order of {x.ndim} axes")
    return x._shown(Permuted(axes))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(x.ndim))
    if order:
        a, b = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """A range of axes as one."""
    if not x.ndim:
        return reshape(x, 1)
    start, end = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if start > end:
        raise RuntimeError("flatten: start_dim lies behind end_dim")
    return reshape(x, *x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of one element."""
    axes = axes_of(dim, x.ndim) if dim is not None else range(x.ndim)
    return reshape(x, *(size for at, size in enumerate(x.shape) if size != 1 or at not in axes))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With an axis of one element more."""
    at = axis_of(dim, x.ndim + 1)
    return reshape(x, *x.shape[:at], 1, *x.shape[at:])


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """Repeated along axes of one element; -1 leaves a size as it is."""
    wanted = _dims_of(sizes)
    more = len(wanted) - x.ndim
    dims = tuple(x.shape[at - more] if size == -1 and at >= more else size for at, size in enumerate(wanted))
    _check_broadcast(x.shape, dims)
    if more < 0 or [size for size, own in zip(dims[more:], x.shape, strict=True) if own not in (1, size)]:
        raise RuntimeError(f"a tensor of shape {list(x.shape)} does not expand to {list(wanted)}")
    return x._shown(Expanded(dims))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`expand` to a shape."""
    return expand(x, *shape)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one behind the other along an axis."""
    if not tensors:
        raise RuntimeError("cat needs at least one tensor")
    kind = result_type(*tensors)
    axis = axis_of(dim, tensors[0].ndim)
    for other in tensors[1:]:
        if other.ndim != tensors[0].ndim or [
            at for at in range(other.ndim) if at != axis and other.shape[at] != tensors[0].shape[at]
        ]:
            raise RuntimeError(
                f"tensors of the shapes {list(tensors[0].shape)} and {list(other.shape)} do not join along "
                f"axis {dim}"
            )
    return wrap(apply("Concat", *(value_as(tensor, kind) for tensor in tensors), axis=axis))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one behind the other along a new axis."""
    return cat([unsqueeze(tensor, dim) for tensor in tensors], dim)


def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis, of one size, or of sizes that are named."""
    axis = axis_of(dim, x.ndim)
    whole = x.shape[axis]
    if isinstance(size, int):
        sizes = [min_of(size, whole - at) for at in range(0, whole, size)] or [0]
    else:
        sizes = list(size)
    ends = [int(end) for end in np.cumsum(sizes)]
    if ends[-1] != whole:
        raise RuntimeError(f"parts of {sizes} are not an axis of {whole}")
    index: list[Any] = [slice(None)] * x.ndim
    parts = []
    for end, part in zip(ends, sizes, strict=True):
        index[axis] = slice(end - part, end)
        parts.append(x[tuple(index)])
    return tuple(parts)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """So many parts along an axis, the last one smaller where need be."""
    return split(x, max(-(-x.shape[dim] // chunks), 1), dim)


def min_of(x: int, y: int) -> int:
    """The smaller of two numbers."""
    return x if x < y else y


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements at indices along an axis."""
    return wrap(apply("GatherElements", x.value, index.value, axis=axis_of(dim, x.ndim)))


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows of an axis by number."""
    return wrap(apply("Gather", x.value, index.value, axis=axis_of(dim, x.ndim)))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and below a diagonal, zeros elsewhere."""
    return wrap(apply("Trilu", x.value, constant(diagonal, INT64), upper=0))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and above a diagonal, zeros elsewhere."""
    return wrap(apply("Trilu", x.value, constant(diagonal, INT64), upper=1))


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The greatest or smallest elements along an axis, and where they are."""
    values, places = apply_all(
        "TopK", [x.value, constant([k], INT64)], 2,
        axis=axis_of(dim, x.ndim), largest=int(largest), sorted=int(sorted),
    )  # fmt: skip
    return wrap(values), wrap(places)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """All elements along an axis in order, and where they were."""
    return (
        topk(x, x.shape[axis_of(dim, x.ndim)], dim, descending) if x.ndim else (x, wrap(constant(0, INT64)))
    )
