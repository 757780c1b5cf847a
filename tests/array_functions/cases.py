"""Every function of `vkml.ops`: what it is called with, and what NumPy makes of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        arrays: that it is given.
        right: the result in NumPy's float64; None where it is compared with `vkml.nn.functional` alone.
        settings: by name.
        graded: numbers of the arrays whose gradients are checked by finite differences.
    """

    arrays: Sequence[Any]
    right: Callable[..., Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    graded: Sequence[int] = (0,)


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> Array:
    """From 0.5 on."""
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.5)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def erf(x: Array) -> Array:
    from math import erf as one

    return np.vectorize(one, otypes=[float])(x)


def conv(x: Array, w: Array, b: Array, stride: int = 1) -> Array:
    """A convolution over any number of axes, without padding."""
    rank = x.ndim - 2
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * rank)]
    made = np.tensordot(windows, w, ([1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)]))
    return np.moveaxis(made, -1, 1) + b.reshape(-1, *[1] * rank)


def pooled(x: Array, size: int, function: Any) -> Array:
    rank = x.ndim - 2
    windows = np.lib.stride_tricks.sliding_window_view(x, (size,) * rank, tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *[slice(None, None, size)] * rank)]
    return function(windows, tuple(range(2 + rank, 2 + 2 * rank)))


def standardised(x: Array, axes: tuple[int, ...]) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def per_channel(x: Array, v: Array) -> Array:
    return v.reshape(-1, *[1] * (x.ndim - 2))


A, B, ROW = normal(3, 4), normal(3, 4, seed=1), normal(4, seed=2)
UNIT = np.tanh(normal(3, 4))
LABELS = np.array([2, 0, 3])
IMAGES = {1: normal(2, 3, 8), 2: normal(2, 3, 6, 8), 3: normal(2, 3, 4, 4, 6)}

_log_softmax = lambda x: np.log(softmax(x))  # noqa: E731
_pick = lambda x: -_log_softmax(x)[np.arange(3), LABELS]  # noqa: E731

CASES: dict[str, Case] = {
    "add": Case([A, ROW], np.add, graded=(0, 1)), "sub": Case([A, B], np.subtract, graded=(0, 1)),
    "mul": Case([A, ROW], np.multiply, graded=(0, 1)),
    "div": Case([A, positive(3, 4)], np.divide, graded=(0, 1)),
    "pow": Case([positive(3, 4), B], np.power, graded=(0, 1)),
    "maximum": Case([A, B], np.maximum, graded=(0, 1)), "minimum": Case([A, B], np.minimum, graded=(0, 1)),
    "atan2": Case([A, positive(3, 4)], np.arctan2, graded=(0, 1)),
    "eq": Case([A, A], np.equal), "ne": Case([A, B], np.not_equal), "lt": Case([A, B], np.less),
    "le": Case([A, B], np.less_equal), "gt": Case([A, B], np.greater), "ge": Case([A, B], np.greater_equal),
    "abs": Case([A], np.abs), "neg": Case([A], np.negative), "exp": Case([A], np.exp),
    "log": Case([positive(3, 4)], np.log), "sqrt": Case([positive(3, 4)], np.sqrt),
    "rsqrt": Case([positive(3, 4)], lambda x: 1 / np.sqrt(x)), "square": Case([A], np.square),
    "reciprocal": Case([positive(3, 4)], np.reciprocal), "sin": Case([A], np.sin), "cos": Case([A], np.cos),
    "tan": Case([UNIT], np.tan), "tanh": Case([A], np.tanh), "erf": Case([A], erf),
    "sigmoid": Case([A], sigmoid), "relu": Case([A], lambda x: np.maximum(x, 0)),
    "floor": Case([A], np.floor), "ceil": Case([A], np.ceil), "round": Case([A * 3], np.round),
    "sign": Case([A], np.sign), "silu": Case([A], lambda x: x * sigmoid(x)),
    "mish": Case([A], lambda x: x * np.tanh(softplus(x))),
    "hardswish": Case([A], lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "hardsigmoid": Case([A], lambda x: np.clip(x + 3, 0, 6) / 6),
    "softsign": Case([A], lambda x: x / (1 + np.abs(x))), "selu": Case([A]),
    "logsigmoid": Case([A], lambda x: -softplus(-x)), "relu6": Case([A * 5], lambda x: np.clip(x, 0, 6)),
    "gelu": Case([A], lambda x: x * (1 + erf(x / np.sqrt(2))) / 2),
    "elu": Case([A], lambda x: np.where(x > 0, x, 2 * np.expm1(x)), {"alpha": 2.0}),
    "leaky_relu": Case([A], lambda x: np.where(x > 0, x, 0.1 * x), {"negative_slope": 0.1}),
    "hardtanh": Case([A], lambda x: np.clip(x, -0.5, 0.7), {"min_val": -0.5, "max_val": 0.7}),
    "softplus": Case([A], softplus), "clamp": Case([A], lambda x: np.clip(x, -0.5, None), {"min": -0.5}),
    "where": Case([A > 0, A, B], np.where, graded=(1, 2)),
    "matmul": Case([A, B], lambda a, b: a @ b.T, {"transpose_b": True}, (0, 1)),
    "linear": Case([A, B, ROW[:3]], lambda x, w, b: x @ w.T + b, graded=(0, 1, 2)),
    "outer": Case([ROW, A[0]], np.outer, graded=(0, 1)),
    "scaled_dot_product_attention": Case(
        [normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 4, seed=1)],
        lambda q, k, v: softmax(q @ k.swapaxes(1, 2) / 2) @ v, graded=(0, 1, 2),
    ),
    "sum": Case([A], lambda x: x.sum(1), {"dim": 1}), "mean": Case([A], lambda x: x.mean()),
    "amax": Case([A], lambda x: x.max(0), {"dim": 0}), "amin": Case([A], lambda x: x.min(0), {"dim": 0}),
    "max": Case([A], lambda x: x.max()), "min": Case([A], lambda x: x.min(1), {"dim": 1}),
    "argmax": Case([A], lambda x: x.argmax(1), {"dim": 1}), "argmin": Case([A], lambda x: x.argmin()),
    "var": Case([A], lambda x: x.var(1, ddof=1), {"dim": 1}),
    "std": Case([A], lambda x: x.std(), {"correction": 0}),
    "softmax": Case([A], softmax), "log_softmax": Case([A], _log_softmax),
    "logsumexp": Case([A], lambda x: np.log(np.exp(x).sum(-1))),
    "cumsum": Case([A], lambda x: x.cumsum(0), {"dim": 0}),
    **{
        f"conv{n}d": Case(
            [IMAGES[n], normal(4, 3, *[2] * n), ROW], lambda x, w, b: conv(x, w, b, 2), {"stride": 2},
            (0, 1, 2),
        )
        for n in (1, 2, 3)
    },
    **{
        f"conv_transpose{n}d": Case(
            [IMAGES[n], normal(3, 2, *[2] * n), ROW[:2]], None, {"stride": 2}, (0, 1, 2)
        )
        for n in (1, 2, 3)
    },
    **{
        f"max_pool{n}d": Case([IMAGES[n]], lambda x: pooled(x, 2, np.max), {"kernel_size": 2})
        for n in (1, 2, 3)
    },
    **{
        f"avg_pool{n}d": Case([IMAGES[n]], lambda x: pooled(x, 2, np.mean), {"kernel_size": [2] * n})
        for n in (1, 2, 3)
    },
    **{
        f"adaptive_avg_pool{n}d": Case(
            [IMAGES[n]], lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True), {"output_size": 1}
        )
        for n in (1, 2, 3)
    },
    "pad": Case([A], lambda x: np.pad(x, ((0, 0), (1, 2))), {"pad": (1, 2)}),
    "embedding": Case([LABELS, normal(5, 2)], lambda at, w: w[at], graded=(1,)),
    "batch_norm": Case(
        [IMAGES[2], None, None, ROW[:3], ROW[1:]],
        lambda x, m, v, w, b: standardised(x, (0, 2, 3)) * per_channel(x, w) + per_channel(x, b),
        {"training": True}, (0, 3, 4),
    ),
    "layer_norm": Case(
        [A, ROW, B[0]], lambda x, w, b: standardised(x, (1,)) * w + b, {"normalized_shape": 4}, (0, 1, 2)
    ),
    "rms_norm": Case(
        [A, ROW], lambda x, w: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * w,
        {"normalized_shape": [4], "eps": 1e-5}, (0, 1),
    ),
    "group_norm": Case([IMAGES[2][:, :2]], lambda x: standardised(x, (1, 2, 3)), {"num_groups": 1}),
    "instance_norm": Case([IMAGES[2]], lambda x: standardised(x, (2, 3))),
    "mse_loss": Case([A, B], lambda x, t: ((x - t) ** 2).mean()),
    "l1_loss": Case([A, B], lambda x, t: np.abs(x - t).mean()),
    "binary_cross_entropy": Case(
        [sigmoid(A), sigmoid(B)], lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    ),
    "binary_cross_entropy_with_logits": Case(
        [A, sigmoid(B)], lambda x, t: (softplus(x) - t * x).sum(), {"reduction": "sum"}
    ),
    "kl_div": Case([A, softmax(B)], lambda x, t: (t * (np.log(t) - x)).mean()),
    "smooth_l1_loss": Case([A, B], lambda x, t: np.where(
        np.abs(x - t) < 1, (x - t) ** 2 / 2, np.abs(x - t) - 0.5).mean()),
    "huber_loss": Case([A, B], lambda x, t: np.where(
        np.abs(x - t) < 0.5, (x - t) ** 2 / 2, 0.5 * (np.abs(x - t) - 0.25)).mean(), {"delta": 0.5}),
    "cross_entropy": Case([A, LABELS], lambda x, t: _pick(x).mean()),
    "nll_loss": Case([_log_softmax(A), LABELS], lambda x, t: -x[np.arange(3), t].mean()),
}  # fmt: skip
