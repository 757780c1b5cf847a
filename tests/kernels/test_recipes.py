"""Pointwise kernels are kept and used again: for all that is equal in what a kernel depends on, no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.ops  # fills the registry
from tests.robustness.processes import output_of
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes
from vkml.kernels.pointwise import pointwise
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]


def tensor(elements: int, offset: int = 0) -> View:
    type_ = TensorType(dtypes.FLOAT32, (elements,))
    return contiguous(Buffer(BufferKind.ACTIVATION, 4 * (elements + offset)), type_, offset)


def launch(
    op: str, *leaves: View, output: View | None = None, number: float | None = None, **attributes: Any
) -> Dispatch:
    """Launches a node of leaves, of a number behind them where one is given."""
    names = [f"{op}{at}" for at in range(len(leaves))]
    types = {name: leaf.type for name, leaf in zip(names, leaves, strict=True)} | {"y": leaves[0].type}
    constants = {} if number is None else {"number": Constant(dtypes.FLOAT32, (), np.array(number, "f4"))}
    node = Node(op, (*names, *constants), ("y",), attributes)
    inputs = tuple(Value(n, types[n]) for n in names)
    body = Graph(inputs, (Value("y", types["y"]),), (node,), constants, types)
    return pointwise(body, leaves, [output or tensor(leaves[0].elements)], label="it", push_limit=128)


def test_equal_launches_share_their_kernel() -> None:
    one, two = tensor(64), tensor(64)
    first, second = launch("Add", one, two), launch("Add", two, one)
    assert first.kernel is second.kernel
    assert [view.buffer for view in first.reads] == [one.buffer, two.buffer]
    assert [view.buffer for view in second.reads] == [two.buffer, one.buffer]
    assert [view.buffer for view in second.arguments[:2]] == [two.buffer, one.buffer]  # type: ignore[union-attr]
    assert second.arguments[2] is second.writes[0]


def test_words_stay_behind_the_addresses() -> None:
    """Zeros reach arithmetic as push constants."""
    first, second = (launch("Add", tensor(64), number=0.0) for _ in range(2))
    assert first.kernel is second.kernel
    for dispatch in (first, second):
        assert dispatch.arguments == (*dispatch.reads, *dispatch.writes, 0)
    assert launch("Add", tensor(64), number=-0.0).kernel is not first.kernel


def test_whatever_a_kernel_depends_on_tells_launches_apart() -> None:
    base = tensor(64)
    kernels = [
        launch("Add", base, tensor(64)).kernel,
        launch("Add", base, base).kernel,
        launch("Sub", base, tensor(64)).kernel,
        launch("Add", tensor(128), tensor(128)).kernel,
        launch("Add", base, tensor(64, offset=1)).kernel,
        launch("Add", base, tensor(64, offset=2)).kernel,
        launch("Add", base, tensor(1).expand((64,))).kernel,
        launch("LeakyRelu", base, alpha=0.0).kernel,
        launch("LeakyRelu", base, alpha=-0.0).kernel,
        launch("LeakyRelu", base, alpha=1.0).kernel,
    ]
    assert len({(kernel.source, kernel.constants) for kernel in kernels}) == len(kernels)


def test_models_of_like_kernels_compute_their_own(device_name: str) -> None:
    x = np.linspace(1, 3, 24, dtype=np.float32)
    for number in (0.0, -0.0, 2.0, np.inf):
        for start in (0, 1, 4):
            sketch = Sketch("like")
            part = sketch.node(
                "Slice",
                sketch.input("x", (24,)),
                *(sketch.constant(np.array([at])) for at in (start, start + 16)),
            )
            model = save_graph(sketch.finish(sketch.node("Mul", part, sketch.constant(np.float32(number)))))
            with vkml.InferenceSession(model, devices=device_name) as session:
                [found] = session.run(None, {"x": x})
            wanted = x[start : start + 16] * np.float32(number)
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("op", ["Sum", "Max"])
def test_a_node_of_very_many_inputs_does_not_end_the_compiler(vulkan_device_name: str, op: str) -> None:
    """In a process of its own: 16,000 terms of one expression overran the compiler's stack."""
    code = f"""
        import numpy as np, vkml
        from vkml.engine.sketch import Sketch
        from vkml.onnx import save_graph
        sketch = Sketch("deep")
        x = sketch.input("x", (4,))
        model = save_graph(sketch.finish(sketch.node({op!r}, *[x] * 16000)))
        options = vkml.SessionOptions(log_severity_level=4)
        import logging; logging.getLogger("vkml").setLevel(logging.ERROR)
        with vkml.InferenceSession(model, options, devices={vulkan_device_name!r}) as session:
            print(session.run(None, {{"x": np.ones(4, np.float32)}})[0].tolist())
    """
    assert output_of(code).strip() == str([16000.0 if op == "Sum" else 1.0] * 4)
