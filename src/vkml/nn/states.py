"""States of modules: what is saved of them by name, and how they take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vkml.errors import InvalidArgument
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import tensor

if TYPE_CHECKING:
    from vkml.nn.module import Module

_EXTRA = "_extra_state"


class Incompatible(NamedTuple):
    """What names of a state did not fit."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"Incompatible(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class InvalidState(InvalidArgument, RuntimeError):
    """A state is not one of the module that is to take it."""


def saved(module: Module, prefix: str = "") -> dict[str, Any]:
    """Parameters, persistent buffers and extra states of a module by PyTorch's names, all that they have.

    Args:
        module: whose state it is.
        prefix: of the names.
    """
    from vkml.nn.module import Module

    found: dict[str, Any] = {}
    for inner, part in module.named_modules(prefix=prefix.removesuffix("."), remove_duplicate=False):
        start = f"{inner}." if inner else ""
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None and not (table is part._buffers and name in part._unsaved):
                    found[start + name] = value
        if type(part).get_extra_state is not Module.get_extra_state:
            found[start + _EXTRA] = part.get_extra_state()
    return found


def load(module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> Incompatible:
    """Has a module take a state; see `Module.load_state_dict`."""
    own = saved(module)
    missing = [name for name in own if name not in state_dict]
    more = [name for name in state_dict if name not in own]
    extra = {name for name in own if name.rpartition(".")[2] == _EXTRA}
    found = {
        name: value if isinstance(value, Tensor) else tensor(value)
        for name, value in state_dict.items()
        if name in own and name not in extra
    }
    # An uninitialized tensor takes any shape, and another one leaves it as it is.
    waiting = [name for name in found if hasattr(own[name], "materialize")]
    found = {name: x for name, x in found.items() if name not in waiting or not hasattr(x, "materialize")}
    wrong = [
        f"{name}: {list(value.shape)} instead of {list(own[name].shape)}"
        for name, value in found.items()
        if name not in waiting and value.shape != own[name].shape
    ]
    empty = [name for name in found if own[name].is_meta and not assign]
    if wrong or empty or (strict and (missing or more)):
        parts = [("missing: " + ", ".join(missing))] if missing and strict else []
        parts += [("not known: " + ", ".join(more))] if more and strict else []
        parts += ["of other shapes: " + ", ".join(wrong)] if wrong else []
        parts += [f"without data (assign=True, or to_empty() before): {', '.join(empty)}"] if empty else []
        raise InvalidState(f"the state does not fit {type(module).__name__}; " + "; ".join(parts))
    with no_grad():
        for name, value in found.items():
            if name in waiting:
                own[name].materialize(value.shape)
            if assign:
                _assign(module, name, value)
            else:
                own[name].copy_(value.to(own[name].device))
    for name in extra:
        if name in state_dict:
            module.get_submodule(name.rpartition(".")[0]).set_extra_state(state_dict[name])
    return Incompatible(missing, more)


def _assign(module: Module, name: str, value: Tensor) -> None:
    from vkml.nn.module import Parameter

    inner, _, last = name.rpartition(".")
    owner = module.get_submodule(inner)
    before = owner._parameters.get(last)
    if before is None:
        owner._buffers[last] = value
    elif isinstance(value, Parameter):
        owner._parameters[last] = value
    else:
        owner._parameters[last] = Parameter(value, before.requires_grad)
