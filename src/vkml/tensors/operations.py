"""All operations on tensors, as functions; most are methods of tensors, too."""

# isort: off
# fmt: off
from vkml.tensors.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atanh, bitwise_and, bitwise_not, bitwise_or, bitwise_xor,
    ceil, clamp, cos, cosh, div, eq, erf, exp, expm1, floor, floor_divide, fmod, ge, gt, isfinite, isinf,
    isnan, le, lerp, log, log10, log1p, log2, logical_and, logical_not, logical_or, logical_xor, lt,
    maximum, minimum, mul, ne, neg, pow, reciprocal, relu, remainder, round, rsqrt, sigmoid, sign, sin,
    sinh, sqrt, square, sub, tan, tanh, trunc,
)
from vkml.tensors.special import (
    addcdiv, addcmul, allclose, atan2, bitwise_left_shift, bitwise_right_shift, can_cast, clamp_max,
    clamp_min, copysign, deg2rad, dist, equal, erfinv, exp2, float_power, fmax, fmin, frac, gcd,
    heaviside, hypot, isclose, isneginf, isposinf, lcm, ldexp, logaddexp, logaddexp2, logit,
    is_floating_point, is_nonzero, nan_to_num, nextafter, positive, rad2deg, rsub, signbit, sinc, true_divide,
    xlogy,
)
from vkml.tensors.complex import (
    adjoint, angle, complex, conj, imag, is_complex, isreal, polar, real, resolve_conj, sgn, view_as_complex,
    view_as_real,
)
from vkml.tensors.products import (
    addbmm, addmm, addmv, addr, baddbmm, bmm, cdist, chain_matmul, cross, dot, einsum, inner, kron, linear,
    matmul, matrix_power, mm, multi_dot, mv, outer, tensordot, vdot, vecdot,
)
from vkml.tensors.reductions import (
    all, amax, amin, any, argmax, argmin, cumsum, log_softmax, logsumexp, mean, norm, prod, softmax, std,
    sum, var,
)
from vkml.tensors.statistics import (
    aminmax, argsort, corrcoef, count_nonzero, cov, cummax, cummin, cumprod, diff, kthvalue, logcumsumexp,
    max, median, min, mode, msort, nanmean, nanmedian, nanquantile, nansum, quantile, std_mean, trapezoid,
    var_mean,
)
from vkml.tensors.counting import (
    bincount, bucketize, histc, isin, searchsorted, unique, unique_consecutive,
)
from vkml.tensors.shapes import (
    broadcast_to, cat, chunk, clone, detach, expand, flatten, gather, index_select, permute, reshape, sort,
    split, split_with_sizes, squeeze, stack, t, topk, transpose, tril, triu, unsqueeze,
)
from vkml.tensors.arranging import (
    atleast_1d, atleast_2d, atleast_3d, broadcast_shapes, broadcast_tensors, cartesian_prod, combinations,
    flip, fliplr, flipud, meshgrid, movedim, one_hot, ravel, repeat, repeat_interleave, roll, rot90, swapaxes,
    tile, unflatten, unfold, unravel_index, vander,
)
from vkml.tensors.joining import (
    column_stack, dsplit, dstack, hsplit, hstack, narrow, select, tensor_split, unbind, vsplit, vstack,
)
from vkml.tensors.diagonals import (
    block_diag, diag, diag_embed, diagflat, diagonal, trace, tril_indices, triu_indices,
)
from vkml.tensors.picking import (
    argwhere, index_add, index_copy, index_fill, index_put, masked_fill, masked_scatter, masked_select,
    diagonal_scatter, nonzero, scatter, scatter_add, scatter_reduce, select_scatter, slice_scatter, take,
    take_along_dim,
)
from vkml.tensors.picking import where_or_places as where
from vkml.tensors.bessel import i0
from vkml.tensors.short_time import istft, stft
from vkml.tensors.error_functions import erfc
from vkml.tensors.gamma import digamma, lgamma, polygamma
from vkml.tensors.matrices import (
    cholesky, det, inverse, logdet, matrix_exp, pinverse, slogdet,
)
from vkml.tensors.arranging import (
    movedim as moveaxis, swapaxes as swapdims,
)
from vkml.tensors.joining import (
    vstack as row_stack,
)
from vkml.tensors.elementwise import (
    abs as absolute, acos as arccos, acosh as arccosh, asin as arcsin, asinh as arcsinh, atan as arctan,
    atanh as arctanh, clamp as clip, div as divide, trunc as fix, gt as greater, ge as greater_equal, lt
    as less, le as less_equal, mul as multiply, neg as negative, ne as not_equal, sub as subtract,
)
from vkml.tensors.products import (
    outer as ger,
)
from vkml.tensors.shapes import (
    cat as concat, cat as concatenate,
)
from vkml.tensors.special import (
    atan2 as arctan2,
)
from vkml.tensors.statistics import (
    trapezoid as trapz,
)

from vkml.tensors import argument_names as _argument_names, autocast as _autocast, saving as _saving

_saving.apply_saving(globals())
_autocast.apply_policies(globals())
_argument_names.take_numpy_names(globals())

__all__ = [  # noqa: RUF022
    "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr",
    "adjoint", "all", "allclose", "amax", "amin", "aminmax", "angle", "any", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "argwhere", "asin", "asinh",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "baddbmm", "bincount",
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "block_diag", "bmm", "broadcast_shapes", "broadcast_tensors", "broadcast_to", "bucketize", "can_cast",
    "cartesian_prod", "cat", "cdist", "ceil", "chain_matmul", "cholesky", "chunk", "clamp", "clamp_max",
    "clamp_min", "clip", "clone", "column_stack", "combinations", "complex", "concat", "concatenate",
    "conj", "copysign", "corrcoef", "cos", "cosh", "count_nonzero", "cov", "cross", "cummax", "cummin",
    "cumprod", "cumsum", "deg2rad", "det", "detach", "diag", "diag_embed", "diagflat", "diagonal",
    "diagonal_scatter", "diff", "digamma", "dist", "div", "divide", "dot", "dsplit", "dstack", "einsum",
    "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand", "expm1", "fix", "flatten", "flip",
    "fliplr", "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "gather",
    "gcd", "ge", "ger", "greater", "greater_equal", "gt", "heaviside", "histc", "hsplit", "hstack", "hypot",
    "i0", "imag", "index_add", "index_copy", "index_fill", "index_put", "index_select", "inner", "inverse",
    "is_complex", "is_floating_point", "is_nonzero", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "istft", "kron", "kthvalue", "lcm", "ldexp", "le", "lerp", "less",
    "less_equal", "lgamma", "linear", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp",
    "logaddexp2", "logcumsumexp", "logdet", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logit", "logsumexp", "lt", "masked_fill", "masked_scatter", "masked_select", "matmul", "matrix_exp",
    "matrix_power", "max", "maximum", "mean", "median", "meshgrid", "min", "minimum", "mm", "mode",
    "moveaxis", "movedim", "msort", "mul", "multi_dot", "multiply", "mv", "nan_to_num", "nanmean",
    "nanmedian", "nanquantile", "nansum", "narrow", "ne", "neg", "negative", "nextafter", "nonzero", "norm",
    "not_equal", "one_hot", "outer", "permute", "pinverse", "polar", "polygamma", "positive", "pow", "prod",
    "quantile",
    "rad2deg", "ravel", "real", "reciprocal", "relu", "remainder", "repeat", "repeat_interleave", "reshape",
    "resolve_conj", "roll", "rot90", "round", "row_stack", "rsqrt", "rsub", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "select", "select_scatter", "sgn", "sigmoid", "sign", "signbit",
    "sin", "sinc", "sinh", "slice_scatter", "slogdet", "softmax", "sort", "split", "split_with_sizes",
    "sqrt", "square", "squeeze", "stack", "std", "std_mean", "stft", "sub", "subtract", "sum", "swapaxes",
    "swapdims", "t", "take", "take_along_dim", "tan", "tanh", "tensor_split", "tensordot", "tile", "topk",
    "trace", "transpose", "trapezoid", "trapz", "tril", "tril_indices", "triu", "triu_indices",
    "true_divide", "trunc", "unbind", "unflatten", "unfold", "unique", "unique_consecutive",
    "unravel_index", "unsqueeze", "vander", "var", "var_mean", "vdot", "vecdot", "view_as_complex",
    "view_as_real", "vsplit", "vstack", "where", "xlogy",
]
