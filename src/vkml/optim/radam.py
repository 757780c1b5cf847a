"""Adam with its variance rectified."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vkml.optim.adam import correction, decayed
from vkml.optim.forms import kept_mean, kept_square
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, moment
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class RAdam(Optimizer):
    """Adam that waits until its root is to be trusted (Liu et al., 2020).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        betas: how much of either mean is kept from step to step.
        eps: added to the root.
        weight_decay: of the parameters, added to the gradient.
        decoupled_weight_decay: whether weights decay apart from the gradient, as in `AdamW`.
        foreach, capturable: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "eps", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, maximize=maximize,
            foreach=foreach, capturable=capturable, decoupled_weight_decay=decoupled_weight_decay,
            differentiable=differentiable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"step": counter(param), "exp_avg": moment(param), "exp_avg_sq": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        one, two = group["betas"]
        grad, keep = decayed(param, grad, group)
        step = state["step"].add_(1)
        mean = kept_mean(state["exp_avg"], grad, one)
        square = kept_square(state["exp_avg_sq"], grad, two)
        length, most = _length(step, two), 2 / (1 - two) - 1
        share = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        adaptive = correction(step, two) ** 0.5 / (square.sqrt() + group["eps"])
        # Below 5 the share may be negative, or divided by 0; its root is not used there.
        scaled = op.where(length > 5, op.where(length > 5, share, 1.0).sqrt() * adaptive, 1.0)
        param.copy_(param * keep - mean / correction(step, one) * scaled * group["lr"])


def _length(step: Tensor, beta: float) -> Tensor:
    """ρₜ = ρ∞ - 2 t βᵗ / (1 - βᵗ), which begins with 1 where ρ∞ is thousands.

    With c = -log β and x = c t it is (2 / (1 - β) - 1 - 2 / c) + t - 2 t h(x) and
    h(x) = 1 / (eˣ - 1) - 1 / x + 1/2, so that nothing great is subtracted.
    """
    if not beta:
        return step * 0 + 1
    rate = -math.log(beta)
    x = step * rate
    near = x * (1 / 12 - x * x * (1 / 720 - x * x * (1 / 30240 - x * x / 1209600)))
    far = 1 / op.expm1(x) - 1 / x + 0.5
    found: Tensor = step * (1 - 2 * op.where(x < 0.5, near, far)) + (2 / (1 - beta) - 1 - 2 / rate)
    return found
