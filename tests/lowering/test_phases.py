"""Phases: which levels become one dispatch, and that it states all that they read, write and are given."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels import gpu_targets as units
from tests.lowering.checking import broken_dependencies
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, TensorType, dtypes
from vkml.ir.size import Sizes
from vkml.kernels.horizontal import LaunchTable
from vkml.kernels.phases import NEEDS
from vkml.kernels.slang import PHASE
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering import phases
from vkml.lowering.phases import merged_levels
from vkml.lowering.schedule import schedule
from vkml.lowering.target import Target
from vkml.lowering.vulkan import Piece, lower
from vkml.passes import fuse, specialise

GPU = Target(frozenset(NEEDS), push_bytes=256, shared_bytes=49152, max_invocations=1024, processors=132)
Levels = list[list[Dispatch]]


def tensor(elements: int = 8) -> View:
    return contiguous(Buffer(BufferKind.ACTIVATION, 4 * elements), TensorType(dtypes.FLOAT32, (elements,)))


def launch(
    reads: Sequence[View],
    writes: Sequence[View],
    *,
    groups: tuple[int, int, int] = (1, 1, 1),
    threads: int = 256,
    body: str = "",
    shared: int = 0,
    words: Sequence[int] = (),
    subgroup_size: int | None = None,
) -> Dispatch:
    """A launch that reads and writes these."""
    fields = [("float*", f"p{number}") for number in range(len(reads) + len(writes))]
    fields += [("int", f"word{number}") for number in range(len(words))]
    declared = f"groupshared float room[{shared}];\n" if shared else ""
    main = f'{declared}[shader("compute")] [numthreads({threads}, 1, 1)]\nvoid main() {{ {body} }}'
    text = KernelText(("SIZE",), tuple(fields), (), (main,), False)
    push = sum(8 if type_.endswith("*") else 4 for type_, _ in fields)
    kernel = KernelSpec("k", text, (writes[0].elements,), push, subgroup_size=subgroup_size)
    return Dispatch(kernel, groups, (*reads, *writes, *words), tuple(reads), tuple(writes))


WAITS = "GroupMemoryBarrierWithGroupSync();"


def chain(*made: Dispatch) -> Levels:
    """A level for each."""
    return [[each] for each in made]


def sizes(levels: Levels) -> list[int]:
    """How many levels each of them was."""
    return [len(level[0].phases) or 1 for level in levels]


def small(**more: object) -> Dispatch:
    return launch((tensor(),), (tensor(),), **more)  # type: ignore[arg-type]


def test_nothing_is_merged_where_that_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = chain(small(), small())
    assert sizes(merged_levels(levels, GPU)) == [2]
    assert merged_levels(levels, replace(GPU, processors=1)) is levels
    assert merged_levels(levels, replace(GPU, capabilities=frozenset())) is levels
    monkeypatch.setattr(phases, "offered", False)
    assert merged_levels(levels, GPU) is levels


def test_runs_of_small_levels_are_merged() -> None:
    large = small(groups=(64, 1, 1))
    levels = chain(small(), small(), large, small(), large, small(), small(), small())
    assert sizes(merged_levels(levels, GPU)) == [2, 1, 1, 1, 3]


def test_a_dispatch_says_what_its_launches_do() -> None:
    first, second = (
        replace(small(words=(word,)), nodes=(name,), operators=("Op",)) for name, word in (("a", 5), ("b", 6))
    )
    [[found]] = merged_levels(chain(first, second), GPU)
    assert found.groups == (1, 1, 1)
    assert found.reads == first.reads + second.reads
    assert found.writes == first.writes + second.writes
    assert (found.nodes, found.operators) == (("a", "b"), ("Op", "Op"))
    assert found.phases == ((first,), (second,))
    assert found.kernel.push_bytes == 4 * 8 + 2 * 4
    assert found.arguments == (*first.arguments[:2], *second.arguments[:2], 5, 6)


def test_an_address_is_given_once() -> None:
    values = [tensor() for _ in range(5)]
    levels = chain(*[launch((a,), (b,)) for a, b in itertools.pairwise(values)])
    [[found]] = merged_levels(levels, GPU)
    assert found.arguments == tuple(values)
    assert found.kernel.push_bytes == 40


def test_a_word_is_given_once_a_name() -> None:
    [[found]] = merged_levels(chain(small(words=(5, 5)), small(words=(5, 6))), GPU)
    assert found.arguments[4:] == (5, 5, 6)
    first, second = found.kernel.source.split(PHASE)[1:]
    assert ["int word0;" in each and "int word1;" in each for each in (first, second)] == [True, True]


def test_an_address_that_a_launch_is_given_twice_has_two_names() -> None:
    value = tensor()
    [[found]] = merged_levels(chain(launch((value,), (value,)), small()), GPU)
    assert found.arguments[:2] == (value, value)
    assert "float* p0;\n    float* p1;" in found.kernel.source


def test_push_constants_end_a_run() -> None:
    levels = chain(*[small() for _ in range(5)])
    assert sizes(merged_levels(levels, replace(GPU, push_bytes=64))) == [4, 1]


def test_shared_memory_ends_a_run_but_for_what_kernels_share() -> None:
    alike = [small(shared=4096, body=WAITS) for _ in range(3)]
    assert sizes(merged_levels(chain(*alike), replace(GPU, shared_bytes=16384))) == [3]
    unlike = [small(shared=size, body=WAITS) for size in (4096, 4095, 4094)]
    assert sizes(merged_levels(chain(*unlike), GPU)) == [3]
    assert sizes(merged_levels(chain(*unlike), replace(GPU, shared_bytes=49136))) == [2, 1]


def test_structs_share_no_memory() -> None:
    """Of two kernels with the same text, too."""
    both = [small(body=WAITS) for _ in range(2)]
    for at, each in enumerate(both):
        text = each.kernel.text
        parts = ("struct Pair { float a; float b; };\ngroupshared Pair room[2048];", *text.parts)
        both[at] = replace(each, kernel=replace(each.kernel, text=replace(text, parts=parts)))
    assert sizes(merged_levels(chain(*both), replace(GPU, shared_bytes=32768))) == [2]
    assert sizes(merged_levels(chain(*both), replace(GPU, shared_bytes=32767))) == [1, 1]


def test_threads_that_go_together_decide_how_many_there_are() -> None:
    products = [small(threads=count, body=WAITS, shared=4) for count in (64, 64, 128)]
    [[found]] = merged_levels(chain(*products), GPU)
    assert "numthreads(128, 1, 1)" in found.kernel.source
    many = [small(threads=count, body=WAITS) for count in (512, 512, 256)]
    assert sizes(merged_levels(chain(*many), GPU)) == [2, 1]
    # An elementwise launch of 256 threads takes one turn of as many: of twins, too, where there may be some.
    [[found]] = merged_levels(chain(small(), small(threads=64, body=WAITS)), GPU)
    assert "numthreads(256, 1, 1)" in found.kernel.source
    [[found]] = merged_levels(chain(small(threads=64), small(threads=64, body=WAITS)), GPU)
    assert "numthreads(64, 1, 1)" in found.kernel.source
    # Eight turns are worth their while, sixteen are not: with fewer threads there are more of them.
    one, wide = "InterlockedAdd(push.p1[0], 1.0);" + WAITS, small(groups=(4, 1, 1))
    assert sizes(merged_levels(chain(wide, small(threads=128, body=one)), GPU)) == [2]
    assert sizes(merged_levels(chain(wide, small(threads=64, body=one)), GPU)) == [1, 1]
    assert sizes(merged_levels(chain(small(), wide, small(threads=64, body=one)), GPU)) == [2, 1]
    assert sizes(merged_levels(chain(small(), small(threads=1024, body=WAITS)), GPU)) == [2]
    few = replace(GPU, max_invocations=512)
    assert sizes(merged_levels(chain(small(), small(threads=1024, body=WAITS)), few)) == [1, 1]


def test_elementwise_workgroups_may_be_beside_each_other() -> None:
    assert sizes(merged_levels(chain(small(), small(threads=64, groups=(32, 1, 1))), GPU)) == [2]
    assert sizes(merged_levels(chain(small(), small(threads=64, groups=(33, 1, 1))), GPU)) == [1, 1]
    beside = [small(groups=(4, 1, 1)) for _ in range(2)]
    assert sizes(merged_levels([[small()], beside], GPU)) == [2]
    assert sizes(merged_levels([[small()], [*beside, small()]], GPU)) == [1, 1]


def test_turns_that_read_more_take_longer() -> None:
    def merges(operands: int, count: int) -> bool:
        wide = launch([tensor() for _ in range(operands)], (tensor(),), groups=(count, 1, 1))
        return sizes(merged_levels(chain(small(), wide), GPU)) == [2]

    assert merges(2, 8) and not merges(2, 9)
    assert merges(5, 4) and not merges(5, 5)


def test_loops_take_one_turn() -> None:
    loop, unrolled = (f"{what}for (int i = 0; i < 9; ++i) {{}}" for what in ("", "[ForceUnroll]\n    "))

    def merges(**more: object) -> bool:
        return sizes(merged_levels(chain(small(), small(**more)), GPU)) == [2]

    assert merges(body=loop) and merges(body=loop, threads=64, groups=(4, 1, 1))
    assert not merges(body=loop, groups=(2, 1, 1)) and not merges(body=loop, threads=64, groups=(5, 1, 1))
    assert merges(body=unrolled, groups=(2, 1, 1))


def test_products_do_not_follow_one_another_in_a_level() -> None:
    product = small(body=WAITS)
    assert sizes(merged_levels([[product], [small(body=WAITS), small()]], GPU)) == [2]
    levels = [[product], [small(body=WAITS), small(body=WAITS)]]
    assert sizes(merged_levels(levels, GPU)) == [1, 1]
    assert sizes(merged_levels(chain(product, small(body=WAITS, groups=(2, 1, 1))), GPU)) == [1, 1]
    # What is beside a product takes its turns before or behind it.
    for count, found in ((7, [2]), (8, [1, 1])):
        level = [small(body=WAITS), small(groups=(count, 1, 1))]
        assert sizes(merged_levels([[product], level], GPU)) == found


def test_kernels_of_a_level_alone_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """To parse one takes a session a millisecond, and the first one 30 to load the compiler."""
    monkeypatch.setattr(phases.Phases, "with_level", lambda run, level: pytest.fail("looked into"))
    large = small(groups=(64, 1, 1))
    products = [small(body=WAITS, groups=(2, 1, 1)) for _ in range(2)]
    levels = [[small()], [large], [small()], [products[0]], [products[1]], [small()]]
    assert sizes(merged_levels(levels, GPU)) == [1] * 6


def test_subgroups_of_two_sizes_are_not_merged() -> None:
    both = [small(subgroup_size=size) for size in (32, None, 32, 16)]
    merged = merged_levels(chain(*both), GPU)
    assert sizes(merged) == [3, 1]
    assert merged[0][0].kernel.subgroup_size == 32


def test_threads_too_many_write_nothing_where_that_can_be() -> None:
    wide = small(threads=256, body=WAITS)

    def merges(**more: object) -> bool:
        return sizes(merged_levels(chain(small(threads=64, **more), wide), GPU)) == [2]

    assert merges(body=WAITS)
    assert not merges(body=WAITS + "InterlockedAdd(room[0], 1.0);", shared=1)
    assert not merges(body="WaveGetWaveIndex();", subgroup_size=32)
    assert merges(body="WaveActiveSum(1);", subgroup_size=32)
    assert not merges(body="WaveActiveSum(1);")
    assert not merges(body="WaveActiveSum(1);", subgroup_size=128)


def test_what_cannot_be_a_phase_stays() -> None:
    matrices = small(body="CoopMat<float, MemoryScope.Subgroup, 8, 8, CoopMatMatrixUse.MatrixA> a;")
    assert sizes(merged_levels(chain(small(), matrices), GPU)) == [1, 1]
    table = LaunchTable(Buffer(BufferKind.TABLE, 8), b"", ())
    assert sizes(merged_levels(chain(small(), replace(small(), table=table)), GPU)) == [1, 1]
    other = small()
    fields = (("Entry*", "p0"), *other.kernel.text.fields[1:])
    struct = replace(other, kernel=replace(other.kernel, text=replace(other.kernel.text, fields=fields)))
    assert sizes(merged_levels(chain(small(), struct), GPU)) == [1, 1]


def test_open_numbers_of_workgroups_stay() -> None:
    sizes_ = Sizes()
    open_ = replace(small(), groups=(sizes_.symbol("n", 5), 1, 1))
    with sizes_.deciding():
        assert sizes(merged_levels(chain(small(), small(), open_, small()), GPU)) == [2, 1, 1]
    assert not sizes_.guards()


def test_a_run_has_an_end() -> None:
    values = [tensor() for _ in range(22)]
    levels = chain(*[launch((a,), (b,)) for a, b in itertools.pairwise(values)])
    assert sizes(merged_levels(levels, GPU)) == [16, 5]


def test_a_kernel_does_not_get_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = chain(*[small() for _ in range(6)])
    [size] = {len(level[0].kernel.source) for level in levels}
    monkeypatch.setattr(phases, "MOST_SOURCE", 2 * size)
    assert sizes(merged_levels(levels, GPU)) == [2, 2, 2]
    monkeypatch.setattr(phases, "MOST_SOURCE", 2 * size - 1)
    assert sizes(merged_levels(levels, GPU)) == [1] * 6


def levels_of(graph: Graph, *, strict_fp32: bool = False) -> Levels:
    """What a GPU does for a graph, as levels are without phases."""
    graph = fuse(specialise(prepare(graph), {each.name: known(each.type) for each in graph.inputs}))
    piece = Piece(
        graph.nodes, tuple(each.name for each in graph.inputs), tuple(v.name for v in graph.outputs)
    )
    capabilities = units.GPU.capabilities | GPU.capabilities | {"subgroup_shuffle"}
    target = replace(units.GPU, capabilities=capabilities, push_bytes=256, strict_fp32=strict_fp32)
    program = lower(piece, graph.types, graph.constants, target)
    return program.separate_levels


def known(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(size) for size in type_.shape)


@pytest.mark.parametrize(("elements", "found"), [(1, [3]), (1024, [3]), (8192, [3]), (8193, [1, 1, 1])])
def test_additions_of_up_to_8192_elements_are_phases(elements: int, found: list[int]) -> None:
    """An H200 takes 2.48 µs for one of 8192 as a level, 1.31 as a phase."""
    sketch = Sketch("add")
    graph = sketch.finish(sketch.node("Add", *(sketch.input(name, (elements,)) for name in "xy")))
    [[addition]] = levels_of(graph)
    assert sizes(merged_levels(chain(*[addition] * 3), GPU)) == found


def products(rows: int, columns: int, count: int, *, normalised: bool = False) -> Graph:
    sketch = Sketch("products")
    x = sketch.input("x", (rows, columns))
    for _ in range(count):
        x = sketch.node("MatMul", x, sketch.constant(np.eye(columns, dtype=np.float32)))
        x = sketch.node("Tanh", sketch.node("Softmax", x)) if normalised else x
    return sketch.finish(x)


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_products_of_several_tiles_stay_levels(rows: int) -> None:
    """On an H200 sixteen of them take 64, 70 and 74 µs; as phases, 92, 149 and 252."""
    levels = levels_of(products(rows, 64, 3))
    assert [[math.prod(each.groups) for each in level] for level in levels] == [[rows // 4]] * 3
    assert sizes(merged_levels(levels, GPU)) == [1, 1, 1]


def test_products_and_softmaxes_of_one_workgroup_are_phases() -> None:
    """On an H200 24 of them take 75 µs; three at a time, as many as their sources allow, 47."""
    levels = levels_of(products(8, 16, 6, normalised=True))
    assert {level[0].kernel.label for level in levels} == {"matmul", "softmax"}
    assert sizes(merged_levels(levels, GPU)) == [3] * 4


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_keep_every_dependency(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "forced", 30)
    rng = random.Random(seed)
    values = [tensor(rng.choice((4, 8))) for _ in range(12)]
    launches = []
    for _ in range(40):
        into = rng.choice(values)
        groups = (rng.choice((1,) * 20 + (2, 40)), 1, 1)
        launches.append(launch((rng.choice(values),), (into,), groups=groups))
    merged = merged_levels(schedule(launches), GPU)
    single = [list(phase) for level in merged for phase in level[0].phases or (level,)]
    assert not broken_dependencies(launches, single)
    assert any(level[0].phases for level in merged)
    assert all(len(level) == 1 for level in merged if level[0].phases)
