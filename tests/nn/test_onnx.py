"""Models of ONNX that learn."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml
from tests.control_models import model
from vkml import nn
from vkml.errors import CaptureError, InvalidArgument

Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network() -> bytes:
    """Convolution, normalisation, resampling, flattening by computed sizes, product."""
    weights = {
        "features.0.weight": normal(1, 4, 2, 3, 3), "features.0.bias": normal(2, 4),
        "features.1.weight": normal(3, 4), "features.1.bias": normal(4, 4),
        "features.1.mean": normal(5, 4), "features.1.var": np.abs(normal(6, 4)) + 0.5,
        "scales": np.array([1, 1, 2, 2], np.float32), "minus one": np.array([-1]), "first": np.array([0]),
        "classifier/weight": normal(7, 144, 3) * np.float32(0.1), "float": normal(8, 3),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "features.0.weight", "features.0.bias"], ["c"]),
        helper.make_node(
            "BatchNormalization",
            ["c", "features.1.weight", "features.1.bias", "features.1.mean", "features.1.var"],
            ["b"],
        ),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Resize", ["r", "", "scales"], ["u"], mode="nearest"),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Concat", ["n", "minus one"], ["flat"], axis=0),
        helper.make_node("Reshape", ["u", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "classifier/weight", "float"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def test_names_of_parameters_and_buffers() -> None:
    found = nn.from_onnx(network())
    assert [name for name, _ in found.named_parameters()] == [
        "classifier/weight", "float_", "features.0.weight", "features.0.bias", "features.1.weight",
        "features.1.bias",
    ]  # fmt: skip
    assert [name for name, _ in found.named_buffers()] == ["features.1.mean", "features.1.var"]
    assert found.input_names == ("x",) and found.output_names == ("y",)


def test_values_and_gradients_against_torch(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    source = network()
    found = nn.from_onnx(source).to(device_name)
    x = normal(0, 3, 2, 5, 5)
    right = {name: torch.tensor(value.cpu().numpy()) for name, value in found.state_dict().items()}
    names = [name for name, _ in found.named_parameters()]
    for name in names:
        right[name].requires_grad_()
    their_x = torch.tensor(x, requires_grad=True)
    c = f.conv2d(their_x, right["features.0.weight"], right["features.0.bias"])
    one = "features.1."
    b = f.batch_norm(c, right[one + "mean"], right[one + "var"], right[one + "weight"], right[one + "bias"])
    u = f.interpolate(b.relu(), scale_factor=2)
    expected = u.reshape(3, -1) @ right["classifier/weight"] + right["float_"]
    (expected**2).sum().backward()
    mine = vkml.tensor(x, device=device_name, requires_grad=True)
    made = found(mine)
    (made**2).sum().backward()
    np.testing.assert_allclose(made.detach().numpy(), expected.detach().numpy(), rtol=1e-3, atol=1e-3)
    assert mine.grad is not None
    np.testing.assert_allclose(mine.grad.numpy(), their_x.grad.numpy(), rtol=1e-3, atol=1e-4)
    for name, value in found.named_parameters():
        grad = right[name].grad.numpy()
        assert value.grad is not None
        np.testing.assert_allclose(value.grad.numpy(), grad, rtol=1e-3, atol=1e-4 * np.abs(grad).max())
    session = vkml.InferenceSession(source)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], made.detach().numpy(), rtol=1e-3, atol=1e-3)


def test_it_learns_in_captured_steps(device_name: str) -> None:
    found = nn.from_onnx(network()).to(device_name)
    optimizer = vkml.optim.Adam(found.parameters(), lr=0.01)
    classes = vkml.tensor(np.arange(6) % 3, device=device_name)

    @vkml.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(found(x), classes)
        loss.backward()
        optimizer.step()
        return loss

    x = vkml.tensor(normal(0, 6, 2, 5, 5), device=device_name)
    losses = [step(x).item() for _ in range(12)]
    assert losses[-1] < 0.3 * losses[0]


LOOP = """
agraph (float[2,3] x, bool c) => (float[2,3] y)
<float[3,3] w = {0.1, 0.2, 0.3, -0.1, 0.4, 0.2, 0.3, 0.1, -0.2}, float[3] v = {0.5, -0.5, 1.0}>
{
    n = Constant <value = int64 {3}> ()
    h = Loop (n, "", x) <
        body = b (int64 i, bool goes, float[2,3] a) => (bool on, float[2,3] made) {
            on = Constant <value = bool {1}> ()
            p = MatMul (a, w)
            made = Tanh (p)
        }
    >
    y = If (c) <
        then_branch = t () => (float[2,3] t1) { t1 = Mul (h, v) },
        else_branch = e () => (float[2,3] e1) { e1 = Add (h, v) }
    >
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_parameters_that_bodies_read(condition: bool, device_name: str) -> None:
    found = nn.from_onnx(model(LOOP)).to(device_name)
    x = normal(3, 2, 3)
    made = found(vkml.tensor(x, device=device_name), vkml.tensor(condition))
    made.sum().backward()
    parameters = dict(found.named_parameters())
    w, v = (parameters[name].detach().numpy().astype(np.float64) for name in ("w", "v"))

    def total(w: Array, v: Array) -> float:
        h = x.astype(np.float64)
        for _ in range(3):
            h = np.tanh(h @ w)
        return float((h * v if condition else h + v).sum())

    for name, at in (("w", (1, 2)), ("v", (0,))):
        moved = []
        for sign in (1, -1):
            each = {"w": w.copy(), "v": v.copy()}
            each[name][at] += sign * 1e-5
            moved.append(total(**each))
        grad = parameters[name].grad
        assert grad is not None
        assert grad.numpy()[at] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-3, abs=1e-4)


def test_branches_that_a_capture_does_not_know() -> None:
    found = nn.from_onnx(model(LOOP))
    step = vkml.jit(lambda x, c: found(x, c).detach())
    arguments = vkml.tensor(normal(3, 2, 3)), vkml.tensor(True)
    step(*arguments)
    with pytest.raises(CaptureError, match="branches"):
        step(*arguments)


def test_copies_and_wrong_arguments() -> None:
    found = nn.from_onnx(network())
    other = deepcopy(found)
    x = vkml.tensor(normal(0, 1, 2, 5, 5))
    expected = found(x).detach().numpy()
    with vkml.no_grad():
        found.get_parameter("features.0.weight").zero_()
    np.testing.assert_array_equal(other(x).detach().numpy(), expected)
    for arguments, named in (
        ((), {}),
        ((x, x), {}),
        ((x,), {"x": x}),
        ((x,), {"z": x}),
        ((x[0],), {}),
        ((x.double(),), {}),
    ):
        with pytest.raises(InvalidArgument):
            found(*arguments, **named)
    assert found(x=x.detach().numpy()).shape == (1, 3)
