"""The checker of recordings finds what is missing, and asks for nothing that is not."""

from __future__ import annotations

import pytest

from tests.recordings import (
    CONDITION_READ,
    COUNT_READ,
    HOST_READ,
    SHADER_READ,
    SHADER_WRITE,
    TRANSFER_READ,
    TRANSFER_WRITE,
    Allocated,
    Barrier,
    Event,
    Placed,
    Site,
    Submitted,
    Touch,
    Waited,
    missing_barriers,
)

HOWS = {
    "shader read": SHADER_READ,
    "shader write": SHADER_WRITE,
    "transfer read": TRANSFER_READ,
    "transfer write": TRANSFER_WRITE,
    "counts": COUNT_READ,
    "condition": CONDITION_READ,
}
SITE = Site("module", "function", 1, "kind")


def touch(name: str, how: tuple[int, int], start: int = 0, end: int = 16, *, host: bool = False) -> Touch:
    return Touch(name, how, start, end, name, host)


def barrier(before: tuple[int, int], after: tuple[int, int], site: Site = SITE) -> Placed:
    return Placed(Barrier(*before, *after), site)


def submitted(*commands: Placed | Touch, queue: int = 0, key: int = 0) -> Submitted:
    return Submitted(queue, key, commands)


@pytest.mark.parametrize("before", HOWS)
@pytest.mark.parametrize("after", HOWS)
def test_pairs(before: str, after: str) -> None:
    """A barrier must name the stages and, behind a write, the accesses; behind a read the stages will do."""
    one, two = HOWS[before], HOWS[after]
    early, late = touch("early", one), touch("late", two)
    writes = early.writes or late.writes

    def is_missing(*between: Placed) -> bool:
        return missing_barriers([submitted(early, *between, late)]) != []

    assert is_missing() == writes
    assert not is_missing(barrier(one, two))
    assert is_missing(barrier((one[0], 0), (two[0], 0))) == early.writes
    assert is_missing(barrier(one, (two[0], 0))) == early.writes
    assert is_missing(barrier((1 << 40, one[1]), two)) == writes
    assert is_missing(barrier(one, (1 << 40, two[1]))) == writes
    assert missing_barriers([submitted(early), submitted(barrier(one, two)), submitted(late)]) == []
    assert bool(missing_barriers([submitted(early, barrier(one, two), late)], {SITE})) == writes


def test_other_bytes_need_nothing() -> None:
    write = touch("write", SHADER_WRITE, 16, 32)
    for start, end, is_missing in ((0, 16, False), (0, 17, True), (31, 40, True), (32, 40, False)):
        read = touch("read", SHADER_READ, start, end)
        assert bool(missing_barriers([submitted(write, read)])) == is_missing
        assert bool(missing_barriers([submitted(read, write)])) == is_missing


def test_one_level_may_do_as_it_likes_but_not_when_it_runs_again() -> None:
    both = [Touch(name, how, 0, 16, "level") for name, how in (("a", SHADER_READ), ("b", SHADER_WRITE))]
    assert missing_barriers([submitted(*both)]) == []
    assert set(missing_barriers([submitted(*both), submitted(*both)])) == {
        "a → b: write after read",
        "b → a: read after write",
        "b → b: write after write",
    }


def test_barriers_form_chains() -> None:
    """What one has shown to copies, the next one, from copies to kernels, shows these."""
    write, read = touch("write", SHADER_WRITE), touch("read", SHADER_READ)
    first, second = barrier(SHADER_WRITE, TRANSFER_READ), barrier(TRANSFER_READ, SHADER_READ)
    assert missing_barriers([submitted(write, first, second, read)]) == []
    assert missing_barriers([submitted(write, second, first, read)]) == ["write → read: read after write"]
    assert missing_barriers([submitted(write, barrier(SHADER_READ, SHADER_READ), read)]) != []


def test_a_write_stands_for_what_was_before_it() -> None:
    old, new, read = (
        touch(n, h) for n, h in (("old", SHADER_WRITE), ("new", SHADER_WRITE), ("read", SHADER_READ))
    )
    between = barrier(SHADER_WRITE, (SHADER_WRITE[0], SHADER_WRITE[1] | SHADER_READ[1]))
    assert missing_barriers([submitted(old, between, new, read)]) == ["new → read: read after write"]
    half = touch("half", SHADER_WRITE, 0, 8)
    late = touch("late", COUNT_READ, 8, 16)
    assert missing_barriers([submitted(old, between, half, late)]) == ["old → late: read after write"]


def test_waits_of_the_host() -> None:
    write, read = touch("write", SHADER_WRITE), touch("read", SHADER_READ)
    waited: list[Event] = [submitted(write), Waited(0), submitted(read)]
    assert missing_barriers(waited, waits_show=True) == []
    assert missing_barriers(waited) == ["write → read: read after write"]
    seen = submitted(barrier((1, 0), SHADER_READ), read)
    assert missing_barriers([submitted(write), Waited(0), seen]) == []
    assert missing_barriers([submitted(write), seen]) != []
    for first in (write, read):  # to write behind a wait is in order
        assert missing_barriers([submitted(first), Waited(0), submitted(touch("new", SHADER_WRITE))]) == []
    other = submitted(read, queue=1, key=1)
    assert missing_barriers([submitted(write), other]) == ["write → read: read after write, on another queue"]
    assert missing_barriers([submitted(write), Waited(0), other]) == []
    assert missing_barriers([submitted(write), Waited(1), other]) != []


def test_what_the_host_reads() -> None:
    write = touch("write", TRANSFER_WRITE, host=True)
    to_host = barrier(TRANSFER_WRITE, HOST_READ)
    unseen = ["write → host: read after write"]
    assert missing_barriers([submitted(write)]) == []
    assert missing_barriers([submitted(write), Waited(0)]) == unseen
    assert missing_barriers([submitted(write, to_host), Waited(0)]) == []
    assert missing_barriers([submitted(to_host, write), Waited(0)]) == unseen
    assert missing_barriers([submitted(write, barrier(SHADER_WRITE, HOST_READ)), Waited(0)]) == unseen
    late = submitted(to_host, key=1)
    assert missing_barriers([submitted(write), late, Waited(1)]) == []
    assert missing_barriers([submitted(write), late, Waited(0)]) == unseen  # the wait is not for the barrier


def test_new_memory_has_no_past() -> None:
    write, read = touch("write", SHADER_WRITE), touch("read", SHADER_READ)
    assert missing_barriers([submitted(write), Allocated(0, 8), submitted(read)]) == []
    assert missing_barriers([submitted(write), Allocated(16, 32), submitted(read)]) != []
