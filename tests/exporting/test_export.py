"""`vkml.onnx.export`: names, arguments, results, modes, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime  # before any device is used
import pytest

import vkml
from tests.exporting.checking import checked, close, flat, reference, session_of
from tests.exporting.layers import normal, places
from vkml import nn
from vkml.errors import CaptureError, InvalidArgument, UnsupportedOperator


class Network(nn.Module):
    """Convolution, normalisation, dropout, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2)
        )
        self.classifier = nn.Linear(6 * 4 * 4, 10)

    def forward(self, image: Any) -> Any:
        return self.classifier(self.features(image).flatten(1))


def network() -> Network:
    vkml.manual_seed(1)
    made = Network()
    made.train()
    made(vkml.tensor(normal(5, 3, 8, 8)))  # running statistics that are not those of the beginning
    return made


def test_names() -> None:
    made = vkml.onnx.export(network(), (normal(2, 3, 8, 8),))
    assert made is not None
    graph = checked(made).graph
    assert [value.name for value in graph.input] == ["image"]
    assert [value.name for value in graph.output] == ["output"]
    stated = [tensor.name for tensor in graph.initializer]
    kept = [key for key in network().state_dict() if "num_batches" not in key]
    assert sorted(stated) == sorted(kept)
    assert [node.name for node in graph.node if node.op_type != "Constant"] == [
        "/features/0/Conv", "/features/1/BatchNormalization", "/features/2/Relu", "/features/4/MaxPool",
        "/Reshape", "/classifier/Gemm",
    ]  # fmt: skip
    assert graph.name == "Network"


def test_the_module_is_as_it_was() -> None:
    module = network()
    module.features[3].eval()
    before = {key: value.numpy() for key, value in module.state_dict().items()}
    modes = [inner.training for inner in module.modules()]
    made = vkml.onnx.export(module, (normal(2, 3, 8, 8),))
    assert [inner.training for inner in module.modules()] == modes
    for key, value in module.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key], err_msg=key)
    assert not module._pre_hooks and not module.features[0]._hooks
    assert made is not None and "Dropout" not in {node.op_type for node in checked(made).graph.node}


def test_values_on_devices(device_name: str) -> None:
    module = network().to(device_name).eval()
    x = normal(2, 3, 8, 8)
    wanted = flat(module(vkml.tensor(x, device=device_name)))
    for argument in (x, vkml.tensor(x, device=device_name)):
        made = vkml.onnx.export(module, (argument,))
        assert made is not None
        checked(made)
        close(reference(made, {"image": x}), wanted, "onnxruntime", 1e-3)
        close(session_of(made, device_name).run(None, {"image": x}), wanted, "a session", 1e-3)


def test_in_training_statistics_are_the_batch_s() -> None:
    module = nn.BatchNorm1d(4)
    x = normal(6, 4) + 3
    made = vkml.onnx.export(module, (x,), training=vkml.onnx.TrainingMode.TRAINING)
    assert made is not None
    close(reference(made, {"input": x}), [(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)], "onnxruntime")
    assert float(module.running_mean.abs().sum()) == 0


def test_a_gradient_of_a_normalisation() -> None:
    """Mean and variance are an operator of vkml's own."""
    slope = vkml.func.grad(lambda x: (vkml.nn.functional.layer_norm(x, (5,)) ** 3).sum())
    x = normal(4, 5)
    made = vkml.onnx.export(slope, (x,))
    assert made is not None
    close(reference(made, {"x": x}), [slope(vkml.tensor(x)).numpy()], "onnxruntime")


def test_random_numbers_are_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with pytest.raises(UnsupportedOperator, match=r"vkml\.Philox: .*random numbers are drawn"):
        vkml.onnx.export(module, (normal(2, 3),), training=vkml.onnx.TrainingMode.TRAINING)
    state = vkml.get_rng_state()
    with pytest.raises(UnsupportedOperator):
        vkml.onnx.export(lambda x: x + vkml.randn(3), (normal(2, 3),))
    np.testing.assert_array_equal(vkml.get_rng_state().numpy(), state.numpy())


def test_all_that_onnx_lacks_is_named() -> None:
    def function(x: Any) -> Any:
        return vkml.linalg.inv(x) + vkml.linalg.cholesky(x)

    with pytest.raises(UnsupportedOperator) as found:
        vkml.onnx.export(function, (np.eye(3, dtype=np.float32),))
    assert "vkml.Inverse" in str(found.value) and "vkml.Cholesky" in str(found.value)


@pytest.mark.parametrize("way", ["branch", "loop", "index", "size"])
def test_what_hangs_on_elements_is_refused(way: str) -> None:
    def function(x: Any) -> Any:
        if way == "branch":
            return x if x.sum() > 0 else -x
        if way == "loop":
            return [x for _ in range(int(x[0, 0]))]
        if way == "index":
            return x[:, int(x.argmax())]
        return x[x > 0]

    with pytest.raises(CaptureError, match=r"elements of a tensor.*no branch, loop or size"):
        vkml.onnx.export(function, (normal(2, 3),))


class Pair(NamedTuple):
    """Two tensors."""

    first: Any
    second: Any


def test_nested_arguments_and_results() -> None:
    def function(x: Any, pair: Any, *, scale: float, mask: Any = None, extra: Any = None) -> Any:
        found = x * scale + pair["a"] @ pair["b"][0]
        return {"sum": found, "parts": (found.relu(), None, [found * 2]), "pair": Pair(x, mask)}

    x, a, b, mask = normal(2, 3), normal(2, 4), normal(4, 3), np.array([True, False])
    made = vkml.onnx.export(
        function, (x, {"a": a, "b": [b]}), kwargs={"mask": vkml.tensor(mask), "scale": 2.0}
    )
    assert made is not None
    graph = checked(made).graph
    feeds = {"x": x, "pair_a": a, "pair_b_0": b, "mask": mask}
    assert [value.name for value in graph.input] == list(feeds)
    names = [value.name for value in graph.output]
    assert names == ["sum", "parts_0", "parts_2_0", "pair_first", "pair_second"]
    total = x * 2 + a @ b
    wanted = [total, np.maximum(total, 0), total * 2, x, mask]
    close(reference(made, feeds), wanted, "onnxruntime")
    close(session_of(made).run(None, feeds), wanted, "a session")
    renamed = vkml.onnx.export(
        function, (x, {"a": a, "b": [b]}), kwargs={"scale": 2.0},
        input_names=["left", "right"], output_names=["y"],
    )  # fmt: skip
    assert renamed is not None
    graph = checked(renamed).graph
    assert [value.name for value in graph.input] == ["left", "right", "pair_b_0"]
    assert [value.name for value in graph.output][:2] == ["y", "parts_0"]


def test_outputs_that_are_not_computed() -> None:
    weight = vkml.tensor([1.0, 2.0])

    def function(x: Any, unused: Any) -> Any:
        y = x + 1
        return x, weight, vkml.tensor([3.0]), y, y, x.reshape(2, 3).reshape(3, 2)

    x = normal(3, 2)
    made = vkml.onnx.export(function, (x, x))
    assert made is not None
    checked(made)
    wanted = [x, np.array([1, 2], np.float32), np.array([3], np.float32), x + 1, x + 1, x]
    close(reference(made, {"x": x, "unused": x}), wanted, "onnxruntime")


@pytest.mark.parametrize("value", [3, "text", 2.5, object()])
def test_results_that_are_no_tensors_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="outputs of a model are tensors"):
        vkml.onnx.export(lambda x: (x, value), (normal(2),))
    with pytest.raises(InvalidArgument, match="no tensor"):
        vkml.onnx.export(lambda x: None, (normal(2),))


def test_captured_functions_and_methods() -> None:
    module = network().eval()
    x = normal(2, 3, 8, 8)
    wanted = flat(module(vkml.tensor(x)))
    captured = vkml.jit(module)
    captured(x)
    for function in (captured, module.forward, vkml.jit(module.forward), lambda image: module(image)):
        made = vkml.onnx.export(function, (x,), input_names=["image"])
        assert made is not None
        close(reference(made, {"image": x}), wanted, "onnxruntime", 1e-3)
    compiled = network().eval()
    compiled.compile()
    made = vkml.onnx.export(compiled, (x,))
    assert made is not None
    stated = {tensor.name for tensor in checked(made).graph.initializer}
    assert "classifier.weight" in stated


def test_shared_parameters_are_stated_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.embedding(tokens))

    module, tokens = Tied(), places(7, 2, 3)
    made = vkml.onnx.export(module, (tokens,))
    assert made is not None
    assert [tensor.name for tensor in checked(made).graph.initializer] == ["embedding.weight"]
    close(reference(made, {"tokens": tokens}), flat(module(vkml.tensor(tokens))), "onnxruntime")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_element_types(dtype: str, device_name: str) -> None:
    kind = getattr(vkml, dtype)
    vkml.manual_seed(2)
    module = nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(24, 5), nn.LayerNorm(5), nn.Softplus()
    )
    module = module.to(device_name).to(kind)
    x = vkml.tensor(normal(2, 3, 8), device=device_name).to(kind)
    made = vkml.onnx.export(module, (x,))
    assert made is not None
    model = checked(made)
    wanted, feeds = flat(module(x)), {"x": x.cpu().numpy()}
    rtol = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-6}[dtype]
    close(session_of(made, device_name).run(None, feeds), wanted, "a session", rtol)
    if dtype == "float16":
        close(reference(made, feeds), wanted, "onnxruntime", rtol)
    assert model.opset_import[0].version >= (22 if dtype == "bfloat16" else 20)


@pytest.mark.parametrize("opset", [18, 21, 24])
def test_older_opsets(opset: int) -> None:
    module = nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.GELU(), nn.RMSNorm(5), nn.SiLU(), nn.Mish(),
        nn.Hardswish(), nn.GELU(approximate="tanh"), nn.CELU(), nn.AvgPool2d(2),
    )  # fmt: skip
    x = normal(2, 4, 6, 5)
    made = vkml.onnx.export(module, (x,), opset_version=opset)
    assert made is not None
    assert checked(made).opset_import[0].version == opset
    close(reference(made, {"x": x}), flat(module(vkml.tensor(x))), "onnxruntime", 1e-4)


def test_opsets_that_do_not_do() -> None:
    for wrong in (11, 17, 99):
        with pytest.raises(InvalidArgument, match="opset_version"):
            vkml.onnx.export(nn.ReLU(), (normal(2),), opset_version=wrong)
    grid = normal(1, 2, 2, 2)
    with pytest.raises(UnsupportedOperator, match=r"GridSample node '/GridSample' needs opset 20"):
        vkml.onnx.export(
            lambda x, g: nn.functional.grid_sample(x, g), (normal(1, 1, 3, 3), grid), opset_version=18
        )


def test_files(tmp_path: Path) -> None:
    module, x = network().eval(), normal(2, 3, 8, 8)
    path = tmp_path / "model.onnx"
    assert vkml.onnx.export(module, (x,), path) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
    whole = path.read_bytes()
    wanted = flat(module(vkml.tensor(x)))
    close(vkml.InferenceSession(path, devices=["cpu"]).run(None, {"image": x}), wanted, "a session")
    # What cannot be written leaves the file as it was.
    with pytest.raises(CaptureError):
        vkml.onnx.export(lambda x: x if x.sum() > 0 else -x, (x,), path)
    assert path.read_bytes() == whole
    vkml.onnx.export(module, (x,), str(path), external_data=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    onnx.checker.check_model(str(path), full_check=True)
    close(vkml.InferenceSession(path, devices=["cpu"]).run(None, {"image": x}), wanted, "a session")
    with pytest.raises(InvalidArgument, match="external"):
        vkml.onnx.export(module, (x,), external_data=True)


def test_there_and_back(device_name: str) -> None:
    module = network().eval()
    made = vkml.onnx.export(module, (normal(2, 3, 8, 8),))
    back = nn.from_onnx(made).to(device_name)
    kept = dict(module.named_parameters())
    assert set(dict(back.named_parameters())) == set(kept)
    x = normal(2, 3, 8, 8)
    ours = module(vkml.tensor(x))
    (ours**2).sum().backward()
    theirs = back(vkml.tensor(x, device=device_name))
    close(flat(theirs), flat(ours), "values", 1e-3)
    (theirs**2).sum().backward()
    for name, parameter in back.named_parameters():
        assert parameter.grad is not None and kept[name].grad is not None
        close([parameter.grad.cpu().numpy()], [kept[name].grad.numpy()], name, 1e-3)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="missing"):
        vkml.onnx.export(nn.Bilinear(2, 2, 2), (normal(2, 2),))
    with pytest.raises(InvalidArgument, match="input_names has 2 names"):
        vkml.onnx.export(nn.ReLU(), (normal(2),), input_names=["a", "b"])
    with pytest.raises(InvalidArgument, match="'a' is that of several"):
        vkml.onnx.export(lambda x, y: x + y, (normal(2), normal(2)), input_names=["a", "a"])
    with pytest.raises(InvalidArgument, match="an input and an output are called 'x'"):
        vkml.onnx.export(lambda x: -x, (normal(2),), output_names=["x"])
    with pytest.raises(InvalidArgument, match="a module or a function"):
        vkml.onnx.export(3, (normal(2),))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="call the module"):
        vkml.onnx.export(nn.LazyLinear(2), (normal(1, 2),))
    with pytest.raises(NotImplementedError, match="meta"):
        vkml.onnx.export(nn.Linear(2, 2, device="meta"), (normal(1, 2),))


def test_buffers_stay_buffers() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(vkml.ones(3))
            self.register_buffer("scale", vkml.tensor([1.0, 2.0, 3.0]))
            self.table = vkml.tensor(normal(200, 100))  # neither, and too large for a node

        def forward(self, x: Any) -> Any:
            return x * self.weight * self.scale * 0.5 + self.table.sum()

    back = nn.from_onnx(vkml.onnx.export(Scaled(), (normal(2, 3),)))
    assert [name for name, _ in back.named_parameters()] == ["weight"]
    assert {"scale"} < {name for name, _ in back.named_buffers()}
    x = normal(2, 3)
    close(flat(back(vkml.tensor(x))), flat(Scaled()(vkml.tensor(x))), "values")
    # Metadata of others says nothing.
    model = onnx.load_from_string(vkml.onnx.export(Scaled(), (x,)))
    for text in ("{", "3", "[3]"):
        model.metadata_props[0].value = text
        names = [name for name, _ in nn.from_onnx(model.SerializeToString()).named_parameters()]
        assert set(names) >= {"weight", "scale"}


def test_outputs_that_nobody_reads_are_there_where_onnx_wants_them(tmp_path: Path) -> None:
    path = tmp_path / "sorted.onnx"
    vkml.onnx.export(lambda x: x.sort(descending=True).values, (vkml.tensor(normal(3, 4)),), path)
    x = normal(3, 4)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_array_equal(found, -np.sort(-x))
    onnx.checker.check_model(onnx.load(path), full_check=True)
