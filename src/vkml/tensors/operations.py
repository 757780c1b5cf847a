"""All operations on tensors, as functions; most are methods of tensors, too."""

# isort: off
# fmt: off
from vkml.tensors.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atanh, bitwise_and, bitwise_not, bitwise_or, bitwise_xor,
    ceil, clamp, cos, cosh, div, eq, erf, exp, expm1, floor, floor_divide, fmod, ge, gt, isfinite, isinf,
    isnan, le, lerp, log, log10, log1p, log2, logical_and, logical_not, logical_or, logical_xor, lt,
    maximum, minimum, mul, ne, neg, pow, reciprocal, relu, remainder, round, rsqrt, sigmoid, sign, sin,
    sinh, sqrt, square, sub, tan, tanh, trunc, where,
)
from vkml.tensors.products import linear, matmul
from vkml.tensors.reductions import (
    all, amax, amin, any, argmax, argmin, cumsum, log_softmax, logsumexp, mean, norm, prod, softmax, std,
    sum, var,
)
from vkml.tensors.shapes import (
    broadcast_to, cat, chunk, expand, flatten, gather, index_select, permute, reshape, sort, split,
    squeeze, stack, topk, transpose, tril, triu, unsqueeze,
)

__all__ = [  # noqa: RUF022
    "abs", "acos", "acosh", "add", "all", "amax", "amin", "any", "argmax", "argmin", "asin", "asinh",
    "atan", "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "cat",
    "ceil", "chunk", "clamp", "cos", "cosh", "cumsum", "div", "eq", "erf", "exp", "expand", "expm1",
    "flatten", "floor", "floor_divide", "fmod", "gather", "ge", "gt", "index_select", "isfinite", "isinf",
    "isnan", "le", "lerp", "linear", "log", "log10", "log1p", "log2", "log_softmax", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "matmul", "maximum", "mean", "minimum",
    "mul", "ne", "neg", "norm", "permute", "pow", "prod", "reciprocal", "relu", "remainder", "reshape",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "softmax", "sort", "split", "sqrt", "square",
    "squeeze", "stack", "std", "sub", "sum", "tan", "tanh", "topk", "transpose", "tril", "triu", "trunc",
    "unsqueeze", "var", "where",
]
