"""Open sizes of an exported model: how they are stated, and what stands for them while it is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from vkml.dataclasses import dataclass
from vkml.errors import CaptureError, InvalidArgument
from vkml.ir.size import Size, Sizes
from vkml.ir.size_relations import holds_for_multiples, symbols_in
from vkml.ir.size_terms import GREATEST, Symbol, Terms, evaluate


class Dim:
    """An open size of an axis, by its name; equal names are equal sizes, as those of `torch.export.Dim`.

    Args:
        name: of the size in the model.
        min: what it is at least.
        max: what it is at most.

    Attributes:
        DYNAMIC: an open size without a name of the caller's.
        AUTO: likewise, but a known size where the function takes no other.
        STATIC: a known size, as None is.
    """

    AUTO: ClassVar[Dim]
    DYNAMIC: ClassVar[Dim]
    STATIC: ClassVar[Dim]

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(f"the name of a size is an identifier, not {name!r}")
        if (min or 0) < 0 or (min is not None and max is not None and min > max):
            raise InvalidArgument(f"size {name!r}: there is nothing from {min} to {max}")
        self.__name__ = name
        self.min = min
        self.max = max

    def __repr__(self) -> str:
        return f"Dim({self.__name__!r})"


Dim.AUTO, Dim.DYNAMIC, Dim.STATIC = Dim("AUTO"), Dim("DYNAMIC"), Dim("STATIC")


@dataclass(frozen=True)
class OpenSize:
    """What an axis of an input is said to be.

    Attributes:
        name: equal for equal sizes.
        least: what it is at least, None where nothing is said.
        greatest: what it is at most, likewise.
        may_be_known: whether it may be a known size after all.
    """

    name: str
    least: int | None = None
    greatest: int | None = None
    may_be_known: bool = False


def stated_sizes(spec: Any, shape: Sequence[int], label: str) -> dict[int, OpenSize]:
    """The open sizes of an input, by axis.

    Args:
        spec: as `export` takes it for a tensor.
        shape: of the example.
        label: name of the input; sizes that have none are called after it.
    """
    if spec is None:
        return {}
    if isinstance(spec, Mapping):
        entries = {}
        for axis, value in spec.items():
            if not isinstance(axis, int) or not -len(shape) <= axis < max(len(shape), 1):
                raise InvalidArgument(
                    f"dynamic_shapes: input {label!r} has {len(shape)} axes, no axis {axis!r}"
                )
            entries[axis % len(shape)] = value
    elif isinstance(spec, tuple | list):
        if len(spec) != len(shape):
            raise InvalidArgument(
                f"dynamic_shapes: input {label!r} has {len(shape)} axes, {len(spec)} are stated"
            )
        entries = dict(enumerate(spec))
    else:
        raise InvalidArgument(
            f"dynamic_shapes: input {label!r} takes {{axis: size}} or one size an axis, not "
            f"{type(spec).__name__}"
        )
    found = {axis: _stated(value, shape[axis], f"{label}_dim_{axis}") for axis, value in entries.items()}
    return {axis: size for axis, size in found.items() if size is not None}


def _stated(value: Any, size: int, label: str) -> OpenSize | None:
    kind = getattr(value, "type", None)
    hint = (
        getattr(kind, "name", None) if type(value).__name__ == "_DimHint" else None
    )  # torch.export.Dim.AUTO
    if value is None or value is Dim.STATIC or hint == "STATIC":
        return None
    if isinstance(value, int):
        if value != size:
            raise InvalidArgument(f"dynamic_shapes: {label} is {size} in the example, and said to be {value}")
        return None
    if value is Dim.DYNAMIC or hint == "DYNAMIC":
        return OpenSize(label)
    if value is Dim.AUTO or hint == "AUTO":
        return OpenSize(label, may_be_known=True)
    if isinstance(value, str) and value:
        return OpenSize(value)
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and name:
        return OpenSize(name, getattr(value, "min", None), getattr(value, "max", None))
    raise InvalidArgument(f"dynamic_shapes: {label} is a name, a Dim or None, not {value!r}")


class ClosedSizes(CaptureError):
    """Sizes that were to be open, and cannot."""


class OpenSizes:
    """The open sizes of a model that is being made.

    Args:
        known: sizes that are none of these. Examples are moved to where they are equal to none of them, nor
            to each other, so that what is decided by the equality of sizes is that of all values; None
            leaves them as they are.
        is_multiplied: whether they are moved to multiples of theirs, for functions that take multiples alone;
            else to what is nearest, for functions that take sizes up to a greatest.
    """

    def __init__(self, known: Iterable[int] | None, is_multiplied: bool = False) -> None:
        self.sizes = Sizes()
        self._is_multiplied = is_multiplied
        self._known = frozenset(known or ())
        self._taken = None if known is None else set(self._known)
        self._symbols: dict[str, tuple[Size, OpenSize, int]] = {}
        self.names: dict[Symbol, str] = {}

    def size(self, stated: OpenSize, size: int) -> Size:
        """What stands for a size.

        Args:
            stated: what is said of it.
            size: that of the example.
        """
        found = self._symbols.get(stated.name)
        if found is not None:
            if found[2] != size:
                raise InvalidArgument(
                    f"dynamic_shapes: the size {stated.name!r} is {found[2]} and {size} in the examples"
                )
            return found[0]
        least = max(stated.least or 0, 2)
        greatest = GREATEST if stated.greatest is None else stated.greatest
        if not (stated.least or 0) <= size <= greatest:
            raise InvalidArgument(f"dynamic_shapes: the size {stated.name!r} is {size} in the example")
        # Symbols of other exports are others: types and shapes of theirs are kept for a while.
        symbol_name = f"{stated.name}#{next(_numbers)}"
        made = self.sizes.symbol(symbol_name, self._example(max(size, least), least, greatest), least)
        self.names[Symbol(symbol_name, least)] = stated.name
        self._symbols[stated.name] = made, stated, size
        return made

    def _example(self, near: int, least: int, greatest: int) -> int:
        if self._taken is None:
            return near
        for distance in range(1, 1 << 16):
            nearest = (near - distance, near + distance)
            for found in (near * (distance + 1),) if self._is_multiplied else nearest:
                if least <= found <= greatest and found not in self._taken:
                    self._taken.add(found)
                    return found
        return near

    def fixed(self) -> set[str]:
        """Names of sizes that may be known and are, for what was recorded until now takes no others."""
        return set().union(*self._equations().values())

    def _equations(self) -> dict[Terms, set[str]]:
        """What is 0 for no other sizes, and the names of those in it that may be known."""
        found = {}
        for terms, is_zero in self.sizes.is_zero.items():
            if is_zero and not holds_for_multiples(terms):
                named = {self.names[symbol] for symbol in symbols_in(terms)}
                found[terms] = {name for name in named if self._symbols[name][1].may_be_known}
        return found

    def closed(self) -> set[str]:
        """Names of sizes that may be known and are, for the function takes no others.

        Raises:
            ClosedSizes: it takes fewer sizes than were asked for.
        """
        names = self.fixed()
        found = [f"{self.text(Size(terms))} = 0" for terms, some in self._equations().items() if not some]
        for terms, is_positive in self.sizes.is_positive.items():
            if self._leaves_range(terms, is_positive):
                found.append(f"{self.text(Size(terms))} {'>' if is_positive else '<='} 0")
        if found and not names:
            raise ClosedSizes(
                "the function takes only sizes for which "
                + " and ".join(found)
                + ": say that these sizes are known (leave them out of dynamic_shapes), give sizes that must "
                "be equal one name, state their range, or change what compares them, makes numbers "
                "of them or writes them into texts"
            )
        return names

    def _leaves_range(self, terms: Any, was: bool) -> bool:
        """Whether a comparison comes out otherwise at an end of a range that was stated."""
        symbols = {atom for monomial, _ in terms for atom in monomial if isinstance(atom, Symbol)}
        if len(symbols) != 1:
            return False
        [symbol] = symbols
        stated = self._symbols[self.names[symbol]][1]
        ends = [end for end in (stated.least, stated.greatest) if end is not None]
        if any(not isinstance(atom, Symbol) for monomial, _ in terms for atom in monomial):
            return False
        return any((evaluate(terms, {symbol: end}) > 0) != was for end in ends)

    def goes_another_way(self) -> bool:
        """Whether the function takes another way than it does for the sizes of the example.

        By what it compares itself. Where these are equal to known ones, or to each other, that is by chance:
        it says nothing about other sizes.
        """
        values = {symbol: max(self._symbols[name][2], symbol.least) for symbol, name in self.names.items()}
        for terms in self.sizes.asked:
            value = evaluate(terms, values)
            if self.sizes.is_positive.get(terms, value > 0) != (value > 0):
                return True
            named = symbols_in(terms)
            is_chance = len(named) > 1 or any(values[symbol] in self._known for symbol in named)
            if self.sizes.is_zero.get(terms, value == 0) != (value == 0) and not is_chance:
                return True
        return False

    def relations(self) -> list[str]:
        """Comparisons that the model was made by, for people."""
        return [
            f"{self.text(Size(terms))} {'>' if was else '<='} 0"
            for terms, was in self.sizes.is_positive.items()
        ] + [
            f"{self.text(Size(terms))} {'==' if was else '!='} 0" for terms, was in self.sizes.is_zero.items()
        ]

    def text(self, size: int | Size) -> str:
        """An expression by the names of its sizes."""
        return self.named(repr(size))

    def named(self, found: str) -> str:
        """A text with the names of sizes in the places of their symbols."""
        for symbol, name in self.names.items():
            found = found.replace(symbol.name, name)
        return found


_numbers = itertools.count()
