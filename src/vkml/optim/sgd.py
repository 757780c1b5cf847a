"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vkml.optim.optimizer import Optimizer
from vkml.tensors import Tensor


class SGD(Optimizer):
    """Against the gradient, with momentum where it is asked for.

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        momentum: share of the last step that is kept.
        dampening: share of the gradient that momentum leaves out.
        weight_decay: of the parameters, added to the gradient.
        nesterov: whether the gradient is that of where momentum leads to.
        maximize: whether to go with the gradient.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name} is {value}, it must not be negative")
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError("Nesterov's momentum needs momentum and no dampening")
        super().__init__(params, dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize,
        ))  # fmt: skip

    def update(self, param: Tensor, grad: Tensor, group: Mapping[str, Any], state: dict[str, Any]) -> None:
        if group["maximize"]:
            grad = -grad
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        momentum = group["momentum"]
        if momentum:
            before = state.get("momentum_buffer")
            fresh = grad if before is None else before * momentum + grad * (1 - group["dampening"])
            kept = self.remember(state, "momentum_buffer", fresh)
            grad = grad + kept * momentum if group["nesterov"] else kept
        param.sub_(grad * group["lr"])
