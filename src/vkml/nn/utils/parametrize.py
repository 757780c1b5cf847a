"""Parameters and buffers that are computed from others, as in `torch.nn.utils.parametrize`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vkml.nn.containers import ModuleDict, ModuleList
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "type_before_parametrizations",
]  # fmt: skip


class _Cache(threading.local):
    """Each thread's: another one's training must not go on with what this one has kept."""

    def __init__(self) -> None:
        self.depth = 0
        """How many blocks of `cached` there are around what runs."""
        self.kept: dict[tuple[Module, str], Tensor] = {}


_cache = _Cache()


@contextmanager
def cached() -> Iterator[None]:
    """Has every parametrized tensor computed once inside of the block, at its first use.

    For what reads a tensor several times, such as a recurrent cell in a loop. What is changed in between is
    not seen.
    """
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.kept.clear()


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, and what they are computed from.

    That is called `original`, or `original0`, `original1`, … where the first parametrization takes several
    tensors: as many as its `right_inverse` returns. `register_parametrization` makes these.

    Args:
        modules: parametrizations, the first applied first.
        original: the tensor as it was.
        unsafe: whether type and shape may change.

    Raises:
        ValueError: a parametrization or a `right_inverse` returns something else than it may.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        before = original.dtype, original.shape
        found = self._inverted(original, may_miss=True)
        if not isinstance(found, Tensor | Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(found).__name__}"
            )
        self.is_tensor = isinstance(found, Tensor)
        self.ntensors = 1 if isinstance(found, Tensor) else len(found)
        if isinstance(found, Tensor):
            for what, one, other in (
                ("dtype", original.dtype, found.dtype), ("device", original.device, found.device),
            ):  # fmt: skip
                if one != other:
                    raise ValueError(
                        f"When `right_inverse` outputs one tensor, it may not change the {what}.\n"
                        f"original.{what}: {one}\nright_inverse(original).{what}: {other}"
                    )
            _set(original, found)
            _register(self, "original", original)
        else:
            for at, part in enumerate(found):
                if not isinstance(part, Tensor):
                    raise ValueError(
                        f"'right_inverse' must return a Tensor or a Sequence of tensors. Got element {at} of "
                        f"the sequence with type {type(part).__name__}."
                    )
                is_parameter = isinstance(original, Parameter)
                made = Parameter(part, original.requires_grad) if is_parameter else part.detach()
                _register(self, f"original{at}", made)
        if not unsafe:
            _check(self(), before, "registering a parametrization")

    def _inverted(self, value: Any, may_miss: bool) -> Any:
        """What the first parametrization computes a value of."""
        with no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    try:
                        value = module.right_inverse(value)
                    except NotImplementedError:
                        if not may_miss:
                            raise
                elif not may_miss:
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Has the tensor be of a value, by the `right_inverse` of each parametrization, the last first.

        Args:
            value: what the tensor is to be.

        Raises:
            RuntimeError: a parametrization has none.
            ValueError: one returns something else than what there is.
        """
        found = self._inverted(value, may_miss=False)
        if self.is_tensor:
            if not isinstance(found, Tensor):
                raise ValueError(f"`right_inverse` should return a tensor. Got {type(found).__name__}")
            if found.dtype != self.original.dtype:
                raise ValueError(
                    f"The tensor returned by `right_inverse` has dtype {found.dtype} while `original` has "
                    f"dtype {self.original.dtype}"
                )
            _set(self.original, found)
            return
        if not isinstance(found, Sequence):
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors. Got {type(found).__name__}."
            )
        if len(found) != self.ntensors:
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got "
                f"a sequence of length {len(found)}."
            )
        for at, part in enumerate(found):
            held = getattr(self, f"original{at}")
            if not isinstance(part, Tensor):
                raise ValueError(
                    f"'right_inverse' must return a sequence of tensors. Got element {at} of type "
                    f"{type(part).__name__}."
                )
            if part.dtype != held.dtype:
                raise ValueError(
                    f"Tensor {at} returned by `right_inverse` has dtype {part.dtype} while `original{at}` "
                    f"has dtype {held.dtype}"
                )
            _set(held, part)

    def forward(self) -> Tensor:
        first, *others = self
        if self.is_tensor:
            found = first(self.original)
        else:
            found = first(*(getattr(self, f"original{at}") for at in range(self.ntensors)))
        for module in others:
            found = module(found)
        return found  # type: ignore[no-any-return]


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _set(held: Tensor, value: Tensor) -> None:
    """Gives a tensor a value that may have another shape; it stays the one that an optimizer has."""
    if value is held:
        return
    with no_grad():
        if value.shape == held.shape and value.device == held.device:
            held.copy_(value)
        else:
            held._put(value.detach().clone().value)


def _check(found: Any, wanted: tuple[Any, Any], what: str) -> None:
    """Raises where a parametrized tensor is not of a type and a shape."""
    if not isinstance(found, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(found).__name__}.")
    for name, one, other in zip(("dtype", "shape"), (found.dtype, found.shape), wanted, strict=True):
        if one != other:
            raise ValueError(
                f"{what} may not change the {name} of the tensor, unless the `unsafe` flag is enabled: "
                f"{one} instead of {other}"
            )


def _property(name: str) -> property:
    def get(module: Module) -> Tensor:
        parametrizations = module._modules["parametrizations"]
        assert isinstance(parametrizations, ModuleDict)
        if not _cache.depth:
            return parametrizations[name]()  # type: ignore[no-any-return]
        key = module, name
        if key not in _cache.kept:
            _cache.kept[key] = parametrizations[name]()
        return _cache.kept[key]

    def write(module: Module, value: Tensor) -> None:
        parametrizations = module._modules["parametrizations"]
        assert isinstance(parametrizations, ModuleDict)
        found = parametrizations[name]
        assert isinstance(found, ParametrizationList)
        found.right_inverse(value)

    return property(get, write)


@functools.cache
def _parametrized(kind: type, names: frozenset[str]) -> type:
    """A class like another, whose attributes of these names are what parametrizations make."""
    properties = {name: _property(name) for name in names}
    return type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__, **properties})


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Has a parameter or buffer of a module be what a parametrization makes of it.

    From then on `module.weight`, say, is `parametrization(module.parametrizations.weight.original)`, computed
    at each use; gradients flow to `original`, which is what the module learns. Several parametrizations of
    one tensor are applied one after the other. Where all have `right_inverse`, a value can be assigned to it.

    Args:
        module: whose tensor it is; its class becomes `Parametrized…`, one of the class that it had.
        tensor_name: the parameter's or buffer's.
        parametrization: a module whose `forward` takes the original tensor, or as many tensors as its
            `right_inverse` returns, which is called with the tensor as it is now.
        unsafe: whether element type and shape may change; nothing is checked.

    Returns:
        the module.

    Raises:
        ValueError: there is no such tensor, or the parametrization changes its type or shape.

    Example:
        >>> from vkml import nn
        >>> class Symmetric(nn.Module):
        ...     def forward(self, x):
        ...         return x.triu() + x.triu(1).T
        >>> layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
        >>> bool((layer.weight == layer.weight.T).all())
        True
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        found = module.parametrizations[tensor_name]
        if not unsafe:
            _check_next(getattr(module, tensor_name), parametrization)
        found.append(parametrization)
        found.unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        original = getattr(module, tensor_name)
        made = ParametrizationList([parametrization], original, unsafe)
        delattr(module, tensor_name)
        kind = type_before_parametrizations(module)
        if not is_parametrized(module):
            module.parametrizations = ModuleDict()
        module.parametrizations[tensor_name] = made
        module.__class__ = _parametrized(kind, frozenset(module.parametrizations))
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    return module


def _check_next(now: Tensor, parametrization: Module) -> None:
    """Raises where a further parametrization does not fit what there is."""
    wanted = now.dtype, now.shape
    with no_grad():
        found = parametrization(now)
        _check(found, wanted, "registering a parametrization")
        if hasattr(parametrization, "right_inverse"):
            try:
                back = parametrization.right_inverse(found)
            except NotImplementedError:
                return
            if not isinstance(back, Tensor):
                raise ValueError(
                    f"parametrization.right_inverse must return a tensor. Got: {type(back).__name__}"
                )
            _check(back, wanted, "parametrization.right_inverse")


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has a parametrized tensor, or one of this name.

    Args:
        module: any.
        tensor_name: of a parameter or buffer; None: any.
    """
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Makes a parametrized tensor a parameter or buffer again.

    Args:
        module: whose it is.
        tensor_name: its name.
        leave_parametrized: whether it keeps the value that it has now; else it has that of `original`. The
            parameter is the one that was `original`, unless there were several, of which a new one is made.

    Returns:
        the module.

    Raises:
        ValueError: it is not parametrized, or has several originals and is not to keep its value.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    found = module.parametrizations[tensor_name]
    if found.is_tensor:
        original = found.original
        if leave_parametrized:
            with no_grad():
                _set(original, getattr(module, tensor_name))
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value) if value.requires_grad else value
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms "
            "of a sequence of tensors."
        )
    kind = type_before_parametrizations(module)
    del module.parametrizations[tensor_name]
    if is_parametrized(module):
        module.__class__ = _parametrized(kind, frozenset(module.parametrizations))
    else:
        del module.parametrizations
        module.__class__ = kind
    _register(module, tensor_name, original)
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class of a module without that of its parametrizations.

    Args:
        module: any.
    """
    return type(module).__bases__[0] if is_parametrized(module) else type(module)
