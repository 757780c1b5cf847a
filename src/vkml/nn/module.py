"""`Module`: parameters, buffers and modules within, by name."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vkml.ir import DType, dtypes
from vkml.nn import hooks
from vkml.nn.states import Incompatible, load, saved
from vkml.tensors import Tensor
from vkml.tensors.autograd import forget_gradients
from vkml.tensors.capture import captures
from vkml.tensors.hooks import Hook, Hooks, RemovableHandle
from vkml.tensors.jit import jit
from vkml.tensors.structure import Table, note_change
from vkml.tracing.value import mode

T = TypeVar("T", bound="Module")


class Parameter(Tensor):
    """A tensor that a module learns.

    Args:
        data: of what elements it begins with.
        requires_grad: whether gradients by it are wanted.
    """

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
        self.__dict__.update(_parameters=Table(), _buffers=Table(), _modules=Table(), _unsaved=set())
        self.__dict__["training"] = True
        self.__dict__.update(_hooks={}, _pre_hooks={}, _compiled=None)
        self.__dict__.update(_backward_hooks={}, _backward_pre_hooks={})

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What it computes.

        Args:
            *arguments: whatever it is called with.
            **named: likewise.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if captures.latest is not None:
            captures.latest.modules.setdefault(id(self), weakref.ref(self))
        if self._compiled is not None and not (mode.tracks and self._learns(arguments, named)):
            return self._compiled[self.training](*arguments, **named)
        return self._called(*arguments, **named)

    def _called(self, *arguments: Any, **named: Any) -> Any:
        if self._pre_hooks:
            arguments, named = hooks.before(self, self._pre_hooks, arguments, named)
        watch = None
        if self._backward_hooks or self._backward_pre_hooks:
            watch = hooks.Watch(self, self._backward_pre_hooks, self._backward_hooks)
            arguments = watch.begin(arguments)
        try:
            made = self.forward(*arguments, **named)
        except Exception:
            hooks.after(self, self._hooks, arguments, named, None, failed=True)
            raise
        if self._hooks:
            made = hooks.after(self, self._hooks, arguments, named, made)
        return made if watch is None else watch.end(made)

    def structure(self) -> list[Any]:
        """What a capture that calls it goes by: all that is in it, its hooks, and whether it trains."""
        found: list[Any] = []
        for module in self.modules():
            found += [module, module.training, *module._parameters.values(), *module._buffers.values()]
            tables = (module._hooks, module._pre_hooks, module._backward_hooks, module._backward_pre_hooks)
            found += [hook for table in tables for hook in table.values()]
        return found

    def _learns(self, arguments: Any, named: Any) -> bool:
        """Whether gradients flow through what it computes."""
        tensors = [*arguments, *named.values(), *self.parameters()]
        return any(isinstance(one, Tensor) and one.requires_grad for one in tensors)

    def compile(self, *arguments: Any, **named: Any) -> None:
        """Has what it computes without gradients be one plan for each form of arguments; see `vkml.jit`.

        Where gradients flow it is called as it is: `vkml.jit` takes a whole training step.

        Args:
            *arguments: accepted as PyTorch's, and passed over.
            **named: likewise.
        """
        self.__dict__["_compiled"] = {is_on: jit(self._called) for is_on in (False, True)}

    # -- attributes -----------------------------------------------------------------------------------------

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _unsaved: set[str]
    _hooks: Hooks
    _pre_hooks: Hooks
    _backward_hooks: Hooks
    _backward_pre_hooks: Hooks
    _compiled: dict[bool, Callable[..., Any]] | None

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
            for table in tables:
                table.pop(name, None)
            object.__setattr__(self, name, value)  # which calls a property's setter
            if name == "training":
                note_change()
            return
        if isinstance(getattr(type(self), name, None), property):
            raise KeyError(f"attribute {name!r} already exists")
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
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _check_name(self, name: str, table: Mapping[str, Any], what: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(f'{what} name can\'t contain "." or be empty, got: {name!r}')
        if name not in table and (name in self.__dict__ or hasattr(self, name)):
            raise KeyError(f"attribute {name!r} already exists")

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """Adds a parameter, or the place of one that is None.

        Args:
            name: the attribute.
            value: the parameter.

        Raises:
            KeyError: the name is another attribute's, or has a point in it.
            TypeError: the value is something else.
        """
        self._check_name(name, self._parameters, "parameter")
        if value is not None and not isinstance(value, Parameter):
            raise TypeError(f"cannot assign {type(value).__name__} as parameter {name!r}: Parameter or None")
        self._parameters[name] = value

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is no parameter, and part of `state_dict` where it is persistent.

        Args:
            name: the attribute.
            value: the tensor; None for the place of one.
            persistent: whether it is saved.

        Raises:
            KeyError: the name is another attribute's, or has a point in it.
            TypeError: the value is something else.
        """
        self._check_name(name, self._buffers, "buffer")
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"cannot assign {type(value).__name__} as buffer {name!r}: Tensor or None")
        self._buffers[name] = value
        (self._unsaved.discard if persistent else self._unsaved.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a module.

        Args:
            name: the attribute.
            module: the module; None for the place of one.

        Raises:
            KeyError: the name is another attribute's, or has a point in it.
            TypeError: it is something else.
        """
        self._check_name(name, self._modules, "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    register_module = add_module

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:  # fmt: skip
        """Has `hook(module, arguments, result)` called after `forward`, and takes what it returns.

        Args:
            hook: the function.
            prepend: whether it comes before those that there are.
            with_kwargs: whether named arguments come behind the others.
            always_call: whether it is called where `forward` raises, too.
        """
        made = Hook(hook, with_kwargs, always_call)
        return RemovableHandle(self, "_hooks", made, prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Has `hook(module, arguments)` called before `forward`; what it returns replaces the arguments.

        Args:
            hook: the function.
            prepend: whether it comes before those that there are.
            with_kwargs: whether named arguments come behind the others; it then returns both.
        """
        return RemovableHandle(self, "_pre_hooks", Hook(hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Has `hook(module, grad_input, grad_output)` called with gradients by arguments and results.

        They are tuples; None stands for what has no gradient. What the hook returns replaces `grad_input`.

        Args:
            hook: what is called.
            prepend: whether it comes before the other hooks.

        Returns:
            What takes the hook off again.
        """
        return RemovableHandle(self, "_backward_hooks", Hook(hook), prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Has `hook(module, grad_output)` called before; what it returns replaces `grad_output`.

        Args:
            hook: what is called.
            prepend: whether it comes before the other hooks.

        Returns:
            What takes the hook off again.
        """
        return RemovableHandle(self, "_backward_pre_hooks", Hook(hook), prepend)

    # -- what is in it --------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """It and all modules in it, with their names.

        Args:
            memo: modules that are left out.
            prefix: of the names.
            remove_duplicate: whether one with several names comes once.
        """
        seen: set[Module] = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(seen, inner, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """It and all modules in it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly in it, each once, with their names."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly in it, each once."""
        return (module for _, module in self.named_children())

    def _named(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        for inner, module in modules:
            for name, value in module.__dict__[table].items():
                if value is not None and not (once and id(value) in seen):
                    seen.add(id(value))
                    yield f"{inner}.{name}" if inner else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their names, each once unless `remove_duplicate` is off.

        Args:
            prefix: what their names begin with.
            recurse: whether those of modules in it come, too.
            remove_duplicate: whether each comes once, though it has several names.
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once.

        Args:
            recurse: whether those of modules in it come, too.
        """
        return (value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their names, each once unless `remove_duplicate` is off.

        Args:
            prefix: what their names begin with.
            recurse: whether those of modules in it come, too.
            remove_duplicate: whether each comes once, though it has several names.
        """
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once.

        Args:
            recurse: whether those of modules in it come, too.
        """
        return (value for _, value in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """A module in it by its name; itself by no name.

        Args:
            target: names with points between them.

        Raises:
            AttributeError: there is none.
        """
        found: Module = self
        for name in target.split(".") if target else ():
            inner = found._modules.get(name)
            if inner is None:
                raise AttributeError(f"{type(found).__name__} has no module {name!r} (of {target!r})")
            found = inner
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts a module in the place of one in it.

        Args:
            target: its name.
            module: the new one.
            strict: whether there has to be one.

        Raises:
            AttributeError: there is none where there has to be.
            ValueError: the name is empty.
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"{type(module).__name__} is not a Module")
        inner, _, name = target.rpartition(".")
        owner = self.get_submodule(inner)
        if strict and name not in owner._modules:
            raise AttributeError(f"{type(owner).__name__} has no module {name!r} (of {target!r})")
        setattr(owner, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """A parameter by its name.

        Args:
            target: names with points between them.

        Raises:
            AttributeError: there is none.
        """
        found: Parameter = self._get(target, "_parameters", "parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """A buffer by its name.

        Args:
            target: names with points between them.

        Raises:
            AttributeError: there is none.
        """
        found: Tensor = self._get(target, "_buffers", "buffer")
        return found

    def _get(self, target: str, table: str, what: str) -> Any:
        inner, _, name = target.rpartition(".")
        owner = self.get_submodule(inner)
        found = owner.__dict__[table].get(name)
        if found is None:
            raise AttributeError(f"{type(owner).__name__} has no {what} {name!r} (of {target!r})")
        return found

    # -- what becomes of it ---------------------------------------------------------------------------------

    def apply(self: T, act: Callable[[Module], Any]) -> T:
        """Calls a function with every module in it, and with itself last.

        Args:
            act: given a module.

        Returns:
            Itself.
        """
        for child in self.children():
            child.apply(act)
        act(self)
        return self

    def train(self: T, mode: bool = True) -> T:
        """Has it, and all in it, compute as for training, or not.

        Args:
            mode: False: as for use; see `eval`.

        Returns:
            Itself.
        """
        for module in self.modules():
            module.__dict__["training"] = mode
        note_change()
        return self

    def eval(self: T) -> T:
        """Has it compute as for use."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Has all its parameters require grad, or not; returns it.

        Args:
            requires_grad: whether.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients.

        Args:
            set_to_none: whether they are None afterwards; else zeros.
        """
        forget_gradients(self.parameters(), set_to_none)

    def to(self: T, *arguments: Any, device: Any = None, dtype: DType | None = None) -> T:
        """Moves and converts all parameters and buffers of floats; returns it.

        Args:
            *arguments: a device's name, a floating-point type, both, or a tensor that is alike.
            device: by name.
            dtype: by name.
        """
        for value in self._tensors():
            value._become_elsewhere(arguments, device, dtype)
        return self

    def _tensors(self, recurse: bool = True) -> Iterator[Tensor]:
        """All parameters and buffers, each once."""
        seen: set[int] = set()
        for table in ("_parameters", "_buffers"):
            for _, value in self._named(table, "", recurse, True):
                if id(value) not in seen:
                    seen.add(id(value))
                    yield value

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """Gives all parameters and buffers memory on a device that is yet to be written; returns it.

        Args:
            device: its name.
            recurse: whether those of modules in it, too.
        """
        for value in self._tensors(recurse):
            value._become_empty(device)
        return self

    def type(self: T, dst_type: DType) -> T:
        """Has all parameters and buffers of floats be of an element type; returns it.

        Args:
            dst_type: a floating-point type.
        """
        return self.to(dst_type)

    def float(self: T) -> T:
        """All parameters and buffers of floats as float32."""
        return self.to(dtypes.FLOAT32)

    def double(self: T) -> T:
        """All parameters and buffers of floats as float64."""
        return self.to(dtypes.FLOAT64)

    def half(self: T) -> T:
        """All parameters and buffers of floats as float16."""
        return self.to(dtypes.FLOAT16)

    def bfloat16(self: T) -> T:
        """All parameters and buffers of floats as bfloat16."""
        return self.to(dtypes.BFLOAT16)

    def cpu(self: T) -> T:
        """All of it on the CPU."""
        return self.to("cpu")

    # -- state ----------------------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """What else is saved of it: a tensor, where a subclass has something."""
        raise NotImplementedError

    def set_extra_state(self, state: Any) -> None:
        """Takes what `get_extra_state` gave.

        Args:
            state: what was saved.
        """
        raise NotImplementedError

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by PyTorch's names.

        Args:
            destination: what they are added to, and what is returned.
            prefix: of the names.
            keep_vars: whether they come themselves, and not detached.
        """
        found = {} if destination is None else destination
        for name, value in saved(self, prefix).items():
            found[name] = value if keep_vars or not isinstance(value, Tensor) else value.detach()
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Incompatible:
        """Takes parameters and buffers from tensors or arrays by their names.

        Args:
            state_dict: the tensors.
            strict: whether the names must be the same.
            assign: whether the tensors themselves become parameters and buffers, wherever they are.

        Returns:
            names that are missing among them, and names that it does not have.

        Raises:
            RuntimeError: one has another shape; or there are such names, and `strict` is on; or its own have
                no memory to be written, and `assign` is off.
        """
        return load(self, state_dict, strict, assign)

    # -- text -----------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` shows of it besides its modules."""
        return ""

    def __repr__(self) -> str:
        more, name = self.extra_repr(), type(self).__name__
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        if not lines:
            return f"{name}({more})"
        return f"{name}(\n  " + "\n  ".join([*more.splitlines(), *lines]) + "\n)"
