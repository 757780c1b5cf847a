"""Adamax."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.adam import correction
from vkml.optim.forms import kept_mean
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, directed, moment
from vkml.tensors import Tensor
from vkml.tensors.operations import maximum


class Adamax(Optimizer):
    """Adam with the greatest gradient, which decays, in place of the root (Kingma and Ba, 2015).

    Args:
        params: see `Optimizer`.
        lr: learning rate.
        betas: how much of the mean, and of the greatest, is kept from step to step.
        eps: added to the gradient's size.
        weight_decay: of the parameters, added to the gradient.
        foreach, capturable: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "betas", "eps", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, foreach=foreach,
            maximize=maximize, differentiable=differentiable, capturable=capturable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {"step": counter(param), "exp_avg": moment(param), "exp_inf": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        one, two = group["betas"]
        grad = directed(param, grad, group)
        step, greatest = state["step"].add_(1), state["exp_inf"]
        mean = kept_mean(state["exp_avg"], grad, one)
        greatest.copy_(maximum(greatest * two, grad.abs() + group["eps"]))
        param.sub_(mean / greatest * (group["lr"] / correction(step, one)))
