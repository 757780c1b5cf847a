"""Lion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import kept_mean, mean_with
from vkml.optim.optimizer import Optimizer, Settings, checked, moment
from vkml.optim.settings import is_on
from vkml.tensors import Tensor


class Lion(Optimizer):
    """Steps by the sign of momentum (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).

    A learning rate is a tenth or a third of Adam's, the weights' decay so many times greater.

    Args:
        params: see `Optimizer`.
        lr: learning rate: how far every element goes.
        betas: how much of the mean counts for the step, and how much of it is kept.
        weight_decay: of the parameters, apart from the gradient.
        foreach, capturable, fused: as PyTorch's optimizers have them; updates are always fused, and can be
            captured.
        maximize: whether to go with the gradient.
    """

    tunable = ("lr", "betas", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, betas=tuple(betas), weight_decay=weight_decay, foreach=foreach, maximize=maximize,
            capturable=capturable, fused=fused,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"exp_avg": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, decay, (one, two) = group["lr"], group["weight_decay"], group["betas"]
        mean = state["exp_avg"]
        if group["maximize"]:
            grad = -grad
        along = mean_with(mean, grad, one).sign()
        found = param * (1 - lr * decay) if is_on(decay) else param
        kept_mean(mean, grad, two)
        param.copy_(found - along * lr)
