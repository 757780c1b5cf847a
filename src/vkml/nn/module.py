"""`Module`: parameters, buffers and modules within, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vkml.errors import InvalidArgument
from vkml.ir import DType
from vkml.tensors import Tensor
from vkml.tensors.autograd import forget_gradients, no_grad
from vkml.tensors.creation import tensor

T = TypeVar("T", bound="Module")


class Parameter(Tensor):
    """A tensor that a module learns."""

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.detach().value)
        if requires_grad:
            self.requires_grad_()

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Module:
    """Base of all layers; `forward` says what one computes.

    Parameters, buffers and modules that are assigned to attributes are found by `parameters`, `state_dict`
    and kin, under the names that PyTorch gives them.
    """

    training: bool = True

    def __init__(self) -> None:
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _unsaved=set(), training=True)
        self.__dict__.update(_hooks=[], _pre_hooks=[])

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What it computes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        for pre_hook in self._pre_hooks:
            changed = pre_hook(self, arguments)
            if changed is not None:
                arguments = changed if isinstance(changed, tuple) else (changed,)
        made = self.forward(*arguments, **named)
        for hook in self._hooks:
            changed = hook(self, arguments, made)
            if changed is not None:
                made = changed
        return made

    # -- attributes -----------------------------------------------------------------------------------------

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _unsaved: set[str]
    _hooks: list[Callable[..., Any]]
    _pre_hooks: list[Callable[..., Any]]

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError("call super().__init__() before attributes are assigned")
        tables: tuple[dict[str, Any], ...] = (self._parameters, self._modules, self._buffers)
        if isinstance(value, Parameter):
            chosen = tables[0]
        elif isinstance(value, Module):
            chosen = tables[1]
        elif name in self._buffers and (value is None or isinstance(value, Tensor)):
            chosen = tables[2]
        elif value is None and any(name in table for table in tables):
            chosen = next(table for table in tables if name in table)
        elif name in self._parameters:
            raise TypeError(
                f"'{name}' is a parameter: assign a Parameter or None, not {type(value).__name__}"
            )
        else:
            chosen = self.__dict__
        for table in (*tables, self.__dict__):
            if table is not chosen:
                table.pop(name, None)
        chosen[name] = value

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules, self.__dict__):
            if name in table:
                del table[name]
                return
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """Adds a parameter, or the place of one that is None."""
        self._parameters[name] = value

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is no parameter, and part of `state_dict` where it is persistent."""
        self._buffers[name] = value
        if not persistent:
            self._unsaved.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a module."""
        self._modules[name] = module

    def register_forward_hook(self, hook: Callable[..., Any]) -> None:
        """Has `hook(module, arguments, result)` called after `forward`, and takes what it returns."""
        self._hooks.append(hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> None:
        """Has `hook(module, arguments)` called before `forward`; what it returns replaces the arguments."""
        self._pre_hooks.append(hook)

    # -- what is in it --------------------------------------------------------------------------------------

    def named_modules(self, prefix: str = "", _seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        """It and all modules in it, each once, with their names."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """It and all modules in it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly in it, with their names."""
        return ((name, module) for name, module in self._modules.items() if module is not None)

    def children(self) -> Iterator[Module]:
        """The modules directly in it."""
        return (module for _, module in self.named_children())

    def _named(self, table: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for prefix, module in self.named_modules() if recurse else [("", self)]:
            for name, value in module.__dict__[table].items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each once, with their names."""
        return self._named("_parameters", recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (value for _, value in self.named_parameters(recurse))

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers, each once, with their names."""
        return self._named("_buffers", recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (value for _, value in self.named_buffers(recurse))

    # -- what becomes of it ---------------------------------------------------------------------------------

    def apply(self: T, act: Callable[[Module], Any]) -> T:
        """Calls a function with every module in it, and with itself last."""
        for child in self.children():
            child.apply(act)
        act(self)
        return self

    def train(self: T, mode: bool = True) -> T:
        """Has it, and all in it, compute as for training, or not."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self: T) -> T:
        """Has it compute as for use."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Has all its parameters require grad, or not."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        forget_gradients(self.parameters(), set_to_none)

    def to(self: T, *arguments: Any, device: Any = None, dtype: DType | None = None) -> T:
        """Moves and converts all parameters and buffers of floats; returns it."""
        for module in self.modules():
            for table in (module._parameters, module._buffers):
                for value in table.values():
                    if value is not None:
                        value._become_elsewhere(arguments, device, dtype)
        return self

    def float(self: T) -> T:
        """All parameters and buffers of floats as float32."""
        from vkml.ir.dtypes import FLOAT32

        return self.to(FLOAT32)

    def cpu(self: T) -> T:
        """All of it on the CPU."""
        return self.to("cpu")

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by PyTorch's names, detached."""
        return {name: value.detach() for name, value in self._saved().items()}

    def _saved(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by PyTorch's names."""
        found: dict[str, Tensor] = {}
        for prefix, module in self.named_modules():
            for table in (module._parameters, module._buffers):
                for name, value in table.items():
                    if value is not None and not (table is module._buffers and name in module._unsaved):
                        found[f"{prefix}.{name}" if prefix else name] = value
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Takes parameters and buffers from tensors or arrays by their names.

        Returns:
            names that are missing among them, and names that it does not have.

        Raises:
            RuntimeError: one has another shape; or there are such names, and `strict` is on.
        """
        own = self._saved()
        missing = [name for name in own if name not in state_dict]
        more = [name for name in state_dict if name not in own]
        found = {
            name: value if isinstance(value, Tensor) else tensor(value)
            for name, value in state_dict.items()
            if name in own
        }
        wrong = [
            f"{name}: {list(value.shape)} instead of {list(own[name].shape)}"
            for name, value in found.items()
            if value.shape != own[name].shape
        ]
        if wrong or (strict and (missing or more)):
            parts = [("missing: " + ", ".join(missing))] if missing and strict else []
            parts += [("not known: " + ", ".join(more))] if more and strict else []
            parts += ["of other shapes: " + ", ".join(wrong)] if wrong else []
            raise InvalidState(f"the state does not fit {type(self).__name__}; " + "; ".join(parts))
        with no_grad():
            for name, value in found.items():
                own[name].copy_(value.to(own[name].device))
        return missing, more

    # -- text -----------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` shows of it besides its modules."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self.named_children()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


class InvalidState(InvalidArgument, RuntimeError):
    """A state is not one of the module that is to take it."""
