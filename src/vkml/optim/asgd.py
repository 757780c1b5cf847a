"""ASGD: stochastic gradient descent whose parameters are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.optim.forms import descend
from vkml.optim.optimizer import Optimizer, Settings, accumulating, checked, counter, directed, moment
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import full


class ASGD(Optimizer):
    """Descends at a falling rate; parameters' means are in the state `ax` (Polyak and Juditsky, 1992).

    Args:
        params: see `Optimizer`.
        lr: the first rate.
        lambd: by what parameters decay, and how fast the rate falls.
        alpha: the power by which it falls.
        t0: steps after which averaging begins.
        weight_decay: of the parameters, added to the gradient.
        foreach, capturable: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.
    """

    tunable = ("lr", "lambd", "alpha", "t0", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0, foreach: bool | None = None, maximize: bool = False,
        differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(*checked(params, dict(
            lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, foreach=foreach,
            maximize=maximize, differentiable=differentiable, capturable=capturable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        wide, device = accumulating(param), param.device
        eta, mu = (full((), float(value), dtype=wide, device=device) for value in (group["lr"], 1))
        return {"step": counter(param), "eta": eta, "mu": mu, "ax": moment(param)}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        lr, lambd, eta, mu, average = group["lr"], group["lambd"], state["eta"], state["mu"], state["ax"]
        grad = directed(param, grad, group)
        step = state["step"].add_(1)
        param.mul_(1 - eta * lambd)
        descend(param, grad, eta)
        average.copy_(op.where(mu == 1, param, average + (param - average) * mu))
        eta.copy_(lr / (1 + step * (lambd * lr)) ** group["alpha"])
        mu.copy_(1 / (step - group["t0"]).clamp(min=1))
