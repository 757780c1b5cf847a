"""Adafactor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vkml.ir.dtypes import finfo
from vkml.optim.optimizer import Optimizer, Settings, checked, counter
from vkml.optim.settings import is_on
from vkml.tensors import Tensor
from vkml.tensors.creation import zeros
from vkml.tensors.operations import clamp, exp, log


class Adafactor(Optimizer):
    """Adam's root from sums of rows and columns alone, and steps relative to the weights (Shazeer, 2018).

    Args:
        params: see `Optimizer`.
        lr: the greatest relative step, and what weights decay by.
        beta2_decay: the squares' mean forgets t to the power of it; not above 0.
        eps: added to squares (of the type's precision where None), and the least size of weights.
        d: the greatest root mean square of a step.
        weight_decay: of the parameters, apart from the gradient.
        foreach: PyTorch's; updates are always fused.
        maximize: whether to go with the gradient.
    """

    tunable = ("lr", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay is {beta2_decay}, it must not be positive")
        if d < 1:
            raise ValueError(f"d is {d}, it must be 1 or more")
        if any(part is not None and part < 0 for part in eps):
            raise ValueError(f"eps is {eps}, it must not be negative")
        super().__init__(*checked(params, dict(
            lr=lr, beta2_decay=beta2_decay, eps=tuple(eps), d=d, weight_decay=weight_decay,
            foreach=foreach, maximize=maximize,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        def made(*sizes: int) -> Tensor:
            return zeros(*sizes, dtype=param.dtype, device=param.device)

        shape = param.shape
        state = {"step": counter(param)}
        if len(shape) < 2:
            return {**state, "variance": made(*shape)}
        return {
            **state, "row_var": made(*shape[:-1], 1), "col_var": made(*shape[:-2], 1, shape[-1]),
        }  # fmt: skip

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, decay, (tiny, least) = group["lr"], group["weight_decay"], group["eps"]
        tiny = _precision(param) if tiny is None else tiny
        if group["maximize"]:
            grad = -grad
        step = state["step"].add_(1)
        fresh = exp(log(step) * group["beta2_decay"])
        size = _rms(param)
        rate = clamp(size, min=least) * clamp(1 / step.sqrt(), max=lr)
        found = param * (1 - lr * decay) if is_on(decay) else param
        squared = grad * grad
        if grad.ndim > 1:
            rows, columns = state["row_var"], state["col_var"]
            rows.lerp_(squared.mean(-1, keepdim=True), fresh)
            columns.lerp_(squared.mean(-2, keepdim=True), fresh)
            variance = rows * columns / clamp(rows.mean(-2, keepdim=True), min=tiny)
        else:
            variance = state["variance"].lerp_(squared, fresh)
        along = grad / clamp(variance, min=tiny * tiny).sqrt()
        param.copy_(found - along * (rate / clamp(_rms(along) / group["d"], min=1.0)))


def _precision(x: Tensor) -> float:
    """The difference between 1 and the next number of a tensor's type."""
    return float(finfo(x.dtype).eps)


def _rms(x: Tensor) -> Tensor:
    """The root of the mean square of all elements."""
    return x.norm(2) / math.sqrt(max(x.numel(), 1))
