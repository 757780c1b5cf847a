"""Adadelta."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import descend, kept_square
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, directed, moment
from vkml.tensors import Tensor


class Adadelta(Optimizer):
    """Steps of the size of those before, by the gradient over the root of its square's mean (Zeiler, 2012).

    Args:
        params: see `Optimizer`.
        lr: what steps are multiplied by.
        rho: how much of either mean is kept from step to step.
        eps: added under both roots.
        weight_decay: of the parameters, added to the gradient.
        foreach, capturable: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "rho", "eps", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0, foreach: bool | None = None, *, capturable: bool = False,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        if not 0 <= rho <= 1:
            raise ValueError(f"rho is {rho}, it must lie in [0, 1]")
        super().__init__(*checked(params, dict(
            lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize, capturable=capturable,
            foreach=foreach, differentiable=differentiable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"step": counter(param), "square_avg": moment(param), "acc_delta": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        rho, eps = group["rho"], group["eps"]
        grad = directed(param, grad, group)
        state["step"].add_(1)
        square = kept_square(state["square_avg"], grad, rho)
        delta = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * grad
        kept_square(state["acc_delta"], delta, rho)
        descend(param, delta, group["lr"])
