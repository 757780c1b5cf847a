"""Mixed precision: which operations run in a narrow type, and which in float32, in `vkml.autocast`."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import Any, TypeVar, cast

from vkml.ir import DType, dtypes
from vkml.tensors import tensor as core

F = TypeVar("F", bound=Callable[..., Any])
LOWER, FULL, WIDEST, ALIKE = "lower", "full", "widest", "alike"
"""What floats that come to an operation become: the narrow type, float32, the widest among them; or its
weight and its bias become what its first operand is."""

_DEFAULT = {"cpu": dtypes.BFLOAT16, "vulkan": dtypes.FLOAT16}
_NARROW = (dtypes.FLOAT16, dtypes.BFLOAT16)
_CASTS = (*_NARROW, dtypes.FLOAT32)
"""Types that are cast; float64 stays, as in PyTorch."""

# As PyTorch has them (ATen/autocast_mode.h and, for the CPU, autocast_mode.cpp).
_LOWER = (
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "einsum", "gru_cell", "linear", "lstm_cell",
    "matmul", "mm", "multi_dot", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    "scaled_dot_product_attention", "vecdot",
)  # fmt: skip
_LOSSES = (
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "hinge_embedding_loss",
    "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
    "triplet_margin_loss",
)  # fmt: skip
_FULL = {
    "cpu": (
        *_LOSSES, "avg_pool3d", "binary_cross_entropy", "cdist", "ctc_loss", "grid_sample", "nanquantile",
        "prod", "quantile", "trace",
    ),
    "vulkan": (
        *_LOSSES, "acos", "asin", "cdist", "cosh", "cosine_similarity", "cumprod", "cumsum", "dist",
        "erfinv", "exp", "expm1", "group_norm", "interpolate", "layer_norm", "log", "log10", "log1p", "log2",
        "log_softmax", "logsumexp", "norm", "pdist", "pow", "prod", "reciprocal", "renorm", "rms_norm",
        "rsqrt", "sinh", "softmax", "softmin", "softplus", "square", "sum", "tan", "vector_norm",
    ),
}  # fmt: skip
_WIDEST = {
    "cpu": ("cat", "index_copy", "stack"),
    "vulkan": (
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sample", "scatter_add", "tensordot",
        "vdot",
    ),
}  # fmt: skip
_ALIKE = {"cpu": ("group_norm", "instance_norm", "layer_norm", "rms_norm"), "vulkan": ("instance_norm",)}
"""Where PyTorch's kernels take operands of several types, and keep the first one's."""
POLICIES: dict[str, dict[str, str]] = {}
"""Name of an operation → kind of device → policy."""
for _kind in _DEFAULT:
    for _policy, _names in (
        (LOWER, _LOWER), (FULL, _FULL[_kind]), (WIDEST, _WIDEST[_kind]), (ALIKE, _ALIKE[_kind]),
    ):  # fmt: skip
        for _name in _names:
            POLICIES.setdefault(_name, {})[_kind] = _policy


class _State(threading.local):
    def __init__(self) -> None:
        self.types: dict[str, DType] = {}
        """Of kinds of devices for which it is on, the narrow type."""


_state = _State()


class autocast:
    """A context, or a decorator, in which operations run in a type that suits them, as `torch.autocast`.

    Products and convolutions run in a narrow type, sums, powers, normalisations and losses in float32; the
    lists are PyTorch's for CUDA (on Vulkan devices) and for the CPU. Casts are recorded like any operation,
    so that gradients flow through them and `vkml.jit` captures them. `backward` belongs outside: it runs in
    the types of the operations that it goes back through.

    Args:
        device_type: "vulkan" or "cpu": whose tensors; a device's name means its kind.
        dtype: float16 or bfloat16; float16 on Vulkan devices and bfloat16 on the CPU where left out.
        enabled: whether it is on; within another, False has operations run in the types of their tensors.
        cache_enabled: PyTorch's; casts that are alike are one in a plan.

    Raises:
        RuntimeError: there is no such kind of device.

    Example:
        >>> import vkml
        >>> x = vkml.ones(2, 2)
        >>> with vkml.autocast("cpu"):
        ...     y = x @ x
        >>> y.dtype is vkml.bfloat16, x.dtype is vkml.float32
        (True, True)
    """

    def __init__(
        self, device_type: str = "vulkan", dtype: DType | None = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        self.device = kind_of(device_type)
        self.fast_dtype = get_autocast_dtype(self.device) if dtype is None else dtype
        self._is_on = enabled
        if enabled and self.fast_dtype not in _NARROW:
            warnings.warn(
                f"autocast computes in float16 or bfloat16, not in {self.fast_dtype.numpy_name}: it is off",
                UserWarning,
                stacklevel=2,
            )
            self._is_on = False
        self._before: list[dict[str, DType]] = []

    def __enter__(self) -> autocast:
        self._before.append(_state.types)
        types = {kind: found for kind, found in _state.types.items() if kind != self.device}
        _state.types = {**types, self.device: self.fast_dtype} if self._is_on else types
        return self

    def __exit__(self, *_: object) -> None:
        _state.types = self._before.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return cast(F, within)


def kind_of(device_type: str) -> str:
    """The kind of a device, "vulkan" or "cpu".

    Raises:
        RuntimeError: there is no such kind.
    """
    kind = str(device_type).split(":")[0]
    if kind not in _DEFAULT:
        raise RuntimeError(f"unsupported autocast device_type {device_type!r}: it is 'vulkan' or 'cpu'")
    return kind


def is_autocast_enabled(device_type: str = "vulkan") -> bool:
    """Whether operations of a kind of device are cast.

    Args:
        device_type: "vulkan" or "cpu"; a device's name means its kind.

    Raises:
        RuntimeError: there is no such kind of device.
    """
    return kind_of(device_type) in _state.types


def get_autocast_dtype(device_type: str = "vulkan") -> DType:
    """The narrow type of a kind of device: that of the context, or what it would be.

    Args:
        device_type: "vulkan" or "cpu"; a device's name means its kind.

    Raises:
        RuntimeError: there is no such kind of device.
    """
    kind = kind_of(device_type)
    return _state.types.get(kind, _DEFAULT[kind])


def autocast_state() -> Hashable:
    """What it comes down to: equal where the same is recorded."""
    return tuple(sorted((kind, dtype.name) for kind, dtype in _state.types.items())) if _state.types else ()


def autocasts(policies: dict[str, str]) -> Callable[[F], F]:
    """Has what comes to an operation cast; within it nothing is cast any more.

    Args:
        policies: by kind of device.
    """

    def wrap(function: F) -> F:
        if hasattr(function, "policies"):
            return function

        @functools.wraps(function)
        def act(*arguments: Any, **named: Any) -> Any:
            types = _state.types
            if not types:
                return function(*arguments, **named)
            first = next(_tensors((arguments, tuple(named.values()))), None)
            kind = "" if first is None else "cpu" if first.device == "cpu" else "vulkan"
            policy = policies.get(kind)
            if kind not in types or policy is None:
                return function(*arguments, **named)
            if policy == ALIKE and first is not None:
                given = dict(inspect.signature(function).bind(*arguments, **named).arguments)
                for name in given.keys() & {"weight", "bias"}:
                    given[name] = _cast(given[name], first.dtype)
                return function(**given)
            wanted = types[kind] if policy == LOWER else dtypes.FLOAT32
            if policy == FULL and named.get("dtype") is not None:
                return function(*arguments, **named)
            if policy == WIDEST:
                found = {one.dtype for one in _tensors((arguments, tuple(named.values())))}
                wanted = dtypes.FLOAT32 if dtypes.FLOAT32 in found else types[kind]
            # What it is made of stays in that type.
            _state.types = {at: dtype for at, dtype in types.items() if at != kind}
            try:
                return function(
                    *[_cast(one, wanted) for one in arguments],
                    **{name: _cast(one, wanted) for name, one in named.items()},
                )
            finally:
                _state.types = types

        act.policies = policies  # type: ignore[attr-defined]
        return cast(F, act)

    return wrap


def apply_policies(names: MutableMapping[str, Any]) -> None:
    """Has all functions of a module that are on the lists cast what comes to them."""
    for name in POLICIES.keys() & names.keys():
        if callable(names[name]):
            names[name] = autocasts(POLICIES[name])(names[name])


def _tensors(value: Any) -> Iterator[Any]:
    """All tensors of floats in nested lists and tuples."""
    if isinstance(value, core.Tensor):
        if value.dtype.is_float:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _cast(value: Any, dtype: DType) -> Any:
    if isinstance(value, core.Tensor):
        return value.to(dtype) if value.dtype != dtype and value.dtype in _CASTS else value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value
