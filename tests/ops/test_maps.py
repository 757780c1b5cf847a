"""Maps as inputs and outputs: dictionaries as onnxruntime takes and gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkml
from vkml.errors import InvalidArgument, RuntimeException

ML = "ai.onnx.ml"
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def map_type(key: int, element: int) -> Any:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(element, None))


def model(op: str, source: Any, result: Any, **attributes: Any) -> bytes:
    def typed(name: str, kind: Any) -> Any:
        if isinstance(kind, int):
            kind = helper.make_tensor_type_proto(kind, None)
        return helper.make_value_info(name, kind)

    node = helper.make_node(op, ["x"], ["y"], "n", domain=ML, **attributes)
    graph = helper.make_graph([node], "g", [typed("x", source)], [typed("y", result)])
    imports = [helper.make_opsetid(ML, 1), helper.make_opsetid("", 15)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def answers(made: bytes, x: Any, device: str = "cpu") -> Any:
    """What vkml gives, which is what onnxruntime gives."""
    runtime = pytest.importorskip("onnxruntime")
    session = vkml.InferenceSession(made, devices=device)
    [found] = session.run(None, {"x": x})
    other = runtime.InferenceSession(made, providers=["CPUExecutionProvider"])
    [wanted] = other.run(None, {"x": x})
    for mine, theirs in zip(
        (*session.get_inputs(), *session.get_outputs()),
        (*other.get_inputs(), *other.get_outputs()),
        strict=True,
    ):
        assert mine.type == theirs.type
    if isinstance(wanted, np.ndarray):
        assert found.tolist() == wanted.tolist() and found.shape == wanted.shape
    else:
        assert found == wanted
    return found


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [7, -3]}, {"classlabels_strings": ["a", "é"]}])
def test_scores_by_label(device_name: str, labels: dict[str, Any]) -> None:
    key = INT64 if "classlabels_int64s" in labels else STRING
    made = model("ZipMap", FLOAT, helper.make_sequence_type_proto(map_type(key, FLOAT)), **labels)
    found = answers(made, np.array([[0.25, 0.5], [1, -2]], np.float32), device_name)
    assert [type(value) for value in found[0].values()] == [float, float]
    assert answers(made, np.zeros((0, 2), np.float32), device_name) == []


def test_scores_that_do_not_fit_labels() -> None:
    made = model(
        "ZipMap", FLOAT, helper.make_sequence_type_proto(map_type(INT64, FLOAT)), classlabels_int64s=[1, 2]
    )
    with pytest.raises(RuntimeException, match=r"\[1, 3\] do not fit 2 labels"):
        vkml.InferenceSession(made, devices="cpu").run(None, {"x": np.zeros((1, 3), np.float32)})


@pytest.mark.parametrize(
    ("key", "element", "x", "wanted"),
    [
        (STRING, FLOAT, {"b": 1.5, "a": 2.0}, [2.0, 1.5, 0.0]),
        (STRING, INT64, {"c": np.int64(4)}, [0, 0, 4]),
        (INT64, FLOAT, {30: 1.0, 10: 0.5, 99: 7.0}, [0.5, 0, 1.0]),
        (INT64, STRING, {20: "é"}, ["", "é", ""]),
    ],
)
def test_by_vocabulary(key: int, element: int, x: dict[Any, Any], wanted: list[Any]) -> None:
    words: dict[str, Any] = {"string_vocabulary": ["a", "b", "c"]}
    if key == INT64:
        words = {"int64_vocabulary": [10, 20, 30]}
    session = vkml.InferenceSession(
        model("DictVectorizer", map_type(key, element), element, **words), devices="cpu"
    )
    [found] = session.run(None, {"x": x})
    [nothing] = session.run(None, {"x": {}})
    assert found.tolist() == [wanted]
    assert nothing.tolist() == [["" if element == STRING else 0] * 3]
    assert found.dtype == nothing.dtype == helper.tensor_dtype_to_np_dtype(element)


def test_by_vocabulary_as_onnxruntime() -> None:
    made = model("DictVectorizer", map_type(STRING, FLOAT), FLOAT, string_vocabulary=["a", "b", "c"])
    answers(made, {"b": 1.5, "a": 2.0})


@pytest.mark.parametrize(
    ("to", "dense"),
    [("TO_FLOAT", [-2.5, 7.0]), ("TO_INT64", [-2, 7]), ("TO_STRING", ["-2.5", "7"])],
)
@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
def test_cast(to: str, dense: list[Any], form: str) -> None:
    element = {"TO_FLOAT": FLOAT, "TO_INT64": INT64, "TO_STRING": STRING}[to]
    made = model("CastMap", map_type(INT64, STRING), element, cast_to=to, map_form=form, max_map=5)
    [found] = vkml.InferenceSession(made, devices="cpu").run(None, {"x": {3: "7", 0: "-2.5"}})
    nothing = "" if to == "TO_STRING" else 0
    sparse = [dense[0], nothing, nothing, dense[1], nothing]
    assert found.tolist() == [dense if form == "DENSE" else sparse]
    if form == "SPARSE":
        with pytest.raises(RuntimeException, match="those below 5 have a place"):
            vkml.InferenceSession(made, devices="cpu").run(None, {"x": {5: "1"}})


@pytest.mark.parametrize("given", [[("a", 1.0)], {1: 1.0}, {"a": "one"}])
def test_what_is_no_such_map(given: Any) -> None:
    session = vkml.InferenceSession(
        model("DictVectorizer", map_type(STRING, FLOAT), FLOAT, string_vocabulary=["a"]), devices="cpu"
    )
    with pytest.raises(InvalidArgument, match="input 'x"):
        session.run(None, {"x": given})


def test_keys_of_another_type() -> None:
    made = model("DictVectorizer", map_type(INT64, FLOAT), FLOAT, string_vocabulary=["a"])
    with pytest.raises(RuntimeException, match=r"keys of string, it is map\(int64, float\)"):
        vkml.InferenceSession(made, devices="cpu").run(None, {"x": {1: 1.0}})
