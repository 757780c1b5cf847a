"""`dataclass` with methods that cost nothing until they are called.

The standard one compiles the text of six functions for a frozen class, which takes 0.3 ms: of the 150 ms that
a session's modules took to be imported it was 100, for 207 classes of which mnist-12's makes objects of 93.
Here `__init__` is compiled for the first object, and the others are closures. Fields and what works by them,
as `dataclasses.replace`, are the standard's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        repr: bool = True,
        eq: bool = True,
        frozen: bool = False,
        slots: bool = False,
    ) -> Any:
        """As `dataclasses.dataclass`, of whose arguments it has those that vkml uses."""

        def decorate(cls: type) -> type:
            if frozen and slots:  # these want methods for pickling, too
                return dataclasses.dataclass(repr=repr, eq=eq, frozen=True, slots=True)(cls)
            return _decorated(cls, shows=repr, compares=eq, frozen=frozen, slots=slots)

        return decorate if cls is None else decorate(cls)


def _decorated(cls: type, shows: bool, compares: bool, frozen: bool, slots: bool) -> type:
    stated = cls.__doc__
    if stated is None:
        cls.__doc__ = cls.__name__  # else the signature, for which __init__ would have to be there
    own = set(vars(cls))
    if "__eq__" in own and vars(cls).get("__hash__", cls) is None:
        own.remove("__hash__")  # Python's doing, not the author's
    # Of an heir the standard wants to hear what its base was told.
    inherits = frozen and any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
    bare = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=inherits, slots=slots)
    made: type[Any] = bare(cls)
    made.__dataclass_params__.frozen = frozen
    if stated is None:
        made.__doc__ = None
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {"__init__": _Initializer(made, frozen, slots)}
    if shows:
        methods["__repr__"] = _shower([field.name for field in fields if field.repr])
    if compares:
        methods["__eq__"] = _comparer(_values([field.name for field in fields if field.compare]))
        hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
        methods["__hash__"] = _hasher(_values(hashed)) if frozen else None
    if frozen and not inherits:
        methods |= _guards(made, frozenset(field.name for field in fields))
    for name, method in methods.items():
        if name not in own:
            if method is not None and name != "__init__":
                method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
            setattr(made, name, method)
    return made


class _Initializer:
    """Stands for `__init__` until somebody asks for it."""

    def __init__(self, cls: type, frozen: bool, slots: bool) -> None:
        self._cls, self._frozen, self._slots = cls, frozen, slots

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = _initializer(self._cls, self._frozen, self._slots)
        if vars(self._cls).get("__init__") is self:  # else another thread was here first
            setattr(self._cls, "__init__", made)  # noqa: B010
        return made if instance is None else made.__get__(instance, owner)


_UNSTATED = type("_UNSTATED", (), {"__repr__": lambda self: "<factory>"})()
"""Stands for an argument that a factory makes where it is left out, as in the standard's signatures."""


def _initializer(cls: type, frozen: bool, slots: bool) -> Callable[..., None]:
    """`__init__`, compiled."""
    fields = dataclasses.fields(cls)
    known: dict[str, Any] = {"_set_attribute": object.__setattr__, "_UNSTATED": _UNSTATED}
    positional, named, body = ["self"], list[str](), list[str]()
    for field in fields:
        name = field.name
        has_default, has_factory = (
            given is not dataclasses.MISSING for given in (field.default, field.default_factory)
        )
        value = name
        if has_factory:
            known[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _UNSTATED else {name}" if field.init else f"_make_{name}()"
        elif has_default:
            known[f"_default_{name}"] = field.default
            value = name if field.init else f"_default_{name}"
        if field.init:
            default = "=_UNSTATED" if has_factory else f"=_default_{name}" if has_default else ""
            (named if field.kw_only else positional).append(name + default)
        elif not (has_factory or (has_default and slots)):
            continue  # the class has its default, or __post_init__ sees to it
        body.append(f"_set_attribute(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (["*", *named] if named else []))
    lines = "".join(f"\n  {line}" for line in body or ["pass"])
    exec(f"def __init__({parameters}):{lines}", known)
    made: Callable[..., None] = known["__init__"]
    made.__module__ = cls.__module__
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return made


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What fields hold, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda instance: ()
    [name] = names
    return lambda instance: (getattr(instance, name),)


def _shower(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def shown(self: Any) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({inside})"

    return shown


def _comparer(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return is_equal


def _hasher(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


def _guards(cls: type[Any], names: frozenset[str]) -> dict[str, Any]:
    """What refuses to change a frozen object."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}
