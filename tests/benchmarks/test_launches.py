"""`python -m benchmarks.launches` counts what a captured step moves."""

from __future__ import annotations

from benchmarks import launches
from vkml.vulkan import find_device


def test_a_step_is_counted(vulkan_device_name: str) -> None:
    program = launches.program_of("digits_b64", vulkan_device_name, processors=132)
    counted = launches.by_label(program.dispatches)
    assert sum(moved.launches for moved in counted.values()) == len(program.dispatches)
    # Of 64 rows of 10 scores; labels are of 64 bits, without which the loss is the CPU's.
    has_labels = find_device(vulkan_device_name, True).capabilities.int64
    losses = [moved for label, moved in counted.items() if label.startswith("cross_entropy")]
    assert len(losses) == has_labels
    assert all(loss.launches == 1 and 64 * 10 * 4 <= loss.bytes <= 4 * 64 * 10 * 4 for loss in losses)
