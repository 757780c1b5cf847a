"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import descend, kept_momentum, plus
from vkml.optim.optimizer import Optimizer, Settings, checked, directed, moment
from vkml.optim.settings import is_on
from vkml.tensors import Tensor


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum where it is asked for.

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        momentum: share of the last step that is kept.
        dampening: share of the gradient that momentum leaves out.
        weight_decay: of the parameters, added to the gradient.
        nesterov: whether the gradient is that of where momentum leads to.
        maximize: whether to go with the gradient.
        foreach, fused: PyTorch's; updates are always fused.
        differentiable: must be False.
    """

    tunable = ("lr", "momentum", "dampening", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError("Nesterov's momentum needs momentum and no dampening")
        super().__init__(*checked(params, dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused,
        )))  # fmt: skip

    def can_skip(self) -> bool:
        """Not before momentum has begun where it is dampened: its first gradient counts whole."""
        return not any(
            group["momentum"]
            and is_on(group["dampening"])
            and any(self.state.get(param, {}).get("momentum_buffer") is None for param in group["params"])
            for group in self.param_groups
        )

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        """Momentum of zeros makes the first gradient count whole; see `Optimizer.begin`."""
        starts = is_on(group["momentum"]) and not is_on(group["dampening"])
        return {"momentum_buffer": moment(param)} if starts else {}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        momentum = group["momentum"]
        grad = directed(param, grad, group)
        if is_on(momentum):
            kept: Tensor | None = state.get("momentum_buffer")
            if kept is None:
                kept = state["momentum_buffer"] = grad.clone()
            else:
                kept_momentum(kept, grad, momentum, 1 - group["dampening"])
            grad = plus(grad, kept, momentum) if group["nesterov"] else kept
        descend(param, grad, group["lr"])
