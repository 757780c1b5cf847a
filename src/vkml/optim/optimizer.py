"""What all optimizers share: groups of parameters with their settings, and state a parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast
from weakref import ref

from vkml.errors import NotImplemented as NotSupported
from vkml.ir import DType
from vkml.ir.dtypes import FLOAT32, FLOAT64
from vkml.optim.forms import plus
from vkml.optim.settings import SettingsRead, is_on
from vkml.tensors import Tensor
from vkml.tensors.autograd import enable_grad, forget_gradients, no_grad
from vkml.tensors.backward import Before, compute, undo
from vkml.tensors.creation import as_tensor, zeros, zeros_like
from vkml.tensors.elementwise import maximum, where
from vkml.tensors.hooks import Hook, Hooks, RemovableHandle

F = TypeVar("F", bound=Callable[..., Any])
Settings = Mapping[str, Any]


def _hooked(step: F) -> F:
    """A step with the hooks of its optimizer; of one within another only the outer one calls them."""

    @functools.wraps(step)
    def run(self: Optimizer, *arguments: Any, **named: Any) -> Any:
        self._opt_called = True
        if self._is_stepping:
            return step(self, *arguments, **named)
        self._is_stepping = True
        try:
            for pre in list(self._step_pre_hooks.values()):
                changed = pre.act(self, arguments, named)
                if changed is not None:
                    if not isinstance(changed, tuple) or len(changed) != 2:
                        raise RuntimeError(
                            "a step's pre hook returns None or a tuple of new arguments and new named "
                            f"arguments, not {changed!r}"
                        )
                    arguments, named = changed
            made = step(self, *arguments, **named)
            for post in list(self._step_post_hooks.values()):
                post.act(self, arguments, named)
            return made
        finally:
            self._is_stepping = False

    return cast(F, run)


class Optimizer:
    """Base of all optimizers; `begin` and `update` say what becomes of one parameter.

    Settings are numbers of Python's, or tensors of one element. In a function that `vkml.jit` captures, a
    number is part of what is captured as long as it stays the same; where it has changed before a run (set
    by hand, or by a scheduler), the function is captured once more, with the number as an input, so that
    later changes cost nothing. A scheduler says on its own which settings it is going to change: these are
    inputs from the start. A learning rate that is a tensor, `lr=vkml.tensor(0.1)`, is always one.

    Args:
        params: parameters, named ones, or groups of them: mappings with ``"params"`` and settings of their
            own.
        defaults: settings of groups that do not state theirs.
    """

    tunable: tuple[str, ...] = ("lr", "weight_decay", "eps")
    """Settings that may be inputs of a capture: numbers, or tuples of them, that decide no structure."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError("an optimizer takes an iterable of tensors or of groups of them, not a tensor")
        self.defaults = dict(defaults)
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        self.varying: set[str] = set()
        """Settings that captures read anew in each run."""
        self.found_inf: Mapping[str, Tensor] | None = None
        """By device: where one is not 0, a step leaves everything as it was. `vkml.GradScaler` sets it."""
        self._step_pre_hooks: Hooks = {}
        self._step_post_hooks: Hooks = {}
        self._opt_called = self._is_stepping = False
        groups = list(params)
        if not groups:
            raise ValueError("an optimizer needs at least one parameter")
        if not isinstance(groups[0], Mapping):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __repr__(self) -> str:
        lines = []
        for at, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {at}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return f"{type(self).__name__} (\n" + "\n".join(lines) + "\n)"

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Adds parameters with settings of their own.

        Args:
            param_group: "params", tensors or pairs of names and tensors, and settings; others are the
                optimizer's.

        Raises:
            TypeError: something among them is no tensor, or they have no order.
            ValueError: one is no leaf, or is in another group; some have names and some have none.
        """
        given = param_group["params"]
        if isinstance(given, set | frozenset):
            raise TypeError("an optimizer takes parameters in an order, as a list has one, not a set")
        found = [given] if isinstance(given, Tensor) else list(given)
        names = [item[0] for item in found if isinstance(item, tuple)]
        params = [item[1] if isinstance(item, tuple) else item for item in found]
        group = {**self.defaults, **param_group, "params": params}
        if names:
            group["param_names"] = names
        if (names and len(names) != len(params)) or any(
            ("param_names" in other) != ("param_names" in group) for other in self.param_groups
        ):
            raise ValueError("either all parameters of an optimizer have names, or none")
        known = {id(param) for other in self.param_groups for param in other["params"]}
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(f"an optimizer takes tensors, not {type(param).__name__}")
            if not param.is_leaf:
                raise ValueError("an optimizer takes leaves: this tensor was made of others")
            if id(param) in known:
                raise ValueError("a parameter is in several groups, or twice in one")
            known.add(id(param))
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients.

        Args:
            set_to_none: whether they are None afterwards; else zeros.
        """
        for group in self.param_groups:
            forget_gradients(group["params"], set_to_none)

    # -- steps ----------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Changes all parameters that have gradients; what was recorded is computed, in one submission.

        Args:
            closure: computes the loss anew, with gradients.

        Returns:
            what the closure returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        changed: list[Tensor] = []
        written: list[Before] = []
        with no_grad():
            read = SettingsRead(self)
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        settings = read.of(group, accumulating(param))
                        self._update(param, param.grad, settings, changed, written)
        try:
            compute(changed)
        except BaseException:
            undo(written)  # a step that cannot be computed has not been taken
            raise
        return loss

    def _update(
        self, param: Tensor, grad: Tensor, settings: Settings, changed: list[Tensor], written: list[Before]
    ) -> None:
        state = self.state.get(param)
        if state is None:
            state = self.begin(param, settings)
            if state:
                self.state[param] = state
        written += [(ref(tensor), tensor._traced) for tensor in (param, *_tensors(state))]
        if self.found_inf is None:
            self.update(param, grad, settings, state)
        else:
            is_over = functools.reduce(maximum, [x.to(param.device) for x in self.found_inf.values()])
            before = [(tensor, Tensor(tensor.value)) for tensor in [param, *_tensors(state)]]
            self.update(param, grad, settings, state)
            for tensor, was in before:
                tensor.copy_(where(is_over, was, tensor))
        changed.append(param)
        if state:
            self.state[param] = state
            changed += _tensors(state)

    def begin(self, param: Tensor, group: Settings) -> dict[str, Any]:
        """What a parameter's state is before its first step: tensors where the parameter is.

        Args:
            param: it.
            group: settings.
        """
        return {}

    def update(self, param: Tensor, grad: Tensor, group: Settings, state: dict[str, Any]) -> None:
        """Changes one parameter, and its state, in place.

        Args:
            param: it.
            grad: its gradient.
            group: settings.
            state: what it remembers, kept from step to step.
        """
        raise NotImplementedError

    def can_skip(self) -> bool:
        """Whether a step obeys `found_inf`; otherwise whoever wants one skipped does not call it."""
        return type(self).update is not Optimizer.update

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Has `hook(optimizer, arguments, named)` called before each step; it may return other arguments.

        Args:
            hook: what is called.

        Returns:
            What takes the hook off again.
        """
        return RemovableHandle(self, "_step_pre_hooks", Hook(hook))

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Has `hook(optimizer, arguments, named)` called after each step.

        Args:
            hook: what is called.

        Returns:
            What takes the hook off again.
        """
        return RemovableHandle(self, "_step_post_hooks", Hook(hook))

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State and settings, parameters by number, as PyTorch has them."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            groups.append({**group, "params": [numbers[id(param)] for param in group["params"]]})
        state = {numbers[id(param)]: dict(found) for param, found in self.state.items()}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, or PyTorch's, for parameters in the same order; tensors are copied.

        Args:
            state_dict: state and settings.

        Raises:
            ValueError: it is of other groups of parameters.
        """
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(
                f"the state is of {[len(group['params']) for group in groups]} parameters a group, this "
                f"optimizer has {[len(group['params']) for group in self.param_groups]}"
            )
        params: dict[int, Tensor] = {}
        for group, found in zip(self.param_groups, groups, strict=True):
            params.update(zip(map(int, found["params"]), group["params"], strict=True))
            for name, value in found.items():
                if name != "params":
                    group[name] = tuple(value) if isinstance(self.defaults.get(name), tuple) else value
        self.state = {
            params[int(at)]: {name: _own(value, params[int(at)], name) for name, value in found.items()}
            for at, found in state_dict["state"].items()
        }


Optimizer.step = _hooked(Optimizer.step)  # type: ignore[method-assign]


def _tensors(state: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]


def _own(value: Any, param: Tensor, name: str) -> Any:
    """A copy of tensors where the parameter is, of its type, but for counters, which halves cannot hold."""
    if isinstance(value, list | tuple):
        return type(value)([_own(item, param, name) for item in value])
    if not isinstance(value, Tensor) and not hasattr(value, "__array__"):
        return value
    kind = accumulating(param) if name in ("step", "mu_product", "eta", "mu") else param.dtype
    return as_tensor(value).detach().to(param.device, kind).clone()


def accumulating(param: Tensor) -> DType:
    """The type of numbers that go with a parameter: halves count to 2048 only."""
    return FLOAT64 if param.dtype == FLOAT64 else FLOAT32


def counter(param: Tensor) -> Tensor:
    """A tensor of its own that counts steps from 0, so that a captured step counts on."""
    return zeros(dtype=accumulating(param), device=param.device)


def moment(param: Tensor) -> Tensor:
    """Zeros like a parameter."""
    found: Tensor = zeros_like(param)
    return found


def directed(param: Tensor, grad: Tensor, group: Settings) -> Tensor:
    """The gradient in the direction that is left, with the weights' decay in it."""
    if group["maximize"]:
        grad = -grad
    decay = group["weight_decay"]
    return plus(grad, param, decay) if is_on(decay) else grad


def checked(params: Iterable[Any], defaults: Mapping[str, Any]) -> tuple[Iterable[Any], dict[str, Any]]:
    """Parameters and settings whose numbers can be meant.

    Raises:
        ValueError: a number is negative, or a share outside of [0, 1).
    """
    for name, value in defaults.items():
        if name == "betas":
            if not all(0 <= beta < 1 for beta in value):
                raise ValueError(f"betas are {value}, they must lie in [0, 1)")
        elif isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(f"{name} as a tensor has one element, not {value.numel()}")
        elif isinstance(value, float | int) and name not in _SIGNED and not value >= 0:
            raise ValueError(f"{name} is {value}, it must not be negative")
    if defaults.get("differentiable"):
        raise NotSupported("steps are not differentiable: write the update as an expression for that")
    return params, dict(defaults)


_SIGNED = frozenset(["beta2_decay", "dampening"])
