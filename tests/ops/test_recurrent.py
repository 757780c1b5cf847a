"""LSTM, GRU and RNN: the reference against onnxruntime, back ends against the reference."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml
from tests.comparing import assert_close
from tests.engine.test_open_plans import open_plans
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from tests.ops.recurrent_cases import RecurrentCase, random_case, recurrent_case
from tests.vulkan_cases import Cases, Fixed
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import DType, dtypes

OPERATORS = ["LSTM", "GRU", "RNN"]


def _check(case: RecurrentCase, **how: Any) -> None:
    check_operator(case.op, case.inputs, case.attributes, outputs=case.outputs, **how)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("seed", range(25))
def test_random_layers_against_onnxruntime(op: str, seed: int) -> None:
    case = random_case(np.random.default_rng([seed, len(op)]), op, is_plain=True)
    _check(case, opset=14, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("seed", range(6))
def test_float64_and_narrow_types(op: str, seed: int) -> None:
    """Other types against float64: float32 and float64 to their rounding, narrow ones to theirs."""
    case = random_case(np.random.default_rng([seed, 20, len(op)]), op)
    exact = _run(case.doubled())
    for dtype, tolerance in ((dtypes.FLOAT32, 2e-4), (dtypes.FLOAT16, 5e-3), (dtypes.BFLOAT16, 3e-2)):
        typed = case.typed(dtype.storage)
        rounded = _run(typed.doubled())
        for found, wanted, near in zip(_run(typed), exact, rounded, strict=True):
            assert found.dtype == dtype.storage
            # What the inputs' own rounding changes is not the layer's error.
            assert_close(found.astype(np.float64), near, rtol=tolerance, atol=tolerance, what=dtype.name)
            assert near.shape == wanted.shape


@pytest.mark.parametrize("op", OPERATORS)
def test_layout_1_is_layout_0_transposed(op: str) -> None:
    for seed in range(4):
        case = random_case(np.random.default_rng([seed, 3]), op)
        attributes = {**case.attributes, "layout": 1 - case.attributes.get("layout", 0)}
        moved = [
            array.swapaxes(0, 1) if array is not None and position in (0, 5, 6) else array
            for position, array in enumerate(case.inputs)
        ]
        other = RecurrentCase(case.op, moved, attributes, case.outputs)
        for name, here, there in zip([n for n in case.outputs if n], _run(case), _run(other), strict=True):
            there = there.swapaxes(0, 1)
            if name == "Y":
                # [steps, directions, batch, hidden] and [batch, steps, directions, hidden]
                whole = here if attributes["layout"] else there.swapaxes(0, 1)
                batched = there.swapaxes(0, 1) if attributes["layout"] else here
                here, there = whole, batched.transpose(1, 2, 0, 3)
            np.testing.assert_array_equal(here, there)


def test_no_steps_leave_the_states_as_they_were() -> None:
    for op in OPERATORS:
        case = recurrent_case(np.random.default_rng(4), op, steps=0, batch=2, size=3, hidden=4)
        found = _run(case)
        assert found[0].shape == (0, 1, 2, 4)
        for state, given in zip(found[1:], case.inputs[5:], strict=True):
            np.testing.assert_array_equal(state, given)


@pytest.mark.parametrize("opset", [1, 3, 7, 14, 22])
def test_older_opsets(opset: int) -> None:
    for op in OPERATORS:
        case = recurrent_case(np.random.default_rng(5), op, steps=3, batch=2, size=3, hidden=4)
        attributes = dict(case.attributes)
        if opset < 7:
            attributes["output_sequence"] = 1
        found = run_operator(op, case.inputs, attributes, opset=opset, outputs=case.outputs)
        for mine, newest in zip(found, _run(case), strict=True):
            np.testing.assert_array_equal(mine, newest)


def test_refusals() -> None:
    case = recurrent_case(np.random.default_rng(6), "LSTM", steps=3, batch=2, size=3, hidden=4)

    def refused(
        error: type[Exception], match: str, position: int = -1, array: Any = None, **changed: Any
    ) -> None:
        inputs = list(case.inputs)
        if position >= 0:
            inputs[position] = array
        with pytest.raises(error, match=match):
            inferred_types("LSTM", inputs, {**case.attributes, **changed}, outputs=3)

    refused(ShapeError, r"W must have the shape \[1, 16, 3\]", 1, np.zeros((1, 12, 3), np.float32))
    refused(ShapeError, r"initial_c must have the shape \[1, 2, 4\]", 6, np.zeros((1, 2, 5), np.float32))
    refused(ShapeError, "sequence_lens must have 2 elements", 4, np.zeros(3, np.int32))
    refused(ShapeError, "hidden_size is 5", hidden_size=5)
    refused(InvalidGraph, "element type double", 3, np.zeros((1, 32)))
    refused(InvalidGraph, "direction is 'sideways'", direction="sideways")
    refused(InvalidGraph, "layout is 2", layout=2)
    refused(InvalidGraph, "'Gelu' is not known", activations=("Tanh", "Gelu", "Tanh"))
    refused(InvalidGraph, "3 activations are needed", activations=("Tanh", "Tanh"))
    refused(InvalidGraph, "ScaledTanh needs activation_alpha", activations=("ScaledTanh", "Tanh", "Tanh"))


def _run(case: RecurrentCase) -> list[Any]:
    return run_operator(case.op, case.inputs, case.attributes, outputs=case.outputs)


def _cases(
    device: str, made: list[RecurrentCase], *, fixed: bool = True, may_fall_back: bool = False
) -> Cases:
    """The cases on a device, with weights that are constants or not."""
    cases = Cases()
    for case in made:
        inputs = [
            Fixed(array) if fixed and array is not None and position in (1, 2, 3, 7) else array
            for position, array in enumerate(case.inputs)
        ]
        cases.add(
            case.op,
            *inputs,
            outputs=len(case.outputs),
            rtol=2e-4 if case.inputs[0].dtype == np.float32 else 4e-3,
            atol=2e-5 if case.inputs[0].dtype == np.float32 else 4e-3,
            may_fall_back=may_fall_back,
            **case.attributes,
        )
    return cases


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("op", OPERATORS)
def test_sizes_on_devices(op: str, fixed: bool, device_name: str) -> None:
    """Odd sizes, with kernels of the device."""
    rng = np.random.default_rng(8)
    made = [
        recurrent_case(rng, op, steps=steps, batch=batch, size=5, hidden=hidden, direction=direction)
        for steps, batch, hidden, direction in (
            (1, 1, 1, "forward"),
            (3, 3, 3, "bidirectional"),
            (4, 1, 17, "reverse"),
            (5, 8, 33, "bidirectional"),
            (3, 7, 16, "forward"),
            (2, 1, 300, "bidirectional"),
            (3, 1, 300, "forward"),
            (0, 2, 5, "forward"),
        )
    ]
    _cases(device_name, made, fixed=fixed).check(device_name)


@pytest.mark.parametrize("op", OPERATORS)
def test_batches_first_on_devices(op: str, device_name: str) -> None:
    """Also where as many steps, directions and sequences make shapes of both layouts equal."""
    rng = np.random.default_rng([15, len(op)])
    made = [
        recurrent_case(
            rng, op, steps=2, batch=batch, size=3, hidden=hidden, direction="bidirectional", layout=1
        )
        for batch, hidden in ((2, 4), (1, 5), (3, 17), (2, 200))
    ]
    _cases(device_name, made).check(device_name)


@pytest.mark.parametrize("op", OPERATORS)
def test_random_layers_on_devices(op: str, device_name: str) -> None:
    rng = np.random.default_rng([9, len(op)])
    made = [random_case(rng, op) for _ in range(8)]
    made = [RecurrentCase(c.op, c.inputs, c.attributes, ("Y", "Y_h", "Y_c")[: len(c.outputs)]) for c in made]
    _cases(device_name, made).check(device_name)


@pytest.mark.parametrize("is_resident", [True, False])
def test_forced_kernels(is_resident: bool, vulkan_device_name: str) -> None:
    """Both kinds of kernel where the other would be chosen, and sequences that share a workgroup."""
    rng = np.random.default_rng(10)
    made = [
        recurrent_case(
            rng, op, steps=3, batch=batch, size=4, hidden=hidden, direction="bidirectional", **attributes
        )
        for op, batch, hidden, attributes in (
            ("LSTM", 1, 20, {}),
            ("LSTM", 5, 9, {"lengths": [3, 0, 1, 2, 3], "has_peepholes": True}),
            ("GRU", 3, 33, {"linear_before_reset": 0}),
            ("GRU", 5, 12, {"linear_before_reset": 1}),
            ("RNN", 9, 40, {"clip": 0.5}),
        )
    ]
    with patch("vkml.kernels.recurrent.forced", is_resident), patch("vkml.kernels.recurrent.ROWS_SHARED", 0):
        _cases(vulkan_device_name, made).check(vulkan_device_name)


@pytest.mark.parametrize("op", OPERATORS)
def test_float16_on_devices(op: str, device_name: str) -> None:
    rng = np.random.default_rng([11, len(op)])
    made = [
        recurrent_case(rng, op, steps=4, batch=3, size=6, hidden=hidden, direction="bidirectional").typed(
            np.float16
        )
        for hidden in (5, 24)
    ]
    _cases(device_name, made).check(device_name)


@pytest.mark.parametrize("dtype", [dtypes.FLOAT64, dtypes.BFLOAT16], ids=lambda dtype: dtype.name)
def test_other_types(dtype: DType, device_name: str) -> None:
    """They run all the same: by the reference, in parts, or with states that are rounded at the end."""
    case = recurrent_case(np.random.default_rng(12), "LSTM", steps=3, batch=2, size=4, hidden=6)
    typed = case.typed(dtype.storage)
    model = build_model("LSTM", typed.inputs, typed.attributes, opset=22, outputs=3)
    with vkml.InferenceSession(model.SerializeToString(), devices=device_name) as session:
        found = session.run(None, {f"x{at}": a for at, a in enumerate(typed.inputs) if a is not None})
    # States are below 1, where bfloat16's numbers are 2⁻⁸ apart; a device's exponentials are its own.
    apart = 0.0 if device_name == "cpu" else 2.0**-8 if dtype == dtypes.BFLOAT16 else 1e-15
    for here, wanted in zip(found, _run(typed), strict=True):
        assert here.dtype == wanted.dtype
        difference = here.astype(np.float64) - wanted.astype(np.float64)
        np.testing.assert_allclose(difference, 0, atol=apart)


def _stacked(op: str, steps: int | str, batch: int | str, *, hidden: int = 7) -> onnx.ModelProto:
    """Two layers between other operators, of open sizes where these are names."""
    rng = np.random.default_rng(13)
    nodes, constants, width, x = [], {}, 5, "scaled"
    constants["half"] = np.float32(0.5)
    constants["shape"] = np.array([0, 0, -1], np.int64)
    nodes.append(helper.make_node("Mul", ["x", "half"], ["scaled"]))
    for layer in range(2):
        case = recurrent_case(rng, op, steps=1, batch=1, size=width, hidden=hidden, direction="bidirectional")
        names = [x, *(f"{part}{layer}" for part in "WRB")]
        constants.update(zip(names[1:], case.inputs[1:4], strict=True))
        state = f"state{layer}"
        attributes = {"hidden_size": hidden, "direction": "bidirectional"}
        nodes.append(helper.make_node(op, names, [f"y{layer}", state], **attributes))
        nodes.append(helper.make_node("Relu", [state], [f"last{layer}"]))
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "shape"], [f"wide{layer}"]))
        nodes.append(helper.make_node("Add", [f"wide{layer}", "half"], [f"out{layer}"]))
        x, width = f"out{layer}", 2 * hidden
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in ("out1", "last0", "last1", "y1")
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, 5])]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "stacked", given, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", OPERATORS)
def test_layers_among_other_nodes_of_open_length(op: str, device_name: str) -> None:
    """What is fused round layers, read twice or an output; lengths and batches of one session."""
    rng = np.random.default_rng(14)
    model = _stacked(op, "steps", "batch").SerializeToString()
    other = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with vkml.InferenceSession(model, devices=device_name) as session:
        for steps, batch in ((3, 1), (5, 1), (4, 2), (9, 2), (9, 3), (3, 1), (1, 1)):
            feed = {"x": rng.standard_normal((steps, batch, 5)).astype(np.float32)}
            for found, wanted in zip(session.run(None, feed), other.run(None, feed), strict=True):
                assert_close(found, wanted, rtol=1e-4, atol=1e-5, what=f"{steps} steps, batch {batch}")
        assert not session.report().fallbacks
        assert open_plans(session), "no plan stayed open"
