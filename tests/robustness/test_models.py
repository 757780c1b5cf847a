"""Models that are wrong or cannot be run: an exception of the right class says what, where and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import vkml
from tests.robustness.models import BOOL, FLOAT, INT64, gather, model, node, product, unary, value
from vkml.ir import dtypes, static

LABEL = "the model given as bytes"


def opened(source: Any) -> vkml.InferenceSession:
    return vkml.InferenceSession(source, devices="cpu")


def refusal(kind: type[vkml.Error], source: Any, *words: str) -> str:
    """The message with which `source` is refused; it holds all `words`."""
    with pytest.raises(kind) as caught:
        opened(source)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    return text


# --- files --------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    text = refusal(vkml.NoSuchFile, tmp_path / "none.onnx", "no model file", "none.onnx", os.getcwd())
    assert "\n" not in text
    with pytest.raises(FileNotFoundError):
        opened(str(tmp_path / "none.onnx"))


def test_directory(tmp_path: Path) -> None:
    refusal(vkml.NoModel, tmp_path, str(tmp_path), "is a directory", "a file was expected")


@pytest.mark.parametrize("as_file", [True, False])
def test_empty(tmp_path: Path, as_file: bool) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    refusal(vkml.NoModel, path if as_file else b"", "is empty", "empty.onnx" if as_file else LABEL)


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "readme.onnx"
    path.write_text("This is no model at all.\n" * 20)
    refusal(vkml.InvalidProtobuf, path, "readme.onnx", "is a text file, not an ONNX model")


@pytest.mark.parametrize("source", [None, 3, ["model.onnx"], object()])
def test_no_source(source: Any) -> None:
    refusal(vkml.InvalidArgument, source, "a path or bytes", type(source).__name__)


def test_every_truncation() -> None:
    data = product()
    for length in range(len(data)):
        with pytest.raises(vkml.ModelError) as caught:
            opened(data[:length])
        assert LABEL in str(caught.value)


def test_special_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    refusal(vkml.NoModel, pipe, "not a regular file")
    refusal(vkml.NoModel, "/dev/zero", "not a regular file")


# --- graphs -------------------------------------------------------------------------------------------------

X, Y = [value("x", (2, 4))], [value("y", (2, 4))]


def test_cycle() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")]
    text = refusal(vkml.InvalidGraph, model([*nodes, node("Relu", ["b"], ["y"])], X, Y), "cycle", LABEL)
    assert "Add node 'first' → Relu node 'second'" in text or "Relu node 'second' → Add node 'first'" in text


def test_dangling_name() -> None:
    wrong = model([node("Add", ["x", "lost"], ["y"], "sum")], X, Y)
    refusal(vkml.InvalidGraph, wrong, "Add node 'sum'", "'lost'", "nothing in the model provides", LABEL)


def test_name_produced_twice() -> None:
    wrong = model([node("Relu", ["x"], ["y"], "one"), node("Neg", ["x"], ["y"], "two")], X, Y)
    refusal(vkml.InvalidGraph, wrong, "'y' is produced twice", "Relu node 'one'", "Neg node 'two'")


def test_name_of_an_input_produced() -> None:
    wrong = model([node("Relu", ["x"], ["x"], "one")], X, [value("x", (2, 4))])
    refusal(vkml.InvalidGraph, wrong, "Relu node 'one'", "'x'", "also an input")


def test_name_that_an_upgrade_makes() -> None:
    # Squeeze of opset 11 has its axes as an attribute; the constant that replaces it takes no name in use.
    nodes = [node("Squeeze", ["x"], ["y"], "old", axes=[0]), node("Relu", ["x"], ["y/axes"], "other")]
    right = model(nodes, [value("x", (1, 4))], [value("y", (4,)), value("y/axes", (1, 4))], opset=11)
    array = np.array([[-1, 2, -3, 4]], np.float32)
    squeezed, other = opened(right).run(None, {"x": array})
    np.testing.assert_array_equal(squeezed, array[0])
    np.testing.assert_array_equal(other, np.maximum(array, 0))


def test_no_output() -> None:
    refusal(vkml.InvalidGraph, model([node("Relu", ["x"], ["y"])], X, []), "no outputs")
    refusal(vkml.InvalidGraph, model([node("Relu", ["x"], ["q"])], X, Y), "no node produces the output 'y'")


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["x"], ["y"], ("Add node 'it'", "takes 2 inputs, has 1")),
        (["x", "x", "x"], ["y"], ("Add node 'it'", "takes 2 inputs, has 3")),
        (["x", "x"], ["y", "z"], ("Add node 'it'", "takes 1 output, has 2")),
    ],
)
def test_counts(inputs: list[str], outputs: list[str], words: tuple[str, ...]) -> None:
    refusal(vkml.InvalidGraph, model([node("Add", inputs, outputs, "it")], X, Y), *words)


def test_types_that_do_not_fit() -> None:
    wrong = model([node("Shape", ["x"], ["s"]), node("Add", ["x", "s"], ["y"], "sum")], X, Y)
    refusal(vkml.InvalidGraph, wrong, "Add node 'sum'", "float, int64", "must be the same", LABEL)


def test_shapes_that_do_not_fit() -> None:
    wrong = model([node("MatMul", ["x", "w"], ["y"], "product")], X, Y, {"w": np.ones((3, 4), np.float32)})
    refusal(vkml.ShapeError, wrong, "MatMul node 'product'", "[2, 4]", "[3, 4]", LABEL)


def test_outputs_stated_otherwise() -> None:
    wrong = model([node("Cast", ["x"], ["y"], to=INT64)], X, Y)
    refusal(vkml.InvalidGraph, wrong, "output 'y'", "stated to be float", "computes to int64")


@pytest.mark.parametrize(
    ("op", "attributes", "shape"), [("Transpose", {}, (4, 2)), ("ReduceSum", {"keepdims": 0}, ())]
)
def test_output_shapes_stated_otherwise(
    device_name: str,
    op: str,
    attributes: dict[str, int],
    shape: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Exporters leave stale shapes behind: they are warned of, once, as in ONNX Runtime."""
    stale = model([node(op, ["x"], ["y"], **attributes)], X, Y)
    with vkml.InferenceSession(stale, devices=device_name) as session:
        for _ in range(2):
            [found] = session.run(None, {"x": np.ones((2, 4), np.float32)})
            assert found.shape == shape
    [warning] = [record.getMessage() for record in caplog.records if "is stated to be" in record.getMessage()]
    assert "output 'y' is stated to be float[2,4]" in warning.replace("the ", "")
    assert f"computes to {static(dtypes.FLOAT32, shape)}" in warning
    caplog.clear()
    with vkml.InferenceSession(stale, vkml.SessionOptions(log_severity_level=3), devices=device_name):
        assert not caplog.records


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ((2**40, 2**40), vkml.ShapeError, ("Relu node 'it'", "bytes")),
        ((2**62, 2**62, 0), vkml.ShapeError, ("Relu node 'it'", "bytes")),
        ((-5,), vkml.InvalidGraph, ("input 'x'", "-5")),
        ((2**37,), vkml.OutOfMemory, ("cpu", "Relu node 'it'", "512.0 GiB", "free")),
    ],
)
def test_huge_sizes(shape: tuple[int, ...], kind: type[vkml.Error], words: tuple[str, ...]) -> None:
    refusal(kind, unary(shape=shape, out=None), *words)


def test_tensor_without_its_data() -> None:
    proto = onnx.load_from_string(product())
    proto.graph.initializer[0].dims[0] = 2**60
    refusal(vkml.InvalidGraph, proto.SerializeToString(), "initializer 'w'")


@pytest.mark.parametrize("code", [0, 99, -1])
def test_undefined_element_type(code: int) -> None:
    refusal(vkml.InvalidGraph, model([node("Relu", ["x"], ["y"])], [value("x", (2,), code)], Y), "input 'x'")


def test_inputs_that_are_no_tensors() -> None:
    tensor = helper.make_tensor_type_proto(FLOAT, (2,))
    map_type = helper.make_map_type_proto(INT64, tensor)
    for kind, word in (
        (map_type, "computes to map(int64, float)"),
        (helper.make_sequence_type_proto(map_type), "computes to sequence(map(int64, float))"),
        (helper.make_optional_type_proto(map_type), "computes to optional(map(int64, float))"),
    ):
        wrong = model([node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], Y)
        refusal(vkml.InvalidGraph, wrong, "the output 'y'", word)
    for kind, word in (
        (helper.make_sequence_type_proto(tensor), "sequence(float[2])"),
        (helper.make_optional_type_proto(tensor), "optional(float[2])"),
    ):
        wrong = model([node("Neg", ["x"], ["y"])], [helper.make_value_info("x", kind)], Y)
        refusal(vkml.InvalidGraph, wrong, "Neg node 'y': its input 'x' must be a tensor", word)


# --- operators ----------------------------------------------------------------------------------------------


def unknown_operators() -> bytes:
    body = helper.make_graph([node("Inner", ["x"], ["o"], "deep")], "body", [], [value("o", (2, 4))])
    return model(
        [
            node("Zap", ["x"], ["a"], "zap1"),
            node("Zap", ["a"], ["b"]),
            node("Relu", ["b"], ["r"]),
            helper.make_node("Gelu", ["r"], ["c"], domain="com.example"),
            helper.make_node("Fused", ["c"], ["d"], domain="vkml", body=body),
            node("If", ["flag"], ["e"], "branch", then_branch=body, else_branch=body),
            node("Scan", ["e"], ["y"], num_scan_inputs=1, body=body),
        ],
        [*X, value("flag", (), BOOL)],
        Y,
        opset=19,
        domains={"com.example": 3, "vkml": 1},
    )


def check_report(text: str) -> None:
    for line in (
        "ai.onnx.Zap (opset 19): 2 nodes, first 'zap1'",
        "com.example.Gelu (opset 3): 1 node, first 'c'",
        "vkml.Fused (opset 1): 1 node, first 'd'",
        "ai.onnx.Inner (opset 19): 4 nodes, first 'deep'",
    ):
        assert line in text, text
    assert re.search(r"uses \d operators that vkml does not support", text)
    assert "Relu" not in text


def test_all_unknown_operators_in_one_report() -> None:
    check_report(refusal(vkml.UnsupportedOperator, unknown_operators(), LABEL))


def test_unknown_operators_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from vkml.cli import main

    path = tmp_path / "strange.onnx"
    path.write_bytes(unknown_operators())
    for words in (["run", str(path), "--random"], ["bench", str(path)], ["inspect", "--plan", str(path)]):
        with pytest.raises(SystemExit) as ending:
            main([*words, "--device", "cpu"])
        out, error = capfd.readouterr()
        assert ending.value.code == 1
        assert "Traceback" not in error and "internal error" not in error
        if words[0] != "inspect":  # which lists operators itself
            check_report(out + error)
            assert "strange.onnx" in error


def test_domain_that_is_not_imported() -> None:
    wrong = model([helper.make_node("Gelu", ["x"], ["y"], "g", domain="com.example")], X, Y)
    refusal(vkml.InvalidGraph, wrong, "Gelu node 'g'", "'com.example'", "not imported", "['ai.onnx']")


def test_no_opset() -> None:
    proto = onnx.load_from_string(product())
    del proto.opset_import[:]
    refusal(vkml.InvalidGraph, proto.SerializeToString(), "imports no opset", "ai.onnx")


# --- attributes ---------------------------------------------------------------------------------------------

WRONG_ATTRIBUTES = [
    ("Softmax", {"axis": "last"}, "'axis'", "an integer", "a string, 'last'"),
    ("Softmax", {"axis": 1.5}, "'axis'", "an integer", "a float, 1.5"),
    ("Softmax", {"axis": 1.0}, "'axis'", "an integer", "a float, 1.0"),
    ("Softmax", {"axis": [1]}, "'axis'", "an integer", "a list of integers, (1,)"),
    ("Softmax", {"is_flattened": 1}, "'is_flattened'", "not one of Softmax's", ""),
    ("LeakyRelu", {"alpha": "a"}, "'alpha'", "a float", "a string, 'a'"),
    ("LeakyRelu", {"alpha": [0.5]}, "'alpha'", "a float", "a list of floats"),
    ("LeakyRelu", {"alpha": 2**53 + 1}, "'alpha'", "a float", "an integer"),
    ("Transpose", {"perm": 1}, "'perm'", "a list of integers", "an integer, 1"),
    ("Transpose", {"perm": [1.0, 0.0]}, "'perm'", "a list of integers", "a list of floats"),
    ("Transpose", {"perm": ["a", "b"]}, "'perm'", "a list of integers", "a list of strings"),
    ("Cast", {"to": "float"}, "'to'", "an integer", "a string, 'float'"),
    ("Cast", {"to": 99}, "element type 99", "not one that ONNX defines", ""),
    ("Cast", {"to": FLOAT, "source": 3}, "'source'", "not one of Cast's", ""),
    ("Cast", {}, "'to'", "is missing", "no default"),
    ("Gelu", {"approximate": 3}, "'approximate'", "a string", "an integer, 3"),
    ("Relu", {"slope": 1.0}, "'slope'", "not one of Relu's", "takes none"),
    ("ConstantOfShape", {"value": 3}, "'value'", "a tensor", "an integer, 3"),
    ("Trilu", {"upper": [1] * 99}, "'upper'", "an integer", "…"),
]


@pytest.mark.parametrize(("op", "attributes", "first", "second", "third"), WRONG_ATTRIBUTES)
def test_wrong_attributes(op: str, attributes: dict[str, Any], first: str, second: str, third: str) -> None:
    text = refusal(
        vkml.InvalidGraph, unary(op, out=None, **attributes), f"{op} node 'it'", first, second, third
    )
    assert LABEL in text and len(text) < 300


@pytest.mark.parametrize(
    ("op", "opset", "attributes"),
    [
        ("Pad", 2, {"pads": "abc"}),
        ("Pad", 2, {"pads": [0.5] * 4}),
        ("Softmax", 1, {"axis": "last"}),
        ("Softmax", 11, {"axis": [1]}),
        ("Squeeze", 11, {"axes": 1.5}),
        ("Cast", 1, {"to": "NOTHING"}),
        ("Clip", 6, {"min": "low"}),
        ("TopK", 1, {"k": "five"}),
        ("Upsample", 7, {"scales": "big"}),
    ],
)
def test_wrong_attributes_of_old_opsets(op: str, opset: int, attributes: dict[str, Any]) -> None:
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    wrong = model([node(op, ["x"], outputs, "it", **attributes)], X, [value("y", None)], opset=opset)
    refusal(vkml.InvalidGraph, wrong, f"{op} node 'it'")


def test_integers_stand_for_floats() -> None:
    with opened(unary("LeakyRelu", alpha=2)) as session:
        (y,) = session.run(None, {"x": np.full((2, 4), -1, np.float32)})
    np.testing.assert_array_equal(y, np.full((2, 4), -2, np.float32))


@pytest.mark.parametrize(
    "attributes", [{}, {"value_int": 3, "value_float": 3.0}, {"value": "abc"}, {"value_ints": 3}]
)
def test_wrong_constants(attributes: dict[str, Any]) -> None:
    nodes = [node("Constant", [], ["c"], "const", **attributes), node("Add", ["x", "c"], ["y"])]
    refusal(vkml.InvalidGraph, model(nodes, X, Y), "Constant node 'const'", "attribute")


# --- constant folding ---------------------------------------------------------------------------------------


def test_index_of_constants_out_of_range() -> None:
    constants = {"c": np.arange(3, dtype=np.float32), "i": np.array([7])}
    wrong = model(
        [node("Gather", ["c", "i"], ["g"], "pick"), node("Add", ["x", "g"], ["y"])], X, Y, constants
    )
    with pytest.raises(vkml.Error) as caught:
        opened(wrong)
    assert "Gather node 'pick'" in str(caught.value) and "index 7" in str(caught.value)


def test_hostile_shapes_of_constants() -> None:
    constants = {"huge": np.array([2**40, 2**40]), "big": np.array([2**18, 2**20])}
    for name, kind in (("huge", vkml.ShapeError), ("big", vkml.OutOfMemory)):
        nodes = [node("Expand", ["x", name], ["e"], "wide"), node("Relu", ["e"], ["y"])]
        wrong = model(nodes, [value("x", (1,))], [value("y", None)], constants)
        refusal(kind, wrong, "Expand node 'wide'")


# --- external data ------------------------------------------------------------------------------------------


def with_external(folder: Path, location: str, length: int = 48, offset: int = 0) -> Path:
    proto = onnx.load_from_string(product())
    tensor = proto.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, item in {"location": location, "offset": str(offset), "length": str(length)}.items():
        tensor.external_data.add(key=key, value=item)
    (folder / "model").mkdir(exist_ok=True)
    (folder / "secret.bin").write_bytes(data)
    (folder / "model" / "weights.bin").write_bytes(data)
    path = folder / "model" / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    with opened(with_external(tmp_path, "weights.bin")) as session:
        (y,) = session.run(None, {"x": np.ones((1, 4), np.float32)})
    np.testing.assert_array_equal(y, [[-2, 2, 6]])


@pytest.mark.parametrize(
    "location", ["{folder}/secret.bin", "../secret.bin", "a/../../secret.bin", "/etc/passwd"]
)
def test_external_data_outside(tmp_path: Path, location: str) -> None:
    where = location.format(folder=tmp_path)
    path = with_external(tmp_path, where)
    refusal(vkml.InvalidGraph, path, "'w'", repr(where), "refused", "inside the model's folder", "model.onnx")


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    path = with_external(tmp_path, "link.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    refusal(vkml.InvalidGraph, path, "'w'", "'link.bin'", "leads out of the model's folder")


def test_missing_external_data(tmp_path: Path) -> None:
    path = with_external(tmp_path, "gone.bin")
    refusal(vkml.NoSuchFile, path, "'w'", "'gone.bin'", str(tmp_path / "model"), "belongs beside the model")


@pytest.mark.parametrize(("offset", "length"), [(0, 4096), (2**62, 48), (40, 48), (0, 2**63 - 1), (0, 4)])
def test_external_data_out_of_its_file(tmp_path: Path, offset: int, length: int) -> None:
    refusal(vkml.InvalidGraph, with_external(tmp_path, "weights.bin", length, offset), "'w'", "model.onnx")


def test_external_data_of_bytes(tmp_path: Path) -> None:
    data = with_external(tmp_path, "weights.bin").read_bytes()
    refusal(vkml.InvalidArgument, data, "'w'", "weights.bin", "open the model by its path")


# --- what a device cannot do --------------------------------------------------------------------------------


def test_strict_names_every_node(vulkan_device_name: str) -> None:
    texts = model(
        [node("Identity", ["x"], ["y"], "one"), node("Identity", ["x"], ["z"], "two")],
        [value("x", (2,), onnx.TensorProto.STRING)],
        [value("y", (2,), onnx.TensorProto.STRING), value("z", (2,), onnx.TensorProto.STRING)],
    )
    with pytest.raises(vkml.NotImplemented) as caught:
        vkml.InferenceSession(texts, devices=vulkan_device_name, strict=True)
    for word in ("strict", "Identity node 'one'", "Identity node 'two'", "string"):
        assert word in str(caught.value)
    with vkml.InferenceSession(texts, devices=vulkan_device_name) as session:
        assert session.run(None, {"x": np.array(["a", "b"])})[0].tolist() == ["a", "b"]


def test_index_out_of_range(device_name: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with vkml.InferenceSession(gather(), devices=device_name) as session:
        for wrong in (2, 5, -3, 2**31, 2**32, 2**40, -(2**62)):
            for index in ([wrong], [0, wrong, 1]):
                with pytest.raises(vkml.IndexOutOfRange) as caught:
                    session.run(None, {"x": x, "i": np.array(index)})
                assert "Gather node 'pick'" in str(caught.value) and isinstance(caught.value, IndexError)
                (y,) = session.run(None, {"x": x, "i": np.arange(len(index)) % 2})
                np.testing.assert_array_equal(y, x[np.arange(len(index)) % 2])
        (y,) = session.run(None, {"x": x, "i": np.array([-1, 0, -2])})
        np.testing.assert_array_equal(y, x[[-1, 0, -2]])
