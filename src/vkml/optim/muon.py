"""Muon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vkml.ir.dtypes import BFLOAT16, FLOAT32
from vkml.optim.optimizer import Optimizer, Settings, checked, moment
from vkml.optim.settings import is_on
from vkml.tensors import Tensor
from vkml.tensors.operations import clamp

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Keller Jordan's post (https://kellerjordan.github.io/posts/muon/): they raise small values fastest."""


class Muon(Optimizer):
    """Steps by momentum made orthogonal (Jordan et al., 2024); for matrices of hidden layers.

    Args:
        params: matrices; see `Optimizer`.
        lr: learning rate.
        weight_decay: of the parameters, apart from the gradient.
        momentum: how much of the mean is kept from step to step.
        nesterov: whether the gradient is that of where momentum leads to.
        ns_coefficients: of the polynomial a x + b x³ + c x⁵ of Newton and Schulz' iteration.
        eps: the least norm that is divided by.
        ns_steps: how often the polynomial is applied.
        adjust_lr_fn: "original" or None: steps grow with the root of rows over columns; "match_rms_adamw":
            they are as great as AdamW's (Liu et al., 2025).
    """

    tunable = ("lr", "weight_decay", "momentum")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-3, weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS, eps: float = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn is 'original' or 'match_rms_adamw', not {adjust_lr_fn!r}")
        if len(ns_coefficients) != 3:
            raise ValueError(f"ns_coefficients are three numbers, not {ns_coefficients}")
        if not 0 <= ns_steps < 100:
            raise ValueError(f"ns_steps is {ns_steps}, it must lie in [0, 100)")
        super().__init__(*checked(params, dict(
            lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
            ns_coefficients=tuple(ns_coefficients), eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn,
        )))  # fmt: skip

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.ndim != 2:
                raise ValueError(f"Muon takes matrices, not a parameter of shape {list(param.shape)}")

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"momentum_buffer": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
        kept = state["momentum_buffer"]
        kept.copy_(kept + (grad - kept) * (1 - momentum))
        along = grad + (kept - grad) * momentum if group["nesterov"] else kept
        along = orthogonalized(along, group["ns_coefficients"], group["ns_steps"], group["eps"])
        found = param * (1 - lr * decay) if is_on(decay) else param
        param.copy_(found - along.to(param.dtype) * (lr * _ratio(param.shape, group["adjust_lr_fn"])))


def _ratio(shape: Sequence[int], kind: str | None) -> float:
    """By what the learning rate is multiplied for a matrix of a shape."""
    rows, columns = shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def orthogonalized(matrix: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """Nearly U Vᵀ of a matrix U S Vᵀ, by Newton and Schulz' iteration.

    Products are of bfloat16, as PyTorch's are: the iteration does not mind, and matrix units have them.

    Args:
        matrix: [rows, columns].
        coefficients: a, b and c of the polynomial a x + b x³ + c x⁵.
        steps: how often it is applied.
        eps: the least norm that is divided by.

    Returns:
        [rows, columns], of float32, rounded to bfloat16.
    """
    a, b, c = coefficients
    x = _rounded(matrix.to(FLOAT32))
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:
        x = x.mT
    x = _rounded(x / clamp(_rounded(x.norm(2)), min=eps))
    for _ in range(steps):
        gram = _rounded(x @ x.mT)
        x = _rounded(x * a + _rounded(gram * b + (gram @ gram) * c) @ x)
    return x.mT if is_tall else x


def _rounded(x: Tensor) -> Tensor:
    """To what bfloat16 holds."""
    return x.to(BFLOAT16).to(FLOAT32)
