"""What all optimizers share: groups of parameters with their settings, and state a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vkml.tensors import Tensor
from vkml.tensors.autograd import enable_grad, forget_gradients, no_grad
from vkml.tensors.backward import compute


class Optimizer:
    """Base of all optimizers; `update` says what becomes of one parameter.

    Args:
        params: parameters, or groups of them: mappings with ``"params"`` and settings of their own.
        defaults: settings of groups that do not state theirs.
    """

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            raise ValueError("an optimizer needs at least one parameter")
        if not isinstance(groups[0], Mapping):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds parameters with settings of their own."""
        given = group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        known = {id(param) for other in self.param_groups for param in other["params"]}
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(f"an optimizer takes tensors, not {type(param).__name__}")
            if not param.is_leaf:
                raise ValueError("an optimizer takes leaves: this tensor was made of others")
            if id(param) in known:
                raise ValueError("a parameter is in several groups")
            known.add(id(param))
        self.param_groups.append({**self.defaults, **group, "params": params})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        for group in self.param_groups:
            forget_gradients(group["params"], set_to_none)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Changes all parameters that have gradients; what was recorded is computed, in one submission.

        Args:
            closure: computes the loss anew, with gradients.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        changed: list[Tensor] = []
        with no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        state = self.state.setdefault(param, {})
                        self.update(param, param.grad, group, state)
                        changed.append(param)
                        changed += [value for value in state.values() if isinstance(value, Tensor)]
        compute(changed)
        return loss

    def update(self, param: Tensor, grad: Tensor, group: Mapping[str, Any], state: dict[str, Any]) -> None:
        """Changes one parameter in place.

        Args:
            param: it.
            grad: its gradient.
            group: settings.
            state: what it remembers, kept from step to step.
        """
        raise NotImplementedError

    def remember(self, state: dict[str, Any], name: str, value: Tensor) -> Tensor:
        """Keeps a tensor from step to step, in the tensor that it is kept in already; returns that."""
        kept: Tensor | None = state.get(name)
        if kept is None:
            kept = state[name] = value.clone()
        else:
            kept.copy_(value)
        return kept

    def state_dict(self) -> dict[str, Any]:
        """State and settings, parameters by number, as PyTorch has them."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            groups.append({**group, "params": [numbers[id(param)] for param in group["params"]]})
        state = {numbers[id(param)]: dict(found) for param, found in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, for parameters in the same order; tensors are copied."""
        params = [param for group in self.param_groups for param in group["params"]]
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the state is of other groups of parameters")
        for group, found in zip(self.param_groups, groups, strict=True):
            group.update({key: value for key, value in found.items() if key != "params"})
        self.state = {
            params[int(at)]: {name: _own(value, params[int(at)]) for name, value in found.items()}
            for at, found in state_dict["state"].items()
        }


def _own(value: Any, param: Tensor) -> Any:
    """A copy where the parameter is, of tensors."""
    return value.detach().to(param.device).clone() if isinstance(value, Tensor) else value
