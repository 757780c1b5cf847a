"""Programs that are phases of one: what their entry points are given, and who sees what they write."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.patience import patience
from vkml.ir import TensorType, dtypes
from vkml.kernels.phases import Phases, merged, turns
from vkml.kernels.slang import PHASE, Unsupported, compile_kernel, workgroup_of
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.vulkan import Device, MemoryKind, find_device
from vkml.vulkan.spirv import instructions, keep_arithmetic, words_of

ALIGNED, NON_PRIVATE = 2, 32
MADE_AVAILABLE_AND_VISIBLE = 0x6000
LOAD, STORE, CONTROL_BARRIER, MEMORY_MODEL = 61, 62, 224, 14
ELEMENTS = 4096


VALUES = contiguous(Buffer(BufferKind.ACTIVATION, 4 * ELEMENTS), TensorType(dtypes.INT32, (ELEMENTS,)))


def launch(
    body: str, groups: tuple[int, int, int], size: tuple[int, int, int], declarations: str = "", **words: int
) -> Dispatch:
    """A launch that has `values`, an array; `SEVEN` is a specialization constant."""
    main = f"""{declarations}
[shader("compute")] [numthreads({size[0]}, {size[1]}, {size[2]})]
void main(uint3 group : SV_GroupID, uint3 within : SV_GroupThreadID, uint3 place : SV_DispatchThreadID,
          uint thread : SV_GroupIndex)
{{
    int threads = {size[0] * size[1] * size[2]};
    int number = int(group.x + {groups[0]} * (group.y + {groups[1]} * group.z));
    int each = number * threads + int(thread);
{body}
}}
"""
    fields = (("int*", "values"), *(("int", name) for name in words))
    text = KernelText(("SEVEN",), fields, (), (main,), False)
    kernel = KernelSpec("k", text, (7,), 8 + 4 * len(words))
    return Dispatch(kernel, groups, (VALUES, *words.values()), (VALUES,), (VALUES,))


def of(*levels: list[Dispatch]) -> Dispatch:
    """One dispatch in the place of levels."""
    found: Phases | None = Phases()
    for level in levels:
        assert found is not None
        found = found.with_level(level)
    assert found is not None
    return merged(found)


def run(device_name: str, *dispatches: Dispatch) -> np.ndarray:
    """What dispatches, one behind the other, leave in values that begin as 0."""
    with Device(find_device(device_name)) as device:
        memory = device.allocate(4 * ELEMENTS, MemoryKind.DEVICE)
        device.upload(memory, 0, np.zeros(ELEMENTS, np.int32))
        recorder = device.recorder("phases")
        for dispatch in dispatches:
            kernel = dispatch.kernel
            pipeline = device.pipeline(
                keep_arithmetic(compile_kernel(kernel.source)),
                constants=kernel.constants,
                push_constant_bytes=kernel.push_bytes,
            )
            addresses = [memory.address for argument in dispatch.arguments if isinstance(argument, View)]
            words = [argument for argument in dispatch.arguments if isinstance(argument, int)]
            push = struct.pack(f"<{len(addresses)}Q{len(words)}i", *addresses, *words)
            recorder.dispatch(pipeline, push, *dispatch.groups)
            recorder.barrier()
        submission = device.submission(recorder.finish())
        submission.submit()
        assert submission.wait(timeout_seconds=patience(60))
        return device.download(memory, 0, 4 * ELEMENTS).view(np.int32)


PLACES = """
    values_of(each, 0, int(group.x)); values_of(each, 1, int(group.y)); values_of(each, 2, int(group.z));
    values_of(each, 3, int(within.x)); values_of(each, 4, int(within.y)); values_of(each, 5, int(within.z));
    values_of(each, 6, int(place.x)); values_of(each, 7, int(place.y)); values_of(each, 8, int(place.z));
    values_of(each, 9, int(thread)); values_of(each, 10, SEVEN); values_of(each, 11, push.word);
"""
STORES = "void values_of(int each, int what, int value) { push.values[each * 12 + what] = value; }"


@pytest.mark.parametrize("whole", [False, True], ids=["elementwise", "whole"])
@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ((1, 1, 1), (64, 1, 1)),
        ((1, 1, 1), (3, 5, 2)),
        ((5, 1, 1), (8, 2, 1)),
        ((1, 5, 1), (16, 1, 1)),
        ((1, 1, 4), (2, 2, 2)),
        ((3, 2, 1), (4, 1, 3)),
        ((2, 1, 3), (5, 1, 1)),
        ((1, 3, 2), (5, 1, 1)),
        ((2, 2, 2), (3, 1, 2)),
    ],
)
def test_places_are_those_of_a_grid(
    vulkan_device_name: str, whole: bool, groups: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    body = PLACES + ("    GroupMemoryBarrierWithGroupSync();" if whole else "")
    alone = launch(body, groups, size, STORES, word=11)
    first = launch("    push.values[4000 + each] = push.other;", (1, 1, 1), (8, 1, 1), other=5)
    both = of([first], [alone])
    assert both.kernel.source.count("[shader") == 3
    wanted = run(vulkan_device_name, first, alone)
    found = run(vulkan_device_name, both)
    np.testing.assert_array_equal(found, wanted)
    count = int(np.prod(groups)) * int(np.prod(size))
    assert (found[: 12 * count].reshape(-1, 12)[:, 10:] == [7, 11]).all()


def test_workgroups_that_share_memory_wait_for_one_another(vulkan_device_name: str) -> None:
    """Of one launch, and of launches beside one another: all of them have the same room."""
    room = "groupshared int room[64];"
    turned = """
    room[thread] = each + push.more;
    GroupMemoryBarrierWithGroupSync();
    push.values[each + push.more] = room[63 - thread];
"""
    launches = [launch(turned, (6, 1, 1), (64, 1, 1), room, more=more) for more in (0, 384, 768)]
    simple = launch("    push.values[2000 + each] = 3;", (2, 1, 1), (16, 1, 1))
    both = of([launches[0], simple, launches[1]], [launches[2]])
    assert len(set(shared_variables(compile_kernel(both.kernel.source)))) == 1
    np.testing.assert_array_equal(run(vulkan_device_name, both), run(vulkan_device_name, *launches, simple))


def test_threads_too_many_write_nothing(vulkan_device_name: str) -> None:
    """They go the way of others, in functions and round early ends, too; the last one to write would show."""
    declarations = """groupshared int room[16];
void note(int at, int value) { if (value % 3 == 0) { push.values[at] += 1; return; } push.values[at] -= 1; }
"""
    narrow = """
    room[thread] = each;
    GroupMemoryBarrierWithGroupSync();
    room[15 - thread] += 100;
    GroupMemoryBarrierWithGroupSync();
    note(100 + each, room[thread]);
    push.values[each] += room[thread];
"""
    wide = launch(
        "    GroupMemoryBarrierWithGroupSync(); push.values[1000 + each] += 1;", (1, 1, 1), (96, 1, 1)
    )
    few = launch(narrow, (3, 1, 1), (16, 1, 1), declarations)
    both = of([few], [wide])
    assert "numthreads(96" in both.kernel.source
    found = run(vulkan_device_name, both)
    np.testing.assert_array_equal(found, run(vulkan_device_name, few, wide))
    assert found[:48].tolist() == [each + 100 for each in range(48)]


def test_atomic_operations_have_no_twins() -> None:
    kernel = launch("    GroupMemoryBarrierWithGroupSync();", (1, 1, 1), (64, 1, 1)).kernel
    counted = launch("    InterlockedAdd(push.values[0], 1);", (1, 1, 1), (64, 1, 1)).kernel
    assert kernel.text.fields == counted.text.fields
    driver = kernel.source.replace(
        "GroupMemoryBarrierWithGroupSync();", "phase0(group, thread, thread < 9u);"
    )
    with pytest.raises(Unsupported, match="where not all invocations write"):
        compile_kernel(PHASE.join([driver, counted.source]))


def shared_variables(code: bytes) -> list[int]:
    return [
        line.operands[1]
        for line in instructions(words_of(code))
        if line.opcode == 59 and line.operands[2] == 4
    ]


def test_a_phase_sees_what_other_threads_have_written(vulkan_device_name: str) -> None:
    written = launch("    push.values[each] = each * SEVEN;", (3, 1, 1), (128, 1, 1))
    turned = launch("    push.values[1000 + each] = push.values[383 - each];", (3, 1, 1), (128, 1, 1))
    again = launch("    push.values[2000 + each] = push.values[1383 - each] + 1;", (6, 1, 1), (64, 1, 1))
    found = run(vulkan_device_name, of([written], [turned], [again]))
    np.testing.assert_array_equal(found, run(vulkan_device_name, written, turned, again))
    assert found[2383] == 383 * 7 + 1


def test_accesses_say_that_others_see_them() -> None:
    """In Vulkan's memory model; by GLSL's nobody has to see them."""
    body = "    push.values[each] += room[thread]; GroupMemoryBarrierWithGroupSync();"
    level = [launch(body, (1, 1, 1), (64, 1, 1), "groupshared int room[64];")]
    lines = list(instructions(words_of(compile_kernel(of(level, level).kernel.source))))
    [model] = [line for line in lines if line.opcode == MEMORY_MODEL]
    assert tuple(model.operands) == (5348, 3)
    numbers = {line.operands[1]: line.operands[2] for line in lines if line.opcode == 43}
    barriers = [[numbers[each] for each in line.operands] for line in lines if line.opcode == CONTROL_BARRIER]
    inside, between = [2, 2, 0x108 | MADE_AVAILABLE_AND_VISIBLE], [2, 2, 0x148 | MADE_AVAILABLE_AND_VISIBLE]
    assert sorted(barriers) == [inside, inside, between]
    accesses = [line.operands[3:] for line in lines if line.opcode == LOAD and len(line.operands) > 3]
    accesses += [line.operands[2:] for line in lines if line.opcode == STORE and len(line.operands) > 2]
    kinds = {tuple(each) for each in accesses}
    assert kinds == {(ALIGNED | NON_PRIVATE, 4), (NON_PRIVATE,)}


def test_turns_of_a_workgroup() -> None:
    elementwise = launch("    push.values[each] = 1;", (5, 2, 1), (64, 1, 1))
    assert [turns(elementwise, threads) for threads in (32, 64, 256, 1024)] == [20, 10, 3, 1]
    together = launch("    GroupMemoryBarrierWithGroupSync();", (5, 2, 1), (64, 1, 1))
    assert turns(together, 64) == 10


def test_what_a_kernel_says_of_its_workgroups() -> None:
    source = launch(
        "", (1, 1, 1), (4, 3, 2), "groupshared float room[5][3]; groupshared uint one;"
    ).kernel.source
    size, shared = workgroup_of(source)
    assert size == 24
    assert sorted(shared) == [("float[3][5]", 60), ("uint", 4)]


def test_a_phase_has_the_push_constants_of_the_whole() -> None:
    first = (
        'struct Push { int* x; };\n[shader("compute")] [numthreads(1, 1, 1)]\n'
        "void main() { phase0(uint3(0u, 0u, 0u), 0u); }"
    )
    second = first.replace("phase0(uint3(0u, 0u, 0u), 0u);", "push.x[0] = 1;").replace(
        "};\n", "};\n[[vk::push_constant]] ConstantBuffer<Push> push;\n", 1
    )
    with pytest.raises(Unsupported, match="push constants of a phase"):
        compile_kernel(PHASE.join([first, second]))
