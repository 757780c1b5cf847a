"""Captures with open sizes: which sizes of the arguments are, and what calls one capture serves."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, Generic, TypeVar

from vkml.errors import CaptureError
from vkml.ir.size import Sizes, matcher
from vkml.ir.size_relations import holds_for_multiples, symbols_in
from vkml.ir.size_terms import Symbol

T = TypeVar("T")
Shapes = tuple[tuple[int, ...], ...]
"""Of the arguments; of a capture some sizes among them are open."""
FORMS = 3
"""Sets of sizes that come before one capture is made for all: a training has a smaller last batch, or is
evaluated with another size; each of two runs faster by a capture of its own."""
MOST = 4
"""Captures with open sizes for arguments that differ in nothing else: several where sizes decide."""
HOT = 64
"""Runs by open sizes after which a set of sizes has a capture of its own, if there is room."""
_REFUSED = 2
"""Sets of sizes, of which none could be open, after which each has a capture of its own for good."""
_FORMS_KEPT = 64
_FARTHEST = 1 << 10


class KeptTensor(CaptureError):
    """A captured function keeps a tensor that it makes."""


class Family(Generic[T]):
    """Calls whose arguments differ in sizes from 2 on alone, and captures that serve several of them.

    Args:
        is_dynamic: whether all these sizes are open from the second call on; None: those that varied, from
            the third set of sizes on; False: none ever.
    """

    def __init__(self, is_dynamic: bool | None) -> None:
        self._is_dynamic = is_dynamic
        self._forms: dict[Shapes, int] = {}
        """Sizes that came, and how many runs of theirs a capture of open sizes made."""
        self._captures: list[tuple[Callable[[Shapes], tuple[int, ...] | None], T]] = []
        self._refused: set[Shapes] = set()
        """Sizes for which none could be made."""

    def get(self, shapes: Shapes) -> T | None:
        """The capture that serves arguments of these shapes."""
        for serves, capture in reversed(self._captures):
            if serves(shapes) is not None:
                return capture
        return None

    def drop(self, capture: T) -> None:
        """Forgets a capture."""
        self._captures = [each for each in self._captures if each[1] is not capture]

    def is_hot(self, shapes: Shapes) -> bool:
        """Whether there have been so many runs by open sizes for these that they want a capture of their own.

        It is asked once a run.
        """
        runs = self._forms[shapes] = self._noted(shapes) + 1
        return runs > HOT and self._is_dynamic is None

    def is_due(self, shapes: Shapes) -> bool:
        """Whether a call that no capture serves is to be captured with open sizes; it is noted."""
        if self._is_dynamic is False:
            return False
        has_run = bool(self._forms)
        self._noted(shapes)
        if shapes in self._refused or len(self._refused) >= _REFUSED or len(self._captures) >= MOST:
            return False
        return has_run if self._is_dynamic else len(self._forms) >= FORMS

    def _noted(self, shapes: Shapes) -> int:
        """Notes that these came; how many runs of theirs there were by open sizes."""
        if shapes not in self._forms and len(self._forms) >= _FORMS_KEPT:
            self._forms.pop(next(iter(list(self._forms))), None)  # another thread may have been faster
        return self._forms.setdefault(shapes, 0)

    def capture(self, shapes: Shapes, make: Callable[[Shapes], T]) -> T | None:
        """A capture of which those sizes are open that have varied; None where the function does not take it.

        Args:
            shapes: of the call.
            make: captures it with these sizes in the places of the arguments'.

        Raises:
            KeptTensor: the function keeps a tensor of such sizes.
        """
        closed: set[Symbol] = set()
        while True:
            fixed: set[Symbol] = set()
            for is_moved, is_multiplied in ((False, False), (True, False), (True, True)):
                sizes = Sizes()
                dims = self._opened(shapes, sizes, closed, is_moved, is_multiplied)
                if not sizes.examples:
                    self._refused.add(shapes)
                    return None
                made: T | None = None
                try:
                    with sizes.deciding():
                        made = make(dims)
                except KeptTensor:
                    raise
                except Exception:  # a capture for just these sizes says what is wrong, where it is more
                    if is_moved:
                        continue
                # Sizes that are equal by chance look as if they had to be: others tell.
                equal = [t for t, was in sizes.is_zero.items() if was and not holds_for_multiples(t)]
                if not is_moved:
                    fixed = {symbol for terms in equal for symbol in symbols_in(terms)}
                if made is None:
                    break
                serves = matcher(dims, sizes)
                if not equal and serves(shapes) is not None:
                    self._captures.append((serves, made))
                    return made
            if not fixed or not self._is_dynamic:
                self._refused.add(shapes)
                return None
            closed |= fixed  # those that only one size fits: the width of a layer's input

    def _opened(
        self, shapes: Shapes, sizes: Sizes, closed: Container[Symbol], is_moved: bool, is_multiplied: bool
    ) -> Shapes:
        """Shapes with open sizes: one for all axes whose sizes were equal each time.

        Args:
            shapes: of the call.
            sizes: receives them.
            closed: those that are not open after all.
            is_moved: whether examples are other sizes than those at hand, none of them equal to a known one.
            is_multiplied: whether these are multiples of those at hand.
        """
        names: dict[Hashable, str] = {}
        symbols: dict[str, Any] = {}
        taken = {size for dims in shapes for size in dims}

        def opened(leaf: int, axis: int, size: int) -> int:
            every = tuple([form[leaf][axis] for form in list(self._forms)])
            if size < 2 or not (self._is_dynamic or len(set(every)) > 1):
                return size
            name = names.setdefault(every, f"size {len(names)}")
            if Symbol(name) in closed:
                return size
            if name not in symbols:
                example = _example(size, taken, is_multiplied) if is_moved else size
                symbols[name] = sizes.symbol(name, example)
            made: int = symbols[name]
            return made

        return tuple(
            [
                tuple([opened(leaf, axis, size) for axis, size in enumerate(dims)])
                for leaf, dims in enumerate(shapes)
            ]
        )


def _example(near: int, taken: set[int], is_multiplied: bool) -> int:
    """A size near another one, or a multiple of it, that is none of those taken, and is taken then."""
    for distance in range(1, _FARTHEST):
        found = near * (distance + 1) if is_multiplied else near + distance
        if found not in taken:
            taken.add(found)
            return found
    return near


def family_key(shapes: Sequence[tuple[int, ...]]) -> Hashable:
    """What shapes have in common that one capture may serve: 0 and 1 change how they broadcast."""
    return tuple([tuple([size if size < 2 else None for size in dims]) for dims in shapes])
