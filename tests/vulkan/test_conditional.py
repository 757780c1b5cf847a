"""Launches that run where a word of memory says so."""

from dataclasses import replace

import numpy as np
import pytest

from tests.vulkan.helpers import GROUP, Adder, every_device
from tests.vulkan.kernels import add_push
from vkml.errors import InvalidArgument
from vkml.vulkan import Device, MemoryKind
from vkml.vulkan.structures import constants

COUNT = 100


def adds(recorder, adder):
    """Records o = a + b."""
    push = add_push(adder.a.address, adder.b.address, adder.o.address, COUNT)
    recorder.dispatch(adder.pipeline, push, -(-COUNT // GROUP))


def has_conditions(info):
    if not info.capabilities.conditional_rendering:
        pytest.skip("no conditional rendering on this device")


@pytest.fixture
def ones():
    return np.ones(COUNT, np.float32)


@every_device
@pytest.mark.parametrize("word", [0, 1, 1 << 31])
def test_a_launch_runs_where_its_word_is_not_zero(info, word, ones):
    """The word is written by the commands before it, and lies among words that say the contrary."""
    has_conditions(info)
    with Device(info) as device:
        adder = Adder(device, COUNT)
        words = device.allocate(64, MemoryKind.DEVICE, "words")
        recorder = device.recorder("a condition")
        recorder.fill(words, 0, 64, 0 if word else 1)
        recorder.barrier()
        recorder.fill(words, 20, 4, word)
        with recorder.conditional(words, 20):
            adds(recorder, adder)
        submission = device.submission(recorder.finish())
        for memory in (adder.a, adder.b):
            device.upload(memory, 0, ones)
        device.upload(adder.o, 0, 7 * ones)
        submission.run()
        np.testing.assert_array_equal(adder.read(adder.o), 2 * ones if word else 7 * ones)


@every_device
def test_what_lies_behind_a_condition_runs_and_later_ones_see_what_it_wrote(info, ones):
    """o doubles in each region; the word becomes zero between the second one and the third."""
    has_conditions(info)
    with Device(info) as device:
        adder = Adder(device, COUNT)
        words = device.allocate(16, MemoryKind.DEVICE, "words")
        behind = device.allocate(64, MemoryKind.DEVICE, "behind")
        recorder = device.recorder("three conditions")
        recorder.fill(words, 0, 16, 1)
        recorder.fill(behind, 0, 64, 0)
        for region in range(3):
            with recorder.conditional(words, 0):
                adds(recorder, adder)
                recorder.barrier()
                recorder.copy(adder.o, 0, adder.a, 0, 4 * COUNT)
                recorder.copy(adder.o, 0, adder.b, 0, 4 * COUNT)
            recorder.fill(words, 0, 4, int(region == 0))
            recorder.fill(behind, 4 * region, 4, region + 1)
        recorder.barrier()
        recorder.copy(adder.a, 0, adder.o, 0, 4 * COUNT)
        submission = device.submission(recorder.finish())
        for memory in (adder.a, adder.b):
            device.upload(memory, 0, ones)
        submission.run()
        np.testing.assert_array_equal(adder.read(adder.o), 4 * ones)
        assert device.download(behind, 0, 12).view(np.uint32).tolist() == [1, 2, 3]


@every_device
def test_the_barriers_of_a_condition(info, monkeypatch):
    """Neither software drivers nor the validation layer notice when one of them lacks something."""
    has_conditions(info)
    with Device(info) as device:
        memory = device.allocate(16, MemoryKind.DEVICE)
        recorder = device.recorder()
        log = []

        def barrier(_, dependency):
            [each] = dependency.pMemoryBarriers[0 : dependency.memoryBarrierCount]
            log.append((each.srcStageMask, each.srcAccessMask, each.dstStageMask, each.dstAccessMask))

        monkeypatch.setattr(recorder, "_barrier", barrier)
        for name in ("vkCmdBeginConditionalRenderingEXT", "vkCmdEndConditionalRenderingEXT"):
            call = getattr(device.context.functions, name)
            noting = lambda *arguments, name=name, call=call: (log.append(name), call(*arguments))  # noqa: E731
            monkeypatch.setitem(vars(device.context.functions), name, noting)
        with recorder.conditional(memory, 0):
            pass
    c = constants
    work = c.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT | c.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT
    with_conditions = work | c.VK_PIPELINE_STAGE_2_CONDITIONAL_RENDERING_BIT_EXT
    writes = c.VK_ACCESS_2_TRANSFER_WRITE_BIT | c.VK_ACCESS_2_SHADER_WRITE_BIT
    both = writes | c.VK_ACCESS_2_TRANSFER_READ_BIT | c.VK_ACCESS_2_SHADER_READ_BIT
    assert log == [
        (work, writes, with_conditions, both | c.VK_ACCESS_2_CONDITIONAL_RENDERING_READ_BIT_EXT),
        "vkCmdBeginConditionalRenderingEXT",
        "vkCmdEndConditionalRenderingEXT",
        (with_conditions, writes, work, both),
    ]


@every_device
def test_a_device_without_conditions_says_so(info):
    bare = replace(info, capabilities=replace(info.capabilities, conditional_rendering=False))
    with Device(bare) as device:
        memory = device.allocate(16, MemoryKind.DEVICE)
        recorder = device.recorder()
        with (
            pytest.raises(InvalidArgument, match="has no conditional rendering"),
            recorder.conditional(memory, 0),
        ):
            pass


@every_device
def test_wrong_conditions_are_named(info):
    has_conditions(info)
    with Device(info) as device:
        memory = device.allocate(16, MemoryKind.DEVICE)
        recorder = device.recorder()
        for offset, message in ((2, "multiple of 4"), (16, "no range of 4 bytes at offset 16")):
            with pytest.raises(InvalidArgument, match=message), recorder.conditional(memory, offset):
                pass
