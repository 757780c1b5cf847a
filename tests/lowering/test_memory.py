"""The memory plan: buffers alive at the same time share no byte, others do; work grows as the program."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from tests.counting import lines_run
from tests.lowering.checking import Step, broken_values, overlaps
from tests.lowering.test_schedule import random_steps
from vkml.ir import TensorType, dtypes
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.memory import ALIGNMENT, plan_memory
from vkml.lowering.schedule import schedule


def tensor(size: int, kind: BufferKind = BufferKind.ACTIVATION) -> View:
    return contiguous(Buffer(kind, size), TensorType(dtypes.UINT8, (size,)))


def test_buffers_that_meet_in_one_level_are_apart() -> None:
    """The last reader of one and the writer of the other are in the same level."""
    a, b = tensor(256), tensor(256)
    offsets, size = plan_memory([[Step(writes=(a,))], [Step(reads=(a,), writes=(b,))]])
    assert {offsets[a.buffer], offsets[b.buffer]} == {0, 256}
    assert size == 512


def test_a_buffer_takes_the_place_of_one_that_is_dead() -> None:
    chain = [tensor(1000) for _ in range(10)]
    levels = [[Step(reads=(one,), writes=(two,))] for one, two in pairwise(chain)]
    offsets, size = plan_memory(levels)
    assert overlaps(levels, offsets, size) == []
    assert size == 2 * 1024


def test_small_buffers_lie_in_the_gaps_of_large_ones() -> None:
    large, small, other = tensor(1024), tensor(256), tensor(512)
    levels = [[Step(writes=(large,))], [Step(writes=(small,)), Step(writes=(other,))]]
    offsets, size = plan_memory(levels)
    assert overlaps(levels, offsets, size) == []
    assert size == 1024


def test_the_tightest_gap_is_taken() -> None:
    """Gaps of 1024 and 768 bytes: 768 go into the second, so that twice 512 still fit into the first."""
    left, wall, right, end = (tensor(size) for size in (1024, 1023, 768, 767))
    late = tensor(766), tensor(512), tensor(511)
    levels = [[Step(writes=(left, wall, right, end))], [Step(reads=(wall, end), writes=late)]]
    offsets, size = plan_memory(levels)
    assert overlaps(levels, offsets, size) == []
    assert [offsets[view.buffer] for view in (left, wall, right, end)] == [0, 1024, 2048, 2816]
    assert [offsets[view.buffer] for view in late] == [2048, 0, 512]
    assert size == 3584


def random_levels(choose: random.Random, count: int, longest: int) -> list[list[Step]]:
    """Buffers of random sizes, each touched in a random stretch of levels."""
    levels: list[list[Step]] = [[] for _ in range(choose.randint(1, max(2, count)))]
    for _ in range(count):
        view = tensor(choose.choice((1, 100, 256, 257, 1000, 4096, choose.randint(1, 9999))))
        first = choose.randrange(len(levels))
        last = min(len(levels) - 1, first + choose.randint(0, longest))
        levels[first].append(Step(writes=(view,)))
        levels[last].append(Step(reads=(view,)))
    return levels


@pytest.mark.parametrize("guard_bytes", [0, 64])
@pytest.mark.parametrize("seed", range(60))
def test_random_plans(seed: int, guard_bytes: int) -> None:
    choose = random.Random(seed)
    levels = random_levels(choose, choose.randint(1, 60), choose.choice((0, 2, 10, 60)))
    offsets, size = plan_memory(levels, guard_bytes)
    assert overlaps(levels, offsets, size, guard_bytes) == []
    alignment = 64 if guard_bytes else ALIGNMENT
    assert all(offset % alignment == 0 for offset in offsets.values())


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_see_the_values_they_state(seed: int) -> None:
    """Schedule and memory together: in any order within a level, every read finds its writer's bytes."""
    steps = random_steps(seed, is_strided=True)
    levels = schedule(steps)
    offsets, size = plan_memory(levels)
    assert overlaps(levels, offsets, size) == []
    assert broken_values(steps, levels, offsets) == []


@pytest.mark.parametrize("seed", range(30))
def test_what_stays_between_runs_is_shared_only_with_its_like(seed: int) -> None:
    """Buffers of a key never share a byte with those of another key or of none, whenever they live."""
    choose = random.Random(seed)
    levels = random_levels(choose, 40, 5)
    buffers = list(dict.fromkeys(view.buffer for level in levels for step in level for view in step.writes))
    by_size: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        by_size.setdefault(buffer.bytes, []).append(buffer)
    apart = {buffer: size for size, found in by_size.items() if len(found) > 1 for buffer in found}
    offsets, size = plan_memory(levels, apart=apart)
    assert overlaps(levels, offsets, size) == []
    for one in buffers:
        for other in buffers:
            if apart.get(one) == apart.get(other):
                continue
            assert offsets[one] + one.bytes <= offsets[other] or offsets[other] + other.bytes <= offsets[one]


def many_alive(count: int) -> list[list[Step]]:
    """Every value is alive to the end."""
    values = [tensor(16 + 300 * (at % 5)) for at in range(count)]
    return [*([Step(writes=(value,))] for value in values), [Step(reads=tuple(values))]]


def chain(count: int) -> list[list[Step]]:
    """Each value lives for two levels, beside one that lives throughout."""
    values, first = [tensor(16 + 300 * (at % 5)) for at in range(count)], tensor(64)
    start = [Step(writes=(first, values[0]))]
    return [start, *([Step((a, first), (b,))] for a, b in pairwise(values))]


def growing(count: int) -> list[list[Step]]:
    """Value i lives until level 2 i."""
    values = [tensor(16 + 300 * (at % 5)) for at in range(count)]
    return [[Step((values[at // 2],), (values[at],))] for at in range(1, count)]


def wide(count: int) -> list[list[Step]]:
    """All values in two levels."""
    values = [tensor(16 + 300 * (at % 5)) for at in range(count)]
    return [[Step(writes=(value,)) for value in values], [Step(reads=(value,)) for value in values]]


@pytest.mark.parametrize("make", [many_alive, chain, growing, wide])
@pytest.mark.parametrize("count", [200, 4000])
def test_plans_of_many_buffers(make: Callable[[int], list[list[Step]]], count: int) -> None:
    levels = make(count)
    offsets, size = plan_memory(levels)
    assert overlaps_of_many(levels, offsets, size) == 0
    # Not more than what is alive at once by more than what rounding up and gaps of other sizes take.
    assert size <= 1.5 * peak(levels) + 4 * 1536


def lives_of(levels: Sequence[Sequence[Step]]) -> dict[Buffer, tuple[int, int]]:
    lives: dict[Buffer, tuple[int, int]] = {}
    for number, level in enumerate(levels):
        for step in level:
            for view in (*step.reads, *step.writes):
                lives[view.buffer] = (lives.get(view.buffer, (number, number))[0], number)
    return lives


def peak(levels: Sequence[Sequence[Step]]) -> int:
    """The most bytes that are alive in one level."""
    change = [0] * (len(levels) + 1)
    for buffer, (first, last) in lives_of(levels).items():
        change[first] += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        change[last + 1] -= -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
    most = now = 0
    for step in change:
        now += step
        most = max(most, now)
    return most


def overlaps_of_many(levels: Sequence[Sequence[Step]], offsets: dict[Buffer, int], size: int) -> int:
    """How often 16 bytes are given to two buffers alive at the same time, found level after level."""
    lives = lives_of(levels)
    starts: dict[int, list[Buffer]] = {}
    ends: dict[int, list[Buffer]] = {}
    for buffer, (first, last) in lives.items():
        starts.setdefault(first, []).append(buffer)
        ends.setdefault(last, []).append(buffer)
    owners: dict[int, Buffer] = {}
    found = 0
    for number in range(len(levels)):
        for buffer in starts.get(number, ()):
            assert offsets[buffer] >= 0
            assert offsets[buffer] + buffer.bytes <= size
            for place in range(offsets[buffer] // 16, -(-(offsets[buffer] + buffer.bytes) // 16)):
                found += place in owners
                owners[place] = buffer
        for buffer in ends.get(number, ()):
            for place in range(offsets[buffer] // 16, -(-(offsets[buffer] + buffer.bytes) // 16)):
                if owners.get(place) is buffer:
                    del owners[place]
    return found


@pytest.mark.parametrize("make", [many_alive, chain, growing, wide])
def test_work_grows_as_the_program(make: Callable[[int], list[list[Step]]]) -> None:
    """Four times the buffers are about four times the work; each pair looked at would be sixteen."""
    small, large = (lines_run(plan_memory, make(count)) for count in (3000, 12000))
    assert large < 6 * small
