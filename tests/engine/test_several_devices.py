"""Sessions that run on several devices: nodes assigned to them, and models too large for one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkml
import vkml.onnx
from vkml.engine.options import byte_count
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidArgument

Array = np.ndarray[Any, Any]
LAYERS, WIDTH = 6, 64


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    found = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if len(found) < 2:
        pytest.skip("fewer than two Vulkan devices on this machine")
    return found[:2]


def layers(rows: Any = 3) -> bytes:
    """Products with weights of 16 KiB each, one behind the other, and a branch that joins at the end."""
    rng = np.random.default_rng(0)
    sketch = Sketch("layers", 17)
    x = sketch.input("x", (rows, WIDTH))
    value, first = x, ""
    for _ in range(LAYERS):
        weight = sketch.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8)
        value = sketch.node("Tanh", sketch.node("MatMul", value, weight))
        first = first or value
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Add", value, first), value))


def expected(x: Array) -> list[Array]:
    with vkml.InferenceSession(layers(x.shape[0]), devices="cpu") as session:
        return session.run(None, {"x": x})


def products() -> list[str]:
    return [node.name for node in vkml.onnx.load_graph(vkml.onnx.open(layers())).nodes if node.op == "MatMul"]


def numbers(rows: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("seed", range(6))
def test_nodes_run_where_they_are_assigned_to(gpus: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = [*gpus, "cpu"]
    graph = vkml.onnx.load_graph(vkml.onnx.open(layers()))
    assigned = {node.outputs[0]: devices[rng.integers(3)] for node in graph.nodes}
    x = numbers(3)
    with vkml.InferenceSession(layers(), devices=devices, placement=assigned) as session:
        for found, wanted in zip(session.run(None, {"x": x}), expected(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        where = {step.device for step in session.report().steps}
        assert where == set(assigned.values())


def test_patterns_are_tried_in_their_order(gpus: list[str]) -> None:
    x = numbers(3)
    assigned = {products()[0]: gpus[1], "*": gpus[0]}
    with vkml.InferenceSession(layers(), devices=gpus, placement=assigned) as session:
        session.run(None, {"x": x})
        on_second = [step.nodes for step in session.report().steps if step.device == gpus[1]]
        assert on_second == [(f"MatMul node '{products()[0]}'",)]


@pytest.mark.parametrize("held", [0, 1, 2, 5])
def test_what_a_device_has_no_memory_for_goes_to_the_next(gpus: list[str], held: int) -> None:
    """Weights take 16 KiB a layer, values 768 bytes each."""
    x = numbers(3)
    room = {gpus[0]: held * 16384 + 4096, gpus[1]: "37KiB"}
    with vkml.InferenceSession(layers(), devices=[*gpus, "cpu"], memory_limit=room) as session:
        for _ in range(2):
            for found, wanted in zip(session.run(None, {"x": x}), expected(x), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        report = session.report()
    count = {name: 0 for name in (*gpus, "cpu")}
    for step in report.steps:
        count[step.device] += sum(op == "MatMul" for op in step.operators)
    assert count[gpus[0]] == held
    assert count[gpus[1]] == min(2, LAYERS - held)
    assert count["cpu"] == max(0, LAYERS - held - 2)
    assert len(report.placement) == (1 if held == 5 else 2)
    assert f"run on {gpus[0]}" in report.placement[0]
    assert not report.fallbacks


def test_the_last_device_takes_what_is_left_where_the_cpu_is_not_named(gpus: list[str]) -> None:
    with vkml.InferenceSession(layers(), devices=gpus, memory_limit={gpus[0]: 40000}) as session:
        session.run(None, {"x": numbers(3)})
        assert {step.device for step in session.report().steps} == set(gpus)


@pytest.mark.parametrize("held", [0, 2])
def test_all_devices_are_filled_in_their_order(
    gpus: list[str], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "all" is every device that is not software, or all where that is allowed, and then the CPU."""
    monkeypatch.setenv("VKML_ALLOW_SOFTWARE", "1")
    everything = [device.name for device in vkml.devices(True)]
    assert everything[-1] == "cpu"
    room = {name: 4096 for name in everything[:-1]} | {gpus[1]: held * 16384 + 4096}
    x = numbers(3)
    with vkml.InferenceSession(layers(), devices="all", memory_limit=room) as session:
        for found, wanted in zip(session.run(None, {"x": x}), expected(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        count = dict.fromkeys(everything, 0)
        for step in session.report().steps:
            count[step.device] += sum(op == "MatMul" for op in step.operators)
        assert len(session.report().placement) == len(everything) - 1
    assert count.pop(gpus[1]) == held and count.pop("cpu") == LAYERS - held and not any(count.values())


def test_a_model_that_fits_stays_on_the_first(gpus: list[str]) -> None:
    with vkml.InferenceSession(layers(), devices=[*gpus, "cpu"]) as session:
        session.run(None, {"x": numbers(3)})
        report = session.report()
    assert {step.device for step in report.steps} == {gpus[0]}
    assert report.placement == ()


def test_open_sizes_on_several_devices(gpus: list[str]) -> None:
    room = {gpus[0]: 40000}
    with vkml.InferenceSession(layers("n"), devices=gpus, memory_limit=room) as session:
        for rows in (3, 4, 9, 2, 5, 17):
            x = numbers(rows)
            for found, wanted in zip(session.run(None, {"x": x}), expected(x), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_values_of_one_device_are_read_by_another(gpus: list[str]) -> None:
    x = numbers(3)
    with vkml.InferenceSession(layers(), devices=gpus, placement={"*": gpus[0]}) as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", vkml.OrtValue.ortvalue_from_numpy(x, gpus[1]))
        for output in session.get_outputs():
            binding.bind_output(output.name, gpus[1])
        for _ in range(2):
            session.run_with_iobinding(binding)
        for value, wanted in zip(binding.get_outputs(), expected(x), strict=True):
            assert value.device_name() == gpus[1]
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("places", list(itertools.product((0, 1), repeat=2)))
def test_addresses_of_another_device_mean_nothing(gpus: list[str], places: tuple[int, int]) -> None:
    """Values bound to a run of a device pass through the host where they lie on another, at each run."""
    model = layers()
    with vkml.InferenceSession(model, devices=gpus[0]) as session:
        binding, (first, second) = session.io_binding(), (value.name for value in session.get_outputs())
        given = vkml.OrtValue.ortvalue_from_numpy(numbers(3), gpus[places[0]])
        made = [
            vkml.OrtValue.ortvalue_from_shape_and_type((3, WIDTH), np.float32, gpus[place])
            for place in (places[1], 0)
        ]
        binding.bind_ortvalue_input("x", given)
        for name, value in zip((first, second), made, strict=True):
            binding.bind_ortvalue_output(name, value)
        for rows in (3, 4, 5):
            x = numbers(rows)[:3]
            given.update_inplace(x)
            session.run_with_iobinding(binding)
            assert (binding.repeat is not None) == (places == (0, 0))
            for value, wanted in zip(made, expected(x), strict=True):
                np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_two_devices_may_have_one_address(gpus: list[str]) -> None:
    """As GPUs do, whose memories are spaces of their own."""
    with vkml.InferenceSession(layers(), devices=gpus) as session:
        binding = session.io_binding()
        made = [vkml.OrtValue.ortvalue_from_shape_and_type((3, WIDTH), np.float32, gpu) for gpu in gpus]
        made[1].value.address = made[0].data_ptr()
        for output, value in zip(session.get_outputs(), made, strict=True):
            binding.bind_ortvalue_output(output.name, value)
        with pytest.raises(InvalidArgument, match="another output is bound to"):
            binding.bind_ortvalue_output(session.get_outputs()[0].name, made[1])


def test_wrong_arguments_are_named(gpus: list[str]) -> None:
    for wrong, words in (
        ({"placement": {"*": "vulkan:77"}}, "the session's devices are"),
        ({"placement": {"nothing-*": gpus[0]}}, "has a name like"),
        ({"placement": [gpus[0]]}, "maps patterns"),
        ({"memory_limit": {"vulkan:77": 1}}, "no device"),
        ({"memory_limit": {gpus[0]: "2 apples"}}, "2 apples"),
        ({"memory_limit": 3}, "maps devices"),
        ({"devices": [gpus[0], gpus[0]]}, "twice"),
        ({"devices": ["cpu", gpus[0]]}, "last"),
        ({"devices": ["all", "cpu"]}, "stand alone"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            vkml.InferenceSession(layers(), **{"devices": gpus, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GiB", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("2GB", 2 * 10**9),
        ("64KB", 64000),
        (7, 7),
        ("12", 12),
        ("1 B", 1),
    ],
)
def test_numbers_of_bytes(text: Any, count: int) -> None:
    assert byte_count("it", text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 XiB", "-1", 0, True, None, "2 GiBB", "nan", float("inf")])
def test_what_is_no_number_of_bytes(text: Any) -> None:
    with pytest.raises(InvalidArgument, match="number of bytes"):
        byte_count("it", text)


def with_doubles() -> bytes:
    """Exp of doubles, which no Vulkan device computes, between two nodes that each does."""
    sketch = Sketch("doubles", 17)
    wide = sketch.node("Cast", sketch.node("Relu", sketch.input("x", (3, WIDTH))), to=11)
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Cast", sketch.node("Exp", wide), to=1)))


def test_what_cannot_run_where_it_is_assigned_to_is_said(gpus: list[str], caplog: Any) -> None:
    places = {"Exp*": gpus[1]}
    with vkml.InferenceSession(with_doubles(), devices=[*gpus, "cpu"], placement=places) as session:
        assert any("Exp" in node for node, _ in session.report().fallbacks)
        assert "Exp" in caplog.text
    with pytest.raises(vkml.NotImplemented, match="Exp"):
        vkml.InferenceSession(with_doubles(), devices=[*gpus, "cpu"], placement=places, strict=True)


@pytest.mark.parametrize("is_named", [True, False])
def test_nodes_are_found_by_outputs_that_passes_rename(gpus: list[str], is_named: bool) -> None:
    """The last node's output takes the name of the Identity behind it."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="[first]" if is_named else ""),
        helper.make_node("Softmax", ["a"], ["b"], name="[last]*" if is_named else ""),
        helper.make_node("Identity", ["b"], ["y"], name="end" if is_named else ""),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "renamed", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    places = {"a": gpus[0], "b": gpus[1], "y": gpus[0]}
    data = model.SerializeToString()
    with vkml.InferenceSession(data, devices=[*gpus, "cpu"], placement=places) as session:
        where = {operator: step.device for step in session.report().steps for operator in step.operators}
    assert where == {"Neg": gpus[0], "Softmax": gpus[1]}


def test_memory_of_assigned_nodes_counts(gpus: list[str]) -> None:
    """Two weights of 16 KiB are assigned to a device that may hold three."""
    last = products()[-2:]
    room = {gpus[0]: 3 * 16384 + 8192}
    assigned = dict.fromkeys(last, gpus[0])
    with vkml.InferenceSession(layers(), devices=gpus, memory_limit=room, placement=assigned) as session:
        steps = session.report().steps
    count = sum(sum(op == "MatMul" for op in step.operators) for step in steps if step.device == gpus[0])
    assert count == 3
