"""Adam, and Adam with weight decay of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import adam_step, kept_mean, kept_square
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, directed, moment
from vkml.optim.settings import is_on
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class Adam(Optimizer):
    """Steps by the gradient's mean over the root of its square's (Kingma and Ba, 2015).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        betas: how much of either mean is kept from step to step.
        eps: added to the root.
        weight_decay: of the parameters, added to the gradient.
        amsgrad: whether the square's mean never falls (Reddi et al., 2018).
        foreach, capturable, fused: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
        decoupled_weight_decay: whether weights decay apart from the gradient, as in `AdamW`.
    """

    tunable = ("lr", "betas", "eps", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            maximize=maximize, foreach=foreach, capturable=capturable, differentiable=differentiable,
            fused=fused, decoupled_weight_decay=decoupled_weight_decay,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        state = {"step": counter(param), "exp_avg": moment(param), "exp_avg_sq": moment(param)}
        return {**state, "max_exp_avg_sq": moment(param)} if group["amsgrad"] else state

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, (one, two) = group["lr"], group["betas"]
        grad, keep = decayed(param, grad, group)
        step = state["step"].add_(1)
        mean = kept_mean(state["exp_avg"], grad, one)
        square = kept_square(state["exp_avg_sq"], grad, two)
        if group["amsgrad"]:
            most = state["max_exp_avg_sq"]
            square = most.copy_(op.maximum(most, square))
        adam_step(param, mean, square, correction(step, one), correction(step, two), group["eps"], lr, keep)


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient (Loshchilov and Hutter, 2019)."""

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip


def decayed(param: Tensor, grad: Tensor, group: Settings) -> tuple[Tensor, Any]:
    """The gradient in the direction that is left, and the share of the parameter that stays.

    One of them has the weights' decay in it.
    """
    if not group["decoupled_weight_decay"] or not is_on(group["weight_decay"]):
        return directed(param, grad, group), 1.0
    return -grad if group["maximize"] else grad, 1 - group["lr"] * group["weight_decay"]


def logarithm(beta: Any) -> Any:
    """log β, of a number or a tensor."""
    return op.log(beta) if isinstance(beta, Tensor) else math.log(beta)


def correction(step: Tensor, beta: Any) -> Tensor | float:
    """1 - βᵗ, as -expm1(t log β), which keeps its digits where βᵗ is near 1."""
    return op.expm1(step * logarithm(beta)).neg() if is_on(beta) else 1.0
