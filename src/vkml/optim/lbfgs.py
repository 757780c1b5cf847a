"""L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vkml.optim.line_search import Point, strong_wolfe
from vkml.optim.optimizer import Optimizer, checked
from vkml.tensors import Tensor
from vkml.tensors.autograd import enable_grad, no_grad
from vkml.tensors.backward import compute
from vkml.tensors.creation import zeros_like
from vkml.tensors.operations import cat

_LEAST_CURVATURE = 1e-10
"""Below which a pair of steps and changes of the gradient says nothing."""


class LBFGS(Optimizer):
    """Newton's steps, by what is remembered of gradients in place of the Hessian (Liu and Nocedal, 1989).

    It looks at losses and slopes on the host, and calls a closure several times a step: it cannot be
    captured.

    Args:
        params: on one device and of one type, in one group.
        lr: learning rate; the step that a line search begins with.
        max_iter: iterations a step.
        max_eval: calls of the closure a step; 5/4 of `max_iter` where left out.
        tolerance_grad: the greatest element of a gradient that counts as none.
        tolerance_change: the least change of the loss, and of a parameter.
        history_size: how many pairs of steps and changes of the gradient are kept.
        line_search_fn: "strong_wolfe", or None for steps of the learning rate.
    """

    tunable = ()

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"line_search_fn is 'strong_wolfe' or None, not {line_search_fn!r}")
        super().__init__(*checked(params, dict(
            lr=lr, max_iter=max_iter, max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad, tolerance_change=tolerance_change, history_size=history_size,
            line_search_fn=line_search_fn,
        )))  # fmt: skip

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        if self.param_groups:
            raise ValueError("LBFGS has one group of parameters")
        super().add_param_group(param_group)

    @property
    def _params(self) -> list[Tensor]:
        params: list[Tensor] = self.param_groups[0]["params"]
        return params

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Goes on for `max_iter` iterations, or until nothing changes any more.

        Args:
            closure: clears the gradients, computes the loss with gradients and returns it.

        Returns:
            the loss of before.
        """
        if closure is None:
            raise TypeError("LBFGS computes the loss several times: step() needs a closure that does")
        with no_grad():
            return self._iterate(enable_grad()(closure))

    def _iterate(self, closure: Callable[[], Any]) -> Any:
        group, state = self.param_groups[0], self.state.setdefault(self._params[0], {})
        lr, tolerance = float(group["lr"]), group["tolerance_change"]
        before = closure()
        loss, gradient = float(before), self._gradient()
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        looks = 1
        if _greatest(gradient) <= group["tolerance_grad"]:
            return before
        for number in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                direction = -gradient
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
                step = min(1.0, 1.0 / float(gradient.abs().sum())) * lr
            else:
                self._remember(state, gradient, group["history_size"])
                direction, step = _newton(state, gradient), lr
            state.update(d=direction, prev_flat_grad=gradient.clone(), prev_loss=loss)
            slope = float(_dot(gradient, direction))
            state["t"] = step
            if slope > -tolerance:
                break
            if group["line_search_fn"] is not None:
                start = Point(0, loss, gradient, slope)
                found, more = strong_wolfe(
                    self._along(closure, direction), start, step, _greatest(direction),
                    most=group["max_eval"] - looks,
                )  # fmt: skip
                step, loss, gradient = found.step, found.loss, found.gradient
                self._move(direction, step)
            else:
                self._move(direction, step)
                more = 0
                if number != group["max_iter"]:  # what follows the last one is looked at by the next step
                    loss, gradient, more = float(closure()), self._gradient(), 1
            state["t"] = step
            looks += more
            state["func_evals"] += more
            if (
                number == group["max_iter"]
                or looks >= group["max_eval"]
                or _greatest(gradient) <= group["tolerance_grad"]
                or _greatest(direction) * abs(step) <= tolerance
                or abs(loss - state["prev_loss"]) < tolerance
            ):
                break
        compute([*self._params, state["d"], state["prev_flat_grad"], *state["old_dirs"], *state["old_stps"]])
        return before

    def _remember(self, state: dict[str, Any], gradient: Tensor, most: int) -> None:
        """Notes the last step and by how much it changed the gradient."""
        changed, step = gradient - state["prev_flat_grad"], state["d"] * float(state["t"])
        both = _dot(changed, step)
        if float(both) > _LEAST_CURVATURE:
            if len(state["old_dirs"]) == most:
                for name in ("old_dirs", "old_stps", "ro"):
                    state[name].pop(0)
            state["old_dirs"].append(changed)
            state["old_stps"].append(step)
            state["ro"].append(1 / both)
            state["H_diag"] = both / _dot(changed, changed)

    def _gradient(self) -> Tensor:
        """All gradients in a row."""
        found = [zeros_like(param) if param.grad is None else param.grad for param in self._params]
        return cat([gradient.detach().reshape(-1) for gradient in found], 0)

    def _move(self, direction: Tensor, step: float) -> None:
        at = 0
        for param in self._params:
            part = direction[at : at + param.numel()].reshape(*param.shape)
            param.add_(part, alpha=step)
            at += param.numel()

    def _along(self, closure: Callable[[], Any], direction: Tensor) -> Callable[[float], Point]:
        """What a line search looks at, from where the parameters are."""
        were = [param.detach().clone() for param in self._params]

        def look(step: float) -> Point:
            self._move(direction, step)
            loss, gradient = float(closure()), self._gradient()
            for param, was in zip(self._params, were, strict=True):
                param.copy_(was)
            return Point(step, loss, gradient, float(_dot(gradient, direction)))

        return look


def _newton(state: Mapping[str, Any], gradient: Tensor) -> Tensor:
    """The negative gradient times what is known of the inverse Hessian: the recursion of two loops."""
    changes: Sequence[Tensor] = state["old_dirs"]
    steps: Sequence[Tensor] = state["old_stps"]
    rates = state["ro"]
    shares: list[Tensor] = []
    left = -gradient
    for changed, step, rate in reversed(list(zip(changes, steps, rates, strict=True))):
        shares.append(_dot(step, left) * rate)
        left = left - changed * shares[-1]
    found: Tensor = left * state["H_diag"]
    for changed, step, rate in zip(changes, steps, rates, strict=True):
        found = found + step * (shares.pop() - _dot(changed, found) * rate)
    return found


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


def _greatest(x: Tensor) -> float:
    return float(x.abs().amax())
