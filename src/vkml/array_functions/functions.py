"""The functions of `vkml.ops`: elementwise ones, products, reductions."""

from __future__ import annotations

from typing import Any

from vkml.array_functions.defining import Table
from vkml.nn import functional
from vkml.tensors import Tensor
from vkml.tensors import operations as op

TABLE = Table()
_define = TABLE.define

for _name, _text in {
    "add": "a + b, broadcast.", "sub": "a - b, broadcast.", "mul": "a b, broadcast.",
    "div": "a / b, broadcast.", "pow": "a to the power of b, broadcast.",
    "maximum": "The greater of a and b, broadcast.", "minimum": "The smaller of a and b, broadcast.",
    "atan2": "The angle of the point (b, a), broadcast.",
}.items():  # fmt: skip
    _define(_name, "a b", getattr(op, _name), _text)

for _name, _text in {
    "eq": "a = b", "ne": "a ≠ b", "lt": "a < b", "le": "a ≤ b", "gt": "a > b", "ge": "a ≥ b",
}.items():  # fmt: skip
    _define(_name, "a b", getattr(op, _name), f"Whether {_text}, broadcast, as bools.", by=())

for _name, _text in {
    "abs": "|x|.", "neg": "-x.", "exp": "e to the power of x.", "log": "The natural logarithm of x.",
    "sqrt": "The root of x.", "rsqrt": "1 over the root of x.", "square": "x².", "reciprocal": "1 / x.",
    "sin": "The sine of x.", "cos": "The cosine of x.", "tan": "The tangent of x.",
    "tanh": "The hyperbolic tangent of x.", "erf": "The error function of x.",
    "sigmoid": "1 / (1 + exp(-x)).", "relu": "max(x, 0).",
}.items():  # fmt: skip
    _define(_name, "x", getattr(op, _name), _text)

for _name, _text in {
    "floor": "x rounded down.", "ceil": "x rounded up.", "round": "x rounded, halves to even numbers.",
    "sign": "-1, 0 or 1.",
}.items():  # fmt: skip
    _define(_name, "x", getattr(op, _name), _text, by=())

for _name, _text in {
    "silu": "x sigmoid(x).", "mish": "x tanh(softplus(x)).", "hardswish": "x relu6(x + 3) / 6.",
    "hardsigmoid": "relu6(x + 3) / 6.", "softsign": "x / (1 + |x|).", "selu": "The scaled ELU of x.",
    "logsigmoid": "log(sigmoid(x)).", "relu6": "min(max(x, 0), 6).",
}.items():  # fmt: skip
    _define(_name, "x", getattr(functional, _name), _text)

_define(
    "gelu", "x", lambda x, how: functional.gelu(x, approximate=how), "x Φ(x), or its approximation by tanh.",
    "approximate='none'",
)  # fmt: skip
_define("elu", "x", functional.elu, "x, and alpha (exp(x) - 1) below 0.", "alpha=1.0")
_define("leaky_relu", "x", functional.leaky_relu, "x, and negative_slope x below 0.", "negative_slope=0.01")
_define("hardtanh", "x", functional.hardtanh, "x between two numbers.", "min_val=-1.0 max_val=1.0")
_define("softplus", "x", functional.softplus, "log(1 + exp(beta x)) / beta.", "beta=1.0 threshold=20.0")
_define("clamp", "x", op.clamp, "x between two numbers, of which one may be None.", "min=None max=None")
_define("where", "condition a b", op.where, "a where the condition is true, b elsewhere.", by=(1, 2))


# -- products ------------------------------------------------------------------------------------------------


def _matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    if transpose_a:
        a = op.transpose(a, -2, -1)
    return op.matmul(a, op.transpose(b, -2, -1) if transpose_b else b)


_define(
    "matmul", "a b", _matmul, "The product of matrices, or of batches of them.",
    "transpose_a=False transpose_b=False",
    about={"a": "[..., n, k].", "b": "[..., k, m]; batches are broadcast."},
)  # fmt: skip
_define(
    "linear", "input weight bias=None", functional.linear, "x Wᵀ + b.",
    about={"input": "[..., inputs].", "weight": "[outputs, inputs].", "bias": "[outputs]."},
)  # fmt: skip
_define(
    "outer",
    "a b",
    op.outer,
    "The products of each element of a vector with each of another.",
    about={"a": "[n].", "b": "[m]."},
)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale)


_define(
    "scaled_dot_product_attention", "query key value attn_mask=None", _attention,
    "softmax(scale · Q Kᵀ, masked) V; see `vkml.nn.functional.scaled_dot_product_attention`.",
    "is_causal=False scale=None", by=(0, 1, 2),
)  # fmt: skip


# -- along axes ----------------------------------------------------------------------------------------------


def _reduction(function: Any) -> Any:
    return lambda x, dim, keepdim: function(x, dim, keepdim)


def _spread(function: Any) -> Any:
    return lambda x, dim, correction, keepdim: function(x, dim, correction=correction, keepdim=keepdim)


_AXES = {"dim": "an axis, or a tuple of several, below 0 counted from the end; None: all."}
for _name, _text in {
    "sum": "The sum", "mean": "The mean", "amax": "The greatest element", "amin": "The smallest element",
}.items():  # fmt: skip
    _define(
        _name, "x", _reduction(getattr(op, _name)),
        f"{_text} along axes, of floats or integers.", "dim=None keepdim=False", about=_AXES,
    )  # fmt: skip
for _name, _alias in (("max", "amax"), ("min", "amin")):
    _define(
        _name, "x", _reduction(getattr(op, _alias)), f"`{_alias}` by its name in NumPy.",
        "dim=None keepdim=False", about=_AXES,
    )  # fmt: skip
for _name in ("argmax", "argmin"):
    _define(
        _name, "x", _reduction(getattr(op, _name)), "Where that element is along an axis, as int64.",
        "dim=None keepdim=False", by=(),
        about={"dim": "the axis; None: the place among all elements in a row."},
    )  # fmt: skip
for _name, _text in (("var", "The variance"), ("std", "The standard deviation")):
    _define(
        _name, "x",
        _spread(getattr(op, _name)),
        f"{_text} along axes, the divisor being the number of elements less `correction`.",
        "dim=None correction=1 keepdim=False", about=_AXES,
    )  # fmt: skip
_define("softmax", "x", op.softmax, "exp(x) over its sum along an axis.", "dim=-1")
_define("log_softmax", "x", op.log_softmax, "The logarithm of `softmax`.", "dim=-1")
_define(
    "logsumexp", "x", lambda x, dim, keep: op.logsumexp(x, dim, keep), "log Σ exp(x).", "dim=-1 keepdim=False"
)
_define("cumsum", "x", op.cumsum, "Sums of all elements so far along an axis.", "dim=-1")
