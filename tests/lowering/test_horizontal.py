"""Horizontal fusion: which launches become one, and that none of them comes too late or too early."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.counting import lines_run
from tests.lowering.checking import broken_dependencies
from vkml.ir import TensorType, dtypes
from vkml.kernels.items import COUNT, ELEMENT
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering import horizontal
from vkml.lowering.horizontal import fused_horizontally
from vkml.lowering.schedule import schedule
from vkml.lowering.target import Target

TARGET = Target(frozenset())


def tensor(elements: int = 8, kind: BufferKind = BufferKind.ACTIVATION) -> View:
    return contiguous(Buffer(kind, 4 * elements), TensorType(dtypes.FLOAT32, (elements,)))


def launch(
    reads: Sequence[View], writes: Sequence[View], form: str | None = "form", width: int = 1
) -> Dispatch:
    """A launch of one element a thread that reads and writes these."""
    fields = [("float*", f"p{number}") for number in range(len(reads) + len(writes))]
    text = KernelText((COUNT,), tuple(fields), (), (f"{ELEMENT} {{ {width}; }}", "main"), False)
    count = writes[0].elements
    kernel = KernelSpec("k", text, (count,), 8 * len(fields), form=form and (form, len(fields)))
    return Dispatch(kernel, (1, 1, 1), (*reads, *writes), tuple(reads), tuple(writes))


def counts(levels: list[list[Dispatch]]) -> list[list[int]]:
    """The members of each launch."""
    return [[len(each.members) or 1 for each in level] for level in levels]


def chain(length: int) -> list[Dispatch]:
    """Launches that nothing joins, each of which needs the one before, and an update behind each."""
    made, value = [], tensor()
    for _ in range(length):
        value, before = tensor(), value
        made.append(launch((before,), (value,), form=None))
        made.append(launch((tensor(), value), (tensor(kind=BufferKind.OUTPUT),)))
    return made


def test_updates_wait_for_the_last_of_them() -> None:
    levels = schedule(chain(6))
    assert len(levels) == 7
    assert counts(fused_horizontally(levels, TARGET)) == [[1]] * 6 + [[6]]


def test_few_stay_by_themselves() -> None:
    levels = schedule(chain(horizontal.LEAST_MEMBERS - 1))
    assert fused_horizontally(levels, TARGET) is levels


def test_large_ones_keep_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizontal, "MOVED_ELEMENTS", 7)
    levels = schedule(chain(6))
    assert fused_horizontally(levels, TARGET) is levels
    beside = [launch((tensor(),), (tensor(),)) for _ in range(5)]
    assert counts(fused_horizontally([beside], TARGET)) == [[5]]


def test_none_comes_behind_what_needs_it() -> None:
    launches = chain(6)
    first_update = launches[1].writes[0]
    launches.append(launch((first_update,), (tensor(),), form=None))
    assert counts(fused_horizontally(schedule(launches), TARGET)) == [[1], [1, 1], [1, 1], [1], [1], [1], [5]]


def test_none_comes_behind_what_writes_over_what_it_reads() -> None:
    launches = chain(6)
    read, result = launches[1].reads[0], tensor(kind=BufferKind.OUTPUT)
    launches.append(launch((launches[4].writes[0],), (result,), form=None))
    levels = schedule(launches, {result.buffer: read.buffer})
    joined = fused_horizontally(levels, TARGET, {result.buffer: read.buffer})
    assert counts(joined) == [[1], [1, 1], [1], [1, 1], [1], [1], [5]]


def test_forms_and_texts_are_told_apart() -> None:
    one = [launch((tensor(),), (tensor(),), "one") for _ in range(4)]
    two = [launch((tensor(),), (tensor(),), "two", width=1 + at % 2) for at in range(4)]
    many = [launch((tensor(),), (tensor(),), "many", width=at) for at in range(horizontal.MOST_VARIANTS + 1)]
    [level] = fused_horizontally([[*one, *two, *many]], TARGET)
    assert sorted(len(each.members) for each in level) == [0, 4, 4, 4]
    assert sorted(each.kernel.source.count("struct Entry") for each in level if each.members) == [1, 2, 4]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_keep_every_dependency(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizontal, "LEAST_MEMBERS", 2)
    rng = random.Random(seed)
    values = [tensor(rng.choice((4, 8))) for _ in range(12)]
    launches = []
    for _ in range(40):
        into = rng.choice(values)
        form = rng.choice((None, "one", "one", "two"))
        launches.append(launch((rng.choice(values),), (into,), form))
    levels = fused_horizontally(schedule(launches), TARGET)
    single = [[each for found in level for each in found.members or (found,)] for level in levels]
    assert not broken_dependencies(launches, single)
    assert any(found.members for level in levels for found in level)


def test_work_grows_as_the_program() -> None:
    """Of launches of one form in a row, which nothing joins."""

    def work(length: int) -> int:
        values = [tensor() for _ in range(length + 1)]
        levels = [[launch((values[at],), (values[at + 1],))] for at in range(length)]
        assert fused_horizontally(levels, TARGET) is levels
        return lines_run(fused_horizontally, levels, TARGET)

    assert work(400) < 2.2 * work(200)


def test_a_table_says_where_everything_is() -> None:
    first, second = tensor(300), tensor(8)
    launches = [launch((view,), (view,)) for view in (first, second, second, second)]
    [[made]] = fused_horizontally([launches], TARGET)
    assert made.table is not None and made.groups == (5, 1, 1)
    found = made.table.filled({first.buffer: 1 << 40, second.buffer: 64})
    assert len(found) == made.table.buffer.bytes
    words = memoryview(found).cast("I")
    assert [*words[:6]] == [0, 0, 1, 2, 3, 0]  # of which tensor each workgroup is, and four bytes of nothing
    addresses, entry = memoryview(found[24:]).cast("Q"), 6
    assert addresses[0] == addresses[1] == 1 << 40 and addresses[3] == 64
    assert [*words[entry + 4 : entry + 6]] == [300, 0]  # elements, and the first workgroup
    assert [*words[entry + 10 : entry + 12]] == [8, 2]
