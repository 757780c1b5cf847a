"""Methods of tensors that are operations, in place and not, beside those that `Tensor` itself states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkml.ir import DType, dtypes
from vkml.ir.size import is_deciding
from vkml.tensors import operations as op
from vkml.tensors.history import AccumulateGrad, GradientNode, gradient_node
from vkml.tensors.views import contiguous_strides
from vkml.tracing.value import next_serial

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives a tensor the result of an operation on it, and returns it."""

    @functools.wraps(function, updated=())
    def act(self: Any, *arguments: Any, **options: Any) -> Any:
        start = next_serial()
        return self._become(function(self, *arguments, **options), start)

    act.__name__ = act.__qualname__ = f"{function.__name__}_"
    act.__doc__ = f"`{function.__name__}` in place; returns it."
    return act


class Operations:
    """What tensors have of `vkml.tensors.operations`."""

    __slots__ = ()

    cholesky, det, inverse, logdet, matrix_exp = op.cholesky, op.det, op.inverse, op.logdet, op.matrix_exp
    pinverse, slogdet, split_with_sizes = op.pinverse, op.slogdet, op.split_with_sizes
    select_scatter, slice_scatter = op.select_scatter, op.slice_scatter
    diagonal_scatter, is_nonzero = op.diagonal_scatter, op.is_nonzero
    absolute, addbmm, addcdiv, addcmul, addmm = op.absolute, op.addbmm, op.addcdiv, op.addcmul, op.addmm
    addmv, addr, adjoint, allclose, aminmax = op.addmv, op.addr, op.adjoint, op.allclose, op.aminmax
    arccos, arccosh, arcsin, arcsinh, arctan = op.arccos, op.arccosh, op.arcsin, op.arcsinh, op.arctan
    arctan2, arctanh, argsort, argwhere, atan2 = op.arctan2, op.arctanh, op.argsort, op.argwhere, op.atan2
    baddbmm, bincount, bitwise_left_shift = op.baddbmm, op.bincount, op.bitwise_left_shift
    bitwise_right_shift, bmm, clamp_max = op.bitwise_right_shift, op.bmm, op.clamp_max
    clamp_min, copysign, corrcoef, count_nonzero = op.clamp_min, op.copysign, op.corrcoef, op.count_nonzero
    cov, cross, cummax, cummin, cumprod = op.cov, op.cross, op.cummax, op.cummin, op.cumprod
    deg2rad, diag, diag_embed, diagflat = op.deg2rad, op.diag, op.diag_embed, op.diagflat
    diagonal, diff, dist, dot, dsplit, equal = op.diagonal, op.diff, op.dist, op.dot, op.dsplit, op.equal
    digamma, i0, istft, lgamma, stft = op.digamma, op.i0, op.istft, op.lgamma, op.stft
    erfc, erfinv, exp2, fix, flip, fliplr = op.erfc, op.erfinv, op.exp2, op.fix, op.flip, op.fliplr
    flipud, float_power, fmax, fmin, frac = op.flipud, op.float_power, op.fmax, op.fmin, op.frac
    gcd, ger, greater, greater_equal, heaviside = op.gcd, op.ger, op.greater, op.greater_equal, op.heaviside
    histc, hsplit, hypot, index_add, index_copy = op.histc, op.hsplit, op.hypot, op.index_add, op.index_copy
    index_fill, index_put, inner, isclose = op.index_fill, op.index_put, op.inner, op.isclose
    isneginf, isposinf, isreal, kron, kthvalue = op.isneginf, op.isposinf, op.isreal, op.kron, op.kthvalue
    lcm, ldexp, less, less_equal, logaddexp = op.lcm, op.ldexp, op.less, op.less_equal, op.logaddexp
    logaddexp2, logcumsumexp, logit, masked_fill = op.logaddexp2, op.logcumsumexp, op.logit, op.masked_fill
    masked_scatter, masked_select, matrix_power = op.masked_scatter, op.masked_select, op.matrix_power
    max, median, min, mode, moveaxis, movedim = op.max, op.median, op.min, op.mode, op.moveaxis, op.movedim
    msort, mv, nan_to_num, nanmean, nanmedian = op.msort, op.mv, op.nan_to_num, op.nanmean, op.nanmedian
    nanquantile, nansum, narrow, negative = op.nanquantile, op.nansum, op.narrow, op.negative
    nextafter, nonzero, not_equal, outer = op.nextafter, op.nonzero, op.not_equal, op.outer
    positive, quantile, rad2deg, ravel, repeat = op.positive, op.quantile, op.rad2deg, op.ravel, op.repeat
    repeat_interleave, roll, rot90, scatter = op.repeat_interleave, op.roll, op.rot90, op.scatter
    scatter_add, scatter_reduce, select, signbit = op.scatter_add, op.scatter_reduce, op.select, op.signbit
    sinc, std_mean, swapaxes, swapdims, take = op.sinc, op.std_mean, op.swapaxes, op.swapdims, op.take
    take_along_dim, tensor_split, tile, trace = op.take_along_dim, op.tensor_split, op.tile, op.trace
    true_divide, unbind, unflatten, unfold = op.true_divide, op.unbind, op.unflatten, op.unfold
    unique, unique_consecutive, var_mean, vdot = op.unique, op.unique_consecutive, op.var_mean, op.vdot
    vecdot, vsplit, xlogy = op.vecdot, op.vsplit, op.xlogy
    angle, conj, resolve_conj, sgn = op.angle, op.conj, op.resolve_conj, op.sgn

    # -- in place -------------------------------------------------------------------------------------------

    abs_ = _in_place(op.abs)
    absolute_ = _in_place(op.absolute)
    acos_ = _in_place(op.acos)
    acosh_ = _in_place(op.acosh)
    asin_ = _in_place(op.asin)
    asinh_ = _in_place(op.asinh)
    atan_ = _in_place(op.atan)
    atanh_ = _in_place(op.atanh)
    arccos_ = _in_place(op.arccos)
    arcsin_ = _in_place(op.arcsin)
    arctan_ = _in_place(op.arctan)
    ceil_ = _in_place(op.ceil)
    cos_ = _in_place(op.cos)
    cosh_ = _in_place(op.cosh)
    exp_ = _in_place(op.exp)
    exp2_ = _in_place(op.exp2)
    expm1_ = _in_place(op.expm1)
    floor_ = _in_place(op.floor)
    frac_ = _in_place(op.frac)
    log_ = _in_place(op.log)
    log10_ = _in_place(op.log10)
    log1p_ = _in_place(op.log1p)
    log2_ = _in_place(op.log2)
    neg_ = _in_place(op.neg)
    negative_ = _in_place(op.negative)
    reciprocal_ = _in_place(op.reciprocal)
    relu_ = _in_place(op.relu)
    round_ = _in_place(op.round)
    rsqrt_ = _in_place(op.rsqrt)
    sigmoid_ = _in_place(op.sigmoid)
    sign_ = _in_place(op.sign)
    sin_ = _in_place(op.sin)
    sinh_ = _in_place(op.sinh)
    sinc_ = _in_place(op.sinc)
    sqrt_ = _in_place(op.sqrt)
    square_ = _in_place(op.square)
    tan_ = _in_place(op.tan)
    tanh_ = _in_place(op.tanh)
    trunc_ = _in_place(op.trunc)
    fix_ = _in_place(op.fix)
    erf_ = _in_place(op.erf)
    erfinv_ = _in_place(op.erfinv)
    erfc_ = _in_place(op.erfc)
    digamma_ = _in_place(op.digamma)
    i0_ = _in_place(op.i0)
    lgamma_ = _in_place(op.lgamma)

    def polygamma(self: Any, n: int) -> Any:
        """The derivative of `digamma` of an order."""
        return op.polygamma(n, self)

    def polygamma_(self: Any, n: int) -> Any:
        """Gives each element that of the derivative of `digamma` of an order; returns it."""
        return self._become(op.polygamma(n, self))

    nan_to_num_ = _in_place(op.nan_to_num)
    logit_ = _in_place(op.logit)
    deg2rad_ = _in_place(op.deg2rad)
    rad2deg_ = _in_place(op.rad2deg)
    pow_ = _in_place(op.pow)
    float_power_ = _in_place(op.float_power)
    floor_divide_ = _in_place(op.floor_divide)
    remainder_ = _in_place(op.remainder)
    fmod_ = _in_place(op.fmod)
    bitwise_and_ = _in_place(op.bitwise_and)
    bitwise_or_ = _in_place(op.bitwise_or)
    bitwise_xor_ = _in_place(op.bitwise_xor)
    bitwise_not_ = _in_place(op.bitwise_not)
    bitwise_left_shift_ = _in_place(op.bitwise_left_shift)
    bitwise_right_shift_ = _in_place(op.bitwise_right_shift)
    logical_and_ = _in_place(op.logical_and)
    logical_or_ = _in_place(op.logical_or)
    logical_not_ = _in_place(op.logical_not)
    logical_xor_ = _in_place(op.logical_xor)
    eq_ = _in_place(op.eq)
    ne_ = _in_place(op.ne)
    lt_ = _in_place(op.lt)
    le_ = _in_place(op.le)
    gt_ = _in_place(op.gt)
    ge_ = _in_place(op.ge)
    atan2_ = _in_place(op.atan2)
    hypot_ = _in_place(op.hypot)
    copysign_ = _in_place(op.copysign)
    nextafter_ = _in_place(op.nextafter)
    xlogy_ = _in_place(op.xlogy)
    heaviside_ = _in_place(op.heaviside)
    clamp_min_ = _in_place(op.clamp_min)
    clamp_max_ = _in_place(op.clamp_max)
    addcmul_ = _in_place(op.addcmul)
    addcdiv_ = _in_place(op.addcdiv)
    addmm_ = _in_place(op.addmm)
    addmv_ = _in_place(op.addmv)
    addr_ = _in_place(op.addr)
    baddbmm_ = _in_place(op.baddbmm)
    addbmm_ = _in_place(op.addbmm)
    masked_fill_ = _in_place(op.masked_fill)
    masked_scatter_ = _in_place(op.masked_scatter)
    scatter_ = _in_place(op.scatter)
    scatter_add_ = _in_place(op.scatter_add)
    scatter_reduce_ = _in_place(op.scatter_reduce)
    index_add_ = _in_place(op.index_add)
    index_copy_ = _in_place(op.index_copy)
    index_fill_ = _in_place(op.index_fill)
    tril_ = _in_place(op.tril)
    triu_ = _in_place(op.triu)
    cumsum_ = _in_place(op.cumsum)
    cumprod_ = _in_place(op.cumprod)
    gcd_ = _in_place(op.gcd)
    lcm_ = _in_place(op.lcm)
    multiply_ = _in_place(op.multiply)
    subtract_ = _in_place(op.subtract)
    divide_ = _in_place(op.divide)
    true_divide_ = _in_place(op.true_divide)
    ldexp_ = _in_place(op.ldexp)
    clip_ = _in_place(op.clip)

    __lshift__, __rshift__ = op.bitwise_left_shift, op.bitwise_right_shift
    __ifloordiv__, __imod__, __ipow__ = floor_divide_, remainder_, pow_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
    __ilshift__, __irshift__ = bitwise_left_shift_, bitwise_right_shift_

    def __pos__(self: Any) -> Any:
        return op.positive(self)

    def __rmatmul__(self: Any, other: Any) -> Any:
        return op.matmul(other, self)

    def __complex__(self: Any) -> complex:
        return complex(self.item())

    def __contains__(self: Any, element: Any) -> bool:
        return bool(op.any(op.eq(self, element)))

    def __array_namespace__(self: Any, *, api_version: str | None = None) -> Any:
        """The array API, whose functions take tensors and give arrays of its rules."""
        from vkml.xp.array import as_array

        return as_array(self).__array_namespace__(api_version=api_version)

    def where(self: Any, condition: Tensor, other: Any) -> Any:
        """Its elements where a condition is true, others elsewhere."""
        return op.where(condition, self, other)

    def index_put_(self: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        """Gives what an index selects other elements, or adds to them; returns it."""
        start = next_serial()
        return self._become(op.index_put(self, indices, values, accumulate), start)

    def element_size(self: Any) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def itemsize(self: Any) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        found: int = self.numel() * self.itemsize
        return found

    def nelement(self: Any) -> int:
        """How many elements it has."""
        found: int = self.numel()
        return found

    @property
    def grad_fn(self: Any) -> GradientNode | AccumulateGrad | None:
        """The operation that it was made by, where gradients flow through that; None of leaves."""
        return None if self.is_leaf else gradient_node(self.value)

    def is_inference(self: Any) -> bool:
        """Whether it was made in `inference_mode`."""
        return bool(self._traced.is_inferred)

    def is_floating_point(self: Any) -> bool:
        """Whether its elements are floats."""
        return bool(self.dtype.is_float)

    def is_complex(self: Any) -> bool:
        """Whether its elements are complex numbers."""
        return bool(self.dtype.is_complex)

    def is_signed(self: Any) -> bool:
        """Whether its type has numbers below 0."""
        return bool(self.dtype.is_signed)

    @property
    def real(self: Any) -> Any:
        """The real parts, a view; itself where it is real."""
        return op.real(self)

    @property
    def imag(self: Any) -> Any:
        """The imaginary parts of complex numbers, a view."""
        return op.imag(self)

    def is_contiguous(self: Any) -> bool:
        """Whether elements lie in the order of the axes: those of what is no view do."""
        if self._base is None or is_deciding():
            return True
        pairs = zip(self.shape, self._strides(), contiguous_strides(self.shape), strict=True)
        return 0 in self.shape or all([size == 1 or own == wanted for size, own, wanted in pairs])

    def stride(self: Any, dim: Any = None) -> Any:
        """How many elements lie between neighbours along each axis, or one: those of no view lie in order."""
        steps = self._strides()
        return steps if dim is None else steps[dim]

    def ndimension(self: Any) -> Any:
        """How many axes it has."""
        return self.ndim

    def type(self: Any, dtype: DType | None = None) -> Any:
        """As another type; the name of its own where none is stated."""
        return f"vkml.{self.dtype.numpy_name}" if dtype is None else self.to(dtype)

    def sum_to_size(self: Any, *size: Any) -> Any:
        """The sums over what is repeated to expand a shape to its own."""
        dims = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
        more = self.ndim - len(dims)
        if more < 0 or any(want not in (1, own) for want, own in zip(dims, self.shape[more:], strict=True)):
            raise RuntimeError(f"the shape {list(dims)} does not expand to {list(self.shape)}")
        axes = [at for at in range(self.ndim) if at < more or dims[at - more] != self.shape[at]]
        return (op.sum(self, axes) if axes else self).reshape(*dims)

    def multinomial(self: Any, num_samples: Any, replacement: Any = False, *, generator: Any = None) -> Any:
        """`vkml.multinomial` of its weights."""
        from vkml.tensors.random import multinomial

        return multinomial(self, num_samples, replacement, generator=generator)

    def bernoulli(self: Any, p: Any = None, *, generator: Any = None) -> Any:
        """`vkml.bernoulli` of its probabilities, or of a shape like its own."""
        from vkml.tensors.random import bernoulli

        return bernoulli(self, p, generator=generator)

    def type_as(self: Any, other: Tensor) -> Any:
        """Its elements in the type of another."""
        return self.to(other.dtype)

    def reshape_as(self: Any, other: Tensor) -> Any:
        """The elements under the shape of another."""
        return self.reshape(*other.shape)

    @property
    def mH(self: Any) -> Any:
        """The last two axes exchanged, conjugated."""
        return op.conj(op.transpose(self, -2, -1))

    @property
    def H(self: Any) -> Any:
        """A matrix with rows and columns exchanged, conjugated."""
        if self.ndim not in (0, 2):
            raise RuntimeError(f"H is of a matrix, not of {self.ndim} axes")
        return op.conj(self.t())

    def new_tensor(self: Any, data: Any, *, dtype: DType | None = None, device: Any = None) -> Any:
        """A tensor of some elements, of its type and device where none are named."""
        from vkml.tensors.creation import tensor

        return tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    def new_full(
        self: Any, size: Any, fill_value: Any, *, dtype: DType | None = None, device: Any = None
    ) -> Any:
        """A tensor of one number throughout, of its type and device where none are named."""
        from vkml.tensors.creation import full

        return full(tuple(size), fill_value, dtype=dtype or self.dtype, device=device or self.device)

    def new_zeros(self: Any, *size: Any, dtype: DType | None = None, device: Any = None) -> Any:
        """A tensor of zeros, of its type and device where none are named."""
        from vkml.tensors.creation import zeros

        return zeros(*size, dtype=dtype or self.dtype, device=device or self.device)

    def new_ones(self: Any, *size: Any, dtype: DType | None = None, device: Any = None) -> Any:
        """A tensor of ones, of its type and device where none are named."""
        from vkml.tensors.creation import ones

        return ones(*size, dtype=dtype or self.dtype, device=device or self.device)

    def new_empty(self: Any, *size: Any, dtype: DType | None = None, device: Any = None) -> Any:
        """A tensor to be written, of its type and device where none are named."""
        return self.new_zeros(*size, dtype=dtype, device=device)

    def float(self: Any) -> Any:
        """As float32."""
        return self.to(dtypes.FLOAT32)

    def double(self: Any) -> Any:
        """As float64."""
        return self.to(dtypes.FLOAT64)

    def half(self: Any) -> Any:
        """As float16."""
        return self.to(dtypes.FLOAT16)

    def bfloat16(self: Any) -> Any:
        """As bfloat16."""
        return self.to(dtypes.BFLOAT16)

    def long(self: Any) -> Any:
        """As int64."""
        return self.to(dtypes.INT64)

    def int(self: Any) -> Any:
        """As int32."""
        return self.to(dtypes.INT32)

    def bool(self: Any) -> Any:
        """Which elements are not 0."""
        return self.to(dtypes.BOOL)

    def short(self: Any) -> Any:
        """As int16."""
        return self.to(dtypes.INT16)

    def char(self: Any) -> Any:
        """As int8."""
        return self.to(dtypes.INT8)

    def byte(self: Any) -> Any:
        """As uint8."""
        return self.to(dtypes.UINT8)

    def fill_diagonal_(self: Any, fill_value: Any) -> Any:
        """Fills the diagonal of a matrix; returns it."""
        op.diagonal(self).fill_(fill_value)
        return self
