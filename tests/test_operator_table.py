"""The site's table of operators says what the back ends do."""

from __future__ import annotations

import pytest

from tests.test_site import load
from vkml.cpu.native.executable import instruction_set
from vkml.ir.operator import REGISTRY, Operator

table = load("operator_table")
Way = table.Way
HAS_MACHINE_CODE = instruction_set() is not None


def test_every_operator_has_a_row() -> None:
    for domain in table.DOMAINS:
        known = {name for of, name in REGISTRY if of == domain}
        assert known and known <= table._names(domain)
    assert "SwiGLU" in table._names("")  # by its body
    assert not {of for of, _ in REGISTRY} - set(table.DOMAINS) - {"vkml"}


def test_types_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SAMPLES", 1)
    added, joined = table._row("", "Add"), table._row("", "Concat")
    assert added.vulkan["float32"] == joined.vulkan["int32"] == {Way.KERNEL}
    assert added.cpu["float32"] == {Way.KERNEL if HAS_MACHINE_CODE else Way.NUMPY}
    assert joined.vulkan["string"] == joined.cpu["string"] == {Way.NUMPY}  # texts are no device's
    assert "string" not in added.cpu  # ONNX adds none


def test_steps_are_told_from_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add, were it to state steps alone: x + y = x - ((y - y) - y)."""
    known = REGISTRY["", "Add"]

    class InSteps(Operator):
        inputs = known.inputs

        def infer(self, node, inputs):
            return known.infer(node, inputs)

        def steps(self, build, node, inputs):
            left, right = inputs
            zero = build.apply("Sub", right, right)
            return [build.apply("Sub", left, build.apply("Sub", zero, right))]

    monkeypatch.setattr(table, "SAMPLES", 1)
    monkeypatch.setitem(REGISTRY, ("", "Add"), InSteps("Add"))
    assert table._row("", "Add").vulkan["float32"] == {Way.STEPS}


def test_what_is_not_tried_is_said_by_its_traits() -> None:
    assert table._row("", "If").on_vulkan == "the engine, between plans"
    assert table._row("", "Shape").on_cpu == "known in planning"
    assert table._row("", "SwiGLU").on_cpu == "the operators of its body"
    assert table._row("com.microsoft", "QLinearAdd").on_vulkan == "rewritten as other operators"
    assert table._row("", "ImageDecoder").on_vulkan == "the CPU"


def test_types_of_a_group_have_one_name() -> None:
    taken = ("float32", "float16", "int8", "int32", "bool", "string")
    assert table.named(taken, taken) == "floats, integers, bool, string"
    assert table.named(("string", "int32", "float16", "float32"), taken) == "floats, int32, string"


def test_a_row_names_types_where_they_differ() -> None:
    row = table.Row("", "Relu", (6, 14), {"float32": {Way.KERNEL}, "string": {Way.NUMPY}}, {})
    assert row.on_cpu == "machine code: float32; NumPy: string"
    [text, *_] = table.tables([row])
    assert text.splitlines()[0] == "## ai.onnx"
    assert text.splitlines()[-1] == "| Relu | 6, 14 | machine code: float32; NumPy: string | a kernel |"
    assert table.expanded("# None\n") == "# None\n"
