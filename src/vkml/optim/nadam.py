"""Adam with Nesterov's momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vkml.optim.adam import correction, decayed
from vkml.optim.forms import kept_mean, kept_square
from vkml.optim.optimizer import Optimizer, Settings, accumulating, checked, counter, moment
from vkml.tensors import Tensor
from vkml.tensors.creation import ones
from vkml.tensors.operations import exp


class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat, 2016).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        betas: how much of either mean is kept from step to step.
        eps: added to the root.
        weight_decay: of the parameters, added to the gradient.
        momentum_decay: how fast momentum reaches its full size.
        decoupled_weight_decay: whether weights decay apart from the gradient, as in `AdamW`.
        foreach, capturable: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "betas", "eps", "weight_decay", "momentum_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay, maximize=maximize, foreach=foreach,
            capturable=capturable, differentiable=differentiable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        product = ones(dtype=accumulating(param), device=param.device)
        return {
            "step": counter(param), "mu_product": product, "exp_avg": moment(param),
            "exp_avg_sq": moment(param),
        }  # fmt: skip

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, (one, two) = group["lr"], group["betas"]
        grad, keep = decayed(param, grad, group)
        step = state["step"].add_(1)

        def momentum(step: Tensor) -> Tensor:
            found: Tensor = (1 - exp(step * (group["momentum_decay"] * math.log(0.96))) * 0.5) * one
            return found

        now, following = momentum(step), momentum(step + 1)
        product = state["mu_product"].mul_(now)
        mean = kept_mean(state["exp_avg"], grad, one)
        square = kept_square(state["exp_avg_sq"], grad, two)
        root = (square / correction(step, two)).sqrt() + group["eps"]
        along = grad * ((1 - now) / (1 - product)) + mean * (following / (1 - product * following))
        param.copy_(param * keep - along / root * lr)
