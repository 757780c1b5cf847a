"""Renewal in forked children: of functions first, then of the objects that still exist, in order."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from tests.robustness.processes import output_of
from vkml import forks

CODE = """
    import os
    from tests.robustness.forks import in_children
    from vkml.forks import renew_in_child

    seen = []

    class Owner:
        def __init__(self, name):
            self.name = name
            renew_in_child(self.renew)

        def renew(self):
            seen.append(self.name)

    first = Owner("first")
    renew_in_child(lambda: seen.append("function"))
    gone, last = Owner("gone"), Owner("last")
    del gone

    def child(number):
        assert seen == ["function", "first", "last"], seen
        in_children(1, grandchild)

    def grandchild(number):
        assert seen == 2 * ["function", "first", "last"], seen

    in_children(2, child)
    print(seen)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_children_renew_what_is_there() -> None:
    assert output_of(CODE) == "[]\n"


def test_objects_are_not_kept() -> None:
    class Owner:
        def __init__(self) -> None:
            self.itself = self
            forks.renew_in_child(self.renew)

        def renew(self) -> None: ...

    owners = [weakref.ref(Owner()) for _ in range(3)]
    gc.collect()
    assert [owner() for owner in owners] == [None] * 3
