"""Levels: every true dependency is kept, byte by byte, nothing waits for more, work grows as the program."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.counting import lines_run
from tests.lowering.checking import Step, broken_dependencies
from vkml.ir import TensorType, dtypes
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.schedule import schedule


def tensor(elements: int, kind: BufferKind = BufferKind.ACTIVATION) -> View:
    return contiguous(Buffer(kind, 4 * elements), TensorType(dtypes.FLOAT32, (elements,)))


def part(view: View, start: int, size: int) -> View:
    return view.slice((start,), (1,), (size,))


def level_of(steps: list[Step]) -> list[int]:
    levels = schedule(steps)
    found = {id(step): number for number, level in enumerate(levels) for step in level}
    return [found[id(step)] for step in steps]


def test_a_read_waits_for_the_write() -> None:
    a, b = tensor(4), tensor(4)
    assert level_of([Step(writes=(a,)), Step(reads=(a,), writes=(b,))]) == [0, 1]


def test_a_write_waits_for_earlier_reads() -> None:
    a, b = tensor(4, BufferKind.INPUT), tensor(4)
    assert level_of([Step(reads=(a,), writes=(b,)), Step(writes=(a,))]) == [0, 1]


def test_a_write_waits_for_earlier_writes() -> None:
    a = tensor(4)
    assert level_of([Step(writes=(a,)), Step(writes=(a,))]) == [0, 1]


def test_reads_and_other_bytes_do_not_wait() -> None:
    a, b, c = tensor(8, BufferKind.INPUT), tensor(8), tensor(8)
    steps = [
        Step(reads=(a,), writes=(part(b, 0, 4),)),
        Step(reads=(a,), writes=(part(b, 4, 4),)),
        Step(reads=(a,), writes=(c,)),
    ]
    assert level_of(steps) == [0, 0, 0]


def test_one_byte_in_common_is_enough() -> None:
    a, b = tensor(8), tensor(8)
    steps = [
        Step(writes=(part(a, 0, 4),)),
        Step(reads=(part(a, 4, 4),), writes=(part(b, 0, 4),)),
        Step(reads=(part(a, 3, 4),), writes=(part(b, 4, 4),)),
    ]
    assert level_of(steps) == [0, 0, 1]


def test_a_view_without_elements_waits_for_nothing() -> None:
    a = tensor(8)
    assert level_of([Step(writes=(a,)), Step(reads=(part(a, 4, 0),))]) == [0, 0]


def test_an_early_reader_is_not_forgotten_behind_a_later_one() -> None:
    """Reads of one buffer in several levels: a write waits for the last of them, wherever it read."""
    a, b, c = tensor(8, BufferKind.INPUT), tensor(4), tensor(4)
    steps = [
        Step(writes=(b,)),
        Step(reads=(b, part(a, 0, 4)), writes=(c,)),  # level 1, first half of a
        Step(reads=(part(a, 4, 4),)),  # level 0, second half
        Step(writes=(part(a, 4, 4),)),
        Step(writes=(part(a, 0, 4),)),
        Step(reads=(a,)),
    ]
    assert level_of(steps) == [0, 1, 0, 1, 2, 3]


def matrix(rows: int, columns: int) -> View:
    return contiguous(
        Buffer(BufferKind.ACTIVATION, 4 * rows * columns), TensorType(dtypes.FLOAT32, (rows, columns))
    )


def block(whole: View, rows: tuple[int, int], columns: tuple[int, int]) -> View:
    starts, ends = zip(rows, columns, strict=True)
    return whole.slice(starts, (1, 1), tuple(end - start for start, end in zip(starts, ends, strict=True)))


def test_columns_of_a_matrix_are_apart() -> None:
    """What writes halves of rows, as the parts of a Concat do, meets nobody who has the other halves."""
    a = matrix(4, 8)
    left, right = block(a, (0, 4), (0, 4)), block(a, (0, 4), (4, 8))
    assert level_of([Step(writes=(left,)), Step(writes=(right,)), Step(reads=(a,))]) == [0, 0, 1]
    steps = [Step(writes=(left,)), Step(writes=(right,)), Step(reads=(left,)), Step(writes=(right,))]
    assert level_of([*steps, Step(writes=(left,))]) == [0, 0, 1, 1, 2]
    inside = block(a, (1, 3), (3, 5))
    assert level_of([Step(writes=(left,)), Step(writes=(right,)), Step(writes=(inside,))]) == [0, 0, 1]
    assert level_of([Step(writes=(left,)), Step(writes=(inside,)), Step(writes=(right,))]) == [0, 1, 2]
    # Rows are told apart in each column, too.
    corners = [block(a, rows, columns) for rows in ((0, 2), (2, 4)) for columns in ((0, 4), (4, 8))]
    assert level_of([Step(writes=(corner,)) for corner in corners]) == [0, 0, 0, 0]
    # A view that runs across rows is in all columns.
    assert level_of([Step(writes=(left,)), Step(writes=(right,)), Step(reads=(tensor_of(a, 6, 5),))]) == [
        0,
        0,
        1,
    ]


def tensor_of(whole: View, start: int, size: int) -> View:
    return View(whole.buffer, whole.dtype, (size,), (1,), start)


@pytest.mark.parametrize("seed", range(100))
def test_blocks_of_matrices_keep_every_dependency(seed: int) -> None:
    choose = random.Random(seed)
    buffers = [
        matrix(choose.choice((2, 3, 5)), choose.choice((4, 6, 8))) for _ in range(choose.randint(1, 2))
    ]

    def window() -> View:
        whole = choose.choice(buffers)
        rows, columns = (sorted(choose.sample(range(size + 1), 2)) for size in whole.shape)
        made = block(whole, (rows[0], rows[1]), (columns[0], columns[1]))
        if choose.random() < 0.2:
            made = made.transpose((1, 0))
        if choose.random() < 0.2:
            made = tensor_of(whole, rows[0] * whole.shape[1] + columns[0], columns[1] - columns[0])
        return made

    steps = [
        Step(*(tuple(window() for _ in range(choose.choice((0, 1, 2)))) for _ in range(2)))
        for _ in range(choose.randint(2, 20))
    ]
    assert broken_dependencies(steps, schedule(steps)) == []


def random_steps(seed: int, *, is_strided: bool) -> list[Step]:
    """Reads and writes of windows on a few small buffers."""
    choose = random.Random(seed)
    buffers = [tensor(choose.choice((1, 3, 8, 17, 40))) for _ in range(choose.randint(1, 5))]

    def window() -> View:
        whole = choose.choice(buffers)
        size = whole.shape[0]
        start = choose.randrange(size)
        step = choose.choice((1, 1, 2, 3)) if is_strided else 1
        count = choose.randint(0, -(-(size - start) // step))
        view = whole.slice((start,), (step,), (count,))
        if is_strided and count and choose.random() < 0.3:
            view = View(view.buffer, view.dtype, (count,), (-step,), start + (count - 1) * step)
        if is_strided and choose.random() < 0.2:
            view = view.expand((3, count))
        return view

    def windows() -> tuple[View, ...]:
        return tuple(window() for _ in range(choose.choice((0, 1, 1, 2, 3))))

    return [Step(windows(), windows()) for _ in range(choose.randint(1, 30))]


@pytest.mark.parametrize("seed", range(150))
def test_levels_keep_every_dependency(seed: int) -> None:
    steps = random_steps(seed, is_strided=True)
    assert broken_dependencies(steps, schedule(steps)) == []


@pytest.mark.parametrize("seed", range(60))
def test_every_dispatch_is_in_the_earliest_level(seed: int) -> None:
    """Each waits only for what it meets: windows without steps, whose range of bytes is what they touch."""
    steps = random_steps(seed, is_strided=False)
    levels = schedule(steps)
    number = {id(step): at for at, level in enumerate(levels) for step in level}
    for late, step in enumerate(steps):
        waits = [
            number[id(other)]
            for other in steps[:late]
            if any(
                one.buffer is two.buffer and one.byte_range[0] < two.byte_range[1]
                and two.byte_range[0] < one.byte_range[1] and one.elements and two.elements
                for mine, theirs in ((step.reads, other.writes), (step.writes, (*other.reads, *other.writes)))
                for one in mine
                for two in theirs
            )
        ]  # fmt: skip
        assert number[id(step)] == max(waits, default=-1) + 1


@pytest.mark.parametrize("kind", ["parts", "parts and readers", "chain", "readers"])
def test_work_grows_as_the_program(kind: str) -> None:
    """Four times the dispatches are about four times the work; each pair looked at would be sixteen."""

    def program(count: int) -> list[Step]:
        whole, source = tensor(count), tensor(4, BufferKind.INPUT)
        if kind == "chain":
            values = [tensor(1) for _ in range(count + 1)]
            return [Step((a,), (b,)) for a, b in pairwise(values)]
        if kind == "readers":
            return [Step((source, part(whole, at, 1)), (tensor(1),)) for at in range(count)]
        steps = [Step((source,), (part(whole, at, 1),)) for at in range(count // 2)]
        if kind == "parts":
            return [*steps, *(Step((part(whole, at, 1),), (tensor(1),)) for at in range(count // 2))]
        return [*steps, *(Step((whole,), (tensor(1),)) for _ in range(count // 2))]

    small, large = (lines_run(schedule, program(count)) for count in (500, 2000))
    assert large < 6 * small
