"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vkml.optim.optimizer import Optimizer, Settings, checked, counter, directed
from vkml.optim.settings import is_on
from vkml.tensors import Tensor
from vkml.tensors.creation import full_like


class Adagrad(Optimizer):
    """Steps by the gradient over the root of the sum of all squares so far (Duchi et al., 2011).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        lr_decay: how fast the learning rate falls: it is divided by 1 + (t - 1) lr_decay.
        weight_decay: of the parameters, added to the gradient.
        initial_accumulator_value: what the sum begins with.
        eps: added to the root.
        foreach, fused: PyTorch's; updates are always fused.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "lr_decay", "weight_decay", "eps")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, foreach=foreach, maximize=maximize,
            differentiable=differentiable, fused=fused,
        )))  # fmt: skip

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:  # at once, as PyTorch does
            self.state[param] = self.begin(param, group)

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"step": counter(param), "sum": full_like(param, group["initial_accumulator_value"])}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, decay = group["lr"], group["lr_decay"]
        grad = directed(param, grad, group)
        step, total = state["step"].add_(1), state["sum"]
        total.add_(grad * grad)
        if is_on(decay):
            lr = lr / (1 + (step - 1) * decay)
        param.sub_(grad / (total.sqrt() + group["eps"]) * lr)
