"""RMSprop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import descend, kept_mean, kept_momentum, kept_square
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, directed, moment
from vkml.optim.settings import is_on
from vkml.tensors import Tensor


class RMSprop(Optimizer):
    """Steps by the gradient over the root of its square's mean (Hinton's lectures, 2012).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        alpha: how much of the mean is kept from step to step.
        eps: added to the root.
        weight_decay: of the parameters, added to the gradient.
        momentum: share of the last step that is kept.
        centered: whether the root is of the variance (Graves, 2013).
        capturable, foreach: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, momentum=momentum, alpha=alpha, eps=eps, centered=centered, weight_decay=weight_decay,
            capturable=capturable, foreach=foreach, maximize=maximize, differentiable=differentiable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        state = {"step": counter(param), "square_avg": moment(param)}
        if is_on(group["momentum"]):
            state["momentum_buffer"] = moment(param)
        if group["centered"]:
            state["grad_avg"] = moment(param)
        return state

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        alpha, momentum = group["alpha"], group["momentum"]
        grad = directed(param, grad, group)
        state["step"].add_(1)
        square = kept_square(state["square_avg"], grad, alpha)
        if group["centered"]:
            mean = kept_mean(state["grad_avg"], grad, alpha)
            square = square - mean * mean
        along = grad / (square.sqrt() + group["eps"])
        if is_on(momentum):
            kept = state["momentum_buffer"]
            along = kept_momentum(kept, along, momentum, 1)
        descend(param, along, group["lr"])
