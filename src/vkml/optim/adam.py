"""Adam, and Adam with weight decay of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from vkml.ir.dtypes import FLOAT32, FLOAT64
from vkml.optim.optimizer import Optimizer
from vkml.tensors import Tensor
from vkml.tensors.creation import zeros
from vkml.tensors.operations import expm1, maximum


class Adam(Optimizer):
    """Steps by the gradient's mean over the root of its square's (Kingma and Ba, 2015).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        betas: how much of either mean is kept from step to step.
        eps: added to the root.
        weight_decay: of the parameters, added to the gradient.
        amsgrad: whether the square's mean never falls.
        maximize: whether to go with the gradient.
    """

    _decays_apart = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name} is {value}, it must not be negative")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are {betas}, they must lie in [0, 1)")
        super().__init__(params, dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize
        ))  # fmt: skip

    def update(self, param: Tensor, grad: Tensor, group: Mapping[str, Any], state: dict[str, Any]) -> None:
        lr, decay, (one, two) = group["lr"], group["weight_decay"], group["betas"]
        if group["maximize"]:
            grad = -grad
        if decay and not self._decays_apart:
            grad = grad + param * decay
        before, mean, square = (state.get(name) for name in ("step", "exp_avg", "exp_avg_sq"))
        # A tensor, so that a captured step counts on; halves count to 2048 only.
        kind = FLOAT64 if param.dtype == FLOAT64 else FLOAT32
        counted = zeros(dtype=kind, device=param.device) if before is None else before
        step = self.remember(state, "step", counted + 1)
        mean = self.remember(
            state, "exp_avg", grad * (1 - one) if mean is None else mean * one + grad * (1 - one)
        )
        squared = grad * grad * (1 - two)
        square = self.remember(state, "exp_avg_sq", squared if square is None else square * two + squared)
        if group["amsgrad"]:
            most = state.get("max_exp_avg_sq")
            square = self.remember(state, "max_exp_avg_sq", square if most is None else maximum(most, square))
        root = (square / _corrected(step, two)).sqrt() + group["eps"]
        found = param * (1 - lr * decay) if decay and self._decays_apart else param
        param.copy_(found - mean / _corrected(step, one) / root * lr)


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient (Loshchilov and Hutter, 2019)."""

    _decays_apart = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def _corrected(step: Tensor, beta: float) -> Tensor | float:
    """1 - βᵗ, as -expm1(t log β), which keeps its digits where βᵗ is near 1."""
    return expm1(step * math.log(beta)).neg() if beta else 1.0
