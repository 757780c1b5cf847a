"""vkml's `dataclass` beside the standard one, and that vkml has no other."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

import vkml
from vkml.dataclasses import dataclass

OURS: Any = dataclass
"""Untyped: the checker would take it for the standard one and refuse what tests try."""
Decorator = Callable[..., Any]


def shapes(decorator: Decorator) -> dict[str, Any]:
    """Classes of every kind that vkml has, made by a decorator."""

    @decorator(frozen=True)
    class Frozen:
        first: int
        second: str = "two"
        third: list[int] = dataclasses.field(default_factory=list)
        shared: ClassVar[int] = 7

    @decorator(frozen=True)
    class Derived(Frozen):
        fourth: float = 0.5

    @decorator(frozen=True)
    class Checked:
        only: int
        twice: int = dataclasses.field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.only)

    @decorator
    class Plain:
        first: int
        lock: list[int] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)
        named: int = dataclasses.field(default=3, kw_only=True)
        own: int = dataclasses.field(default=4, init=False)

    @decorator(slots=True)
    class Slotted:
        first: int = 1
        own: int = dataclasses.field(default=4, init=False)

    @decorator(eq=False)
    class Identity:
        first: int

    @decorator(frozen=True, eq=False)
    class FrozenIdentity:
        first: int

    @decorator(frozen=True, slots=True)
    class FrozenSlotted:
        first: int
        second: int = 2

    @decorator(frozen=True, repr=False)
    class Shown:
        first: int

        def __repr__(self) -> str:
            return f"<{self.first}>"

    @decorator(frozen=True)
    class Hashed:
        first: int
        ignored: int = dataclasses.field(default=0, compare=False)

        def __hash__(self) -> int:
            return 5

    @decorator(frozen=True)
    class Compared:
        first: int

        def __eq__(self, other: object) -> bool:
            return True

    @decorator(frozen=True)
    class Empty:
        pass

    return {name: found for name, found in locals().items() if inspect.isclass(found)}


OURS_BY_NAME, STANDARD_BY_NAME = shapes(OURS), shapes(dataclasses.dataclass)
ARGUMENTS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1,), {"second": 3}),
    ((1,), {"named": 3}),
    ((1,), {"unknown": 3}),
    ((1, "b", [4], 0.25), {}),
)


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the class and text of what it raises."""
    try:
        return work()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", STANDARD_BY_NAME)
def test_objects_are_the_standard_ones(name: str) -> None:
    ours, standard = OURS_BY_NAME[name], STANDARD_BY_NAME[name]
    for positional, named in ARGUMENTS:

        def facts(cls: type, positional: Any = positional, named: Any = named) -> Any:
            made, other = cls(*positional, **named), cls(*positional, **named)

            def assign() -> Any:
                made.first = 9
                return made.first

            def delete() -> Any:
                del made.first

            def extend() -> Any:
                made.more = 9
                return made.more

            return (
                repr(made).replace(hex(id(made)), "id"),
                made == other,
                made == object(),
                outcome(lambda: hash(made) == hash(other)),
                outcome(lambda: repr(dataclasses.replace(made)).replace("at 0x", "")[:20]),
                dataclasses.asdict(made),
                repr(copy.copy(made))[:30],
                outcome(assign),
                outcome(extend)[0] if name == "Slotted" else outcome(extend),
                outcome(delete),
            )

        assert outcome(lambda: facts(ours)) == outcome(lambda: facts(standard)), (positional, named)


@pytest.mark.parametrize("name", STANDARD_BY_NAME)
def test_classes_are_the_standard_ones(name: str) -> None:
    ours, standard = shapes(OURS)[name], STANDARD_BY_NAME[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert ours.__init__.__qualname__ == standard.__init__.__qualname__
    assert ours.__init__.__annotations__ == standard.__init__.__annotations__
    assert ours.__match_args__ == standard.__match_args__
    assert [field.name for field in dataclasses.fields(ours)] == [
        field.name for field in dataclasses.fields(standard)
    ]
    assert (ours.__hash__ is None) == (standard.__hash__ is None)
    assert ours.__doc__ in (None, standard.__doc__)


def test_hashes_and_comparisons_go_by_what_is_compared() -> None:
    ours = OURS_BY_NAME
    assert ours["Frozen"](1, "a", [1]) != ours["Frozen"](1, "a", [2])
    assert ours["Frozen"](1) != ours["Derived"](1)
    assert {ours["FrozenSlotted"](1), ours["FrozenSlotted"](1)} == {ours["FrozenSlotted"](1)}
    assert hash(ours["Checked"](1)) == hash(ours["Checked"](1)) != hash(ours["Checked"](2))
    assert ours["Hashed"](1, 2) == ours["Hashed"](1, 3)
    assert ours["Identity"](1) != ours["Identity"](1)


def test_default_factories_make_one_for_each() -> None:
    one, other = OURS_BY_NAME["Frozen"](1), OURS_BY_NAME["Frozen"](1)
    assert one.third == other.third == []
    assert one.third is not other.third


def test_a_cycle_is_shown() -> None:
    @OURS
    class Link:
        next: Any = None

    link = Link()
    link.next = link
    assert repr(link).endswith("Link(next=...)")


def test_a_base_is_made_by_its_heir() -> None:
    @OURS
    class Base:
        first: int

    class Heir(Base):
        def __init__(self) -> None:
            super().__init__(5)

    assert Heir().first == 5
    assert "__init__" in vars(Base)
    assert Base(6).first == 6


def test_the_standard_one_makes_heirs_as_of_its_own() -> None:
    for base in (OURS_BY_NAME["Frozen"], OURS_BY_NAME["Derived"], STANDARD_BY_NAME["Frozen"]):
        for decorator in (dataclasses.dataclass, OURS):
            heir = decorator(frozen=True)(
                type("Heir", (base,), {"__annotations__": {"last": "int"}, "last": 1})
            )
            assert heir(1, last=5) == heir(1, last=5) != heir(1, last=6)
            with pytest.raises(dataclasses.FrozenInstanceError):
                heir(1).last = 2
            with pytest.raises(TypeError, match="cannot inherit non-frozen"):
                decorator(type("Heir", (base,), {}))


def test_threads_that_make_the_first_object_together() -> None:
    for _ in range(20):

        @OURS(frozen=True)
        class Made:
            first: int
            second: int = 2

        together = threading.Barrier(8)
        found: list[Any] = []

        def make(made: Any = Made, together: threading.Barrier = together, found: Any = found) -> None:
            together.wait()
            found.append(made(1))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [Made(1)] * 8


@OURS(frozen=True)
class Pickled:
    """At the top of a module, as pickle wants it."""

    first: int
    second: str = "b"


def test_pickles() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)


def test_vkml_has_no_other() -> None:
    """What one class costs, each session pays."""
    root = Path(vkml.__file__).parent
    direct = re.compile(r"^\s*from dataclasses import .*\bdataclass\b|dataclasses\.dataclass\b", re.M)
    found = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if path != root / "dataclasses.py" and direct.search(path.read_text(encoding="utf-8"))
    ]
    assert not found
