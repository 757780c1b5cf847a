"""Rprop: steps by the signs of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vkml.ir.scalar import Scalar, binary, unary, where
from vkml.optim.forms import elementwise
from vkml.optim.optimizer import Optimizer, Settings, checked, counter, moment
from vkml.tensors import Tensor
from vkml.tensors.creation import full_like


class Rprop(Optimizer):
    """Each element has a step of its own, longer while its gradient keeps its sign.

    Where the sign has changed, the step becomes shorter, and is not taken (Riedmiller and Braun, 1993).

    Args:
        params: see `Optimizer`.
        lr: the first steps.
        etas: by what steps are multiplied where signs differ, and where they are the same.
        step_sizes: the shortest and the longest step.
        capturable, foreach: PyTorch's; updates are always fused, and can be captured.
        maximize: whether to go with the gradient.
        differentiable: must be False.

    Raises:
        ValueError: the first of `etas` is not between 0 and 1, or the second not above 1.
    """

    tunable = ()

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"etas are {etas}: the first lies between 0 and 1, the second above 1")
        super().__init__(*checked(params, dict(
            lr=lr, etas=tuple(etas), step_sizes=tuple(step_sizes), foreach=foreach, maximize=maximize,
            differentiable=differentiable, capturable=capturable,
        )))  # fmt: skip

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        return {
            "step": counter(param),
            "prev": moment(param),
            "step_size": full_like(param, float(group["lr"])),
        }

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        (shorter, longer), (least, most) = group["etas"], group["step_sizes"]
        if group["maximize"]:
            grad = -grad
        state["step"].add_(1)
        size, before = state["step_size"], state["prev"]
        taken = elementwise(_taken, grad, before)
        size.copy_(elementwise(_resized, size, grad, before, shorter, longer, least, most))
        before.copy_(taken)
        param.sub_(taken.sign() * size)


def _agreement(grad: Scalar, before: Scalar) -> Scalar:
    return unary("sign", grad) * unary("sign", before)


def _taken(grad: Scalar, before: Scalar) -> Scalar:
    return where(~(_agreement(grad, before) < 0), grad, 0.0)


def _resized(
    size: Scalar, grad: Scalar, before: Scalar, shorter: Scalar, longer: Scalar, least: Scalar, most: Scalar
) -> Scalar:
    agreement = _agreement(grad, before)
    made = where(agreement > 0, size * longer, where(agreement < 0, size * shorter, size))
    return binary("minimum", binary("maximum", made, least), most)
