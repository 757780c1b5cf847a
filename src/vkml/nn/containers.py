"""Modules that hold others, or parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor


class Sequential(Module):
    """Modules one after the other.

    Args:
        *modules: one by one, or one mapping of them by name.

    Example:
        >>> from vkml import nn
        >>> nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named: Iterable[tuple[str, Module]] = modules[0].items()
        else:
            named = ((str(at), module) for at, module in enumerate(modules))
        for name, module in named:
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x

    def append(self, module: Module) -> Sequential:
        """Adds one at the end.

        Args:
            module: what is added.

        Returns:
            Itself.
        """
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Sequential:
        """Adds several at the end.

        Args:
            modules: what is added, in order.

        Returns:
            Itself.
        """
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Sequential:
        """Puts one before another; all are then numbered anew.

        Args:
            index: before which; below 0 counted from the end.
            module: what is put there.

        Returns:
            Itself.

        Raises:
            IndexError: there is no such place.
        """
        found = list(self)
        if not -len(found) <= index <= len(found):
            raise IndexError(f"Index out of range: {index}")
        found.insert(index, module)
        _number(self, found)
        return self

    def pop(self, index: int | slice) -> Any:
        """Takes one out, or several.

        Args:
            index: which one; or a slice.

        Returns:
            What is taken out.
        """
        found = self[index]
        del self[index]
        return found

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Sequential:
        return self.extend(list(other))

    def __mul__(self, times: int) -> Sequential:
        if times <= 0:
            raise ValueError(f"a Sequential is repeated once at least, not {times} times")
        return Sequential(*list(self) * times)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(_all(self))

    def __getitem__(self, index: int | slice) -> Any:
        names = list(self._modules)[index]
        if isinstance(names, str):
            return self._modules[names]
        return type(self)({name: self._modules[name] for name in names})

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)[index]
        for name in [names] if isinstance(names, str) else names:
            del self._modules[name]
        if all(name.isdigit() for name in self._modules):
            _number(self, list(self))


def _all(container: Module) -> list[Module]:
    """What a container holds, in order; one that it holds twice comes twice."""
    return [module for module in container._modules.values() if module is not None]


def _number(container: Module, modules: Iterable[Module]) -> None:
    """Has a container hold modules under the numbers of their places."""
    found = {str(at): module for at, module in enumerate(modules)}
    container._modules.clear()
    container._modules.update(found)


class ModuleList(Module):
    """A list of modules.

    Args:
        modules: in order.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Adds one.

        Args:
            module: what is added.

        Returns:
            Itself.
        """
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Adds several.

        Args:
            modules: what is added, in order.

        Returns:
            Itself.
        """
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Puts one before another.

        Args:
            index: before which; below 0 counted from the end.
            module: what is put there.
        """
        found = list(self)
        found.insert(index, module)
        _number(self, found)

    def pop(self, index: int | slice) -> Any:
        """Takes one out, or several.

        Args:
            index: which one; or a slice.

        Returns:
            What is taken out.
        """
        found = self[index]
        del self[index]
        return found

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(list(other))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(_all(self))

    def __getitem__(self, index: int | slice) -> Any:
        found = _all(self)[index]
        return type(self)(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], module)

    def __delitem__(self, index: int | slice) -> None:
        found = list(self)
        del found[index]
        _number(self, found)


Held = TypeVar("Held")


class _Named(Module, Generic[Held]):
    """What is held by name."""

    def _table(self) -> dict[str, Any]:
        raise NotImplementedError

    def __init__(self, held: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self.update(held or {})

    def __getitem__(self, name: str) -> Held:
        found: Held = self._table()[name]
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        raise NotImplementedError

    def __delitem__(self, name: str) -> None:
        del self._table()[name]

    def __len__(self) -> int:
        return len(self._table())

    def __iter__(self) -> Iterator[str]:
        return iter(self._table())

    def __contains__(self, name: str) -> bool:
        return name in self._table()

    def pop(self, name: str) -> Held:
        """Takes one out."""
        found = self[name]
        del self[name]
        return found

    def update(self, held: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Adds several, in the place of those of the same names."""
        pairs = held.items() if isinstance(held, Mapping | _Named) else held
        for name, value in pairs:
            self[name] = value

    def clear(self) -> None:
        """Takes all out."""
        self._table().clear()

    def keys(self) -> Iterable[str]:
        """Names."""
        return self._table().keys()

    def values(self) -> Iterable[Held]:
        """What is held."""
        return list(self._table().values())

    def items(self) -> Iterable[tuple[str, Held]]:
        """Names, and what is held by them."""
        return list(self._table().items())


class ModuleDict(_Named[Module]):
    """Modules by name.

    Args:
        held: a mapping, or pairs of names and modules.
    """

    def _table(self) -> dict[str, Any]:
        return self._modules

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)


def _parameter(value: Tensor) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """A list of parameters; tensors become such.

    Args:
        values: in order.
    """

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.extend(values)

    def append(self, value: Tensor) -> ParameterList:
        """Adds one.

        Args:
            value: what is added.

        Returns:
            Itself.
        """
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> ParameterList:
        """Adds several.

        Args:
            values: what is added, in order.

        Returns:
            Itself.
        """
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, other: Iterable[Tensor]) -> ParameterList:
        return self.extend(list(other))

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._all())

    def _all(self) -> list[Parameter]:
        return [value for value in self._parameters.values() if value is not None]

    def __getitem__(self, index: int | slice) -> Any:
        found = self._all()[index]
        return ParameterList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, value: Tensor) -> None:
        self._parameters[str(range(len(self))[index])] = _parameter(value)


class ParameterDict(_Named[Parameter]):
    """Parameters by name; tensors become such.

    Args:
        held: a mapping, or pairs of names and values.
    """

    def _table(self) -> dict[str, Any]:
        return self._parameters

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.register_parameter(name, _parameter(value))
