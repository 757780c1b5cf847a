"""Features and labels of ai.onnx.ml: against onnxruntime, over types, shapes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import Error, IndexOutOfRange, InvalidGraph, RuntimeException, ShapeError

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"


def texts(*items: Any) -> Array:
    return np.array(items, np.object_)


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(1).standard_normal(shape) * 4).astype(dtype)


@pytest.mark.parametrize("x", [numbers(5), numbers(3, 5), numbers(2, 3, 5, dtype=np.int64), texts(*"abcde")])
def test_extracted(x: Array) -> None:
    check_operator("ArrayFeatureExtractor", [x, np.array([[4, 0], [4, 2]])], domain=ML, opset=1)


def test_extracted_from_outside() -> None:
    for wrong in (5, -1):
        with pytest.raises(IndexOutOfRange, match=f"index {wrong} is outside of 5 features"):
            run_operator("ArrayFeatureExtractor", [numbers(2, 5), np.array([0, wrong])], domain=ML, opset=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_types(dtype: Any) -> None:
    x = numbers(3, 4, dtype=dtype)
    scales = {"offset": (1.0, 0.5, -2.0, 0.0), "scale": (0.5, 2.0, 1.0, 0.1)}
    check_operator("Scaler", [x], scales, domain=ML, opset=1)
    check_operator("Normalizer", [x], {"norm": "L2"}, domain=ML, opset=1)
    check_operator("FeatureVectorizer", [x, x], {"inputdimensions": (4, 4)}, domain=ML, opset=1)
    against = "onnxruntime" if dtype == np.float32 else "onnx"  # others it does not have
    check_operator("Binarizer", [x], {"threshold": 0.5}, domain=ML, opset=1, against=against)


def test_scaled_by_one_number() -> None:
    check_operator("Scaler", [numbers(3, 4)], {"offset": (1.5,), "scale": (2.0,)}, domain=ML, opset=1)
    with pytest.raises(InvalidGraph, match="scale has 2 numbers for 4 features"):
        inferred_types("Scaler", [numbers(3, 4)], {"offset": (1.0,), "scale": (2.0, 3.0)}, domain=ML, opset=1)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalised(norm: str) -> None:
    x = numbers(4, 5)
    x[1] = 0
    x[2] = -np.abs(x[2])
    check_operator("Normalizer", [x], {"norm": norm}, domain=ML, opset=1)
    check_operator("Normalizer", [x[0]], {"norm": norm}, domain=ML, opset=1)


@pytest.mark.parametrize("old", [0.0, np.nan, 2.5])
@pytest.mark.parametrize("new", [(7.0,), (1.0, 2.0, 3.0)])
def test_imputed(old: float, new: tuple[float, ...]) -> None:
    x = np.array([[1, old, 2.5], [old, 0, np.nan]], np.float32)
    given = {"imputed_value_floats": new, "replaced_value_float": old}
    check_operator("Imputer", [x], given, domain=ML, opset=1)
    [found] = run_operator("Imputer", [x.astype(np.float64)], given, domain=ML, opset=1)
    assert found.dtype == np.float64 and not np.isnan(found[:, :2]).any()


def test_imputed_integers() -> None:
    x = np.array([[1, 0, 5], [0, 0, 2]])
    given = {"imputed_value_int64s": (7, 8, 9), "replaced_value_int64": 0}
    check_operator("Imputer", [x], given, domain=ML, opset=1)
    with pytest.raises(InvalidGraph, match="imputed_value_floats has 0 numbers"):
        inferred_types("Imputer", [x.astype(np.float32)], given, domain=ML, opset=1)


def test_joined() -> None:
    x, y = numbers(3, 2), numbers(3, 4)
    check_operator("FeatureVectorizer", [x, y], {"inputdimensions": (2, 4)}, domain=ML, opset=1)
    [found] = run_operator("FeatureVectorizer", [x, y], {"inputdimensions": (3, 2)}, domain=ML, opset=1)
    assert found.tolist() == np.hstack([x, np.zeros((3, 1), np.float32), y[:, :2]]).tolist()
    with pytest.raises(ShapeError, match="inputs have"):
        inferred_types("FeatureVectorizer", [x, y[:2]], domain=ML, opset=1)


STRINGS, INTEGERS, FLOATS = ("é", "", "a"), (-7, 5, 9), (np.nan, -0.25, 0.5)
KEYS = {"strings": STRINGS, "int64s": INTEGERS, "floats": FLOATS}
LOOKED_UP = {
    "strings": texts("a", "b", "é", "", "A").reshape(5, 1),
    "int64s": np.array([9, 5, 4, -7]),
    "floats": np.array([[0.5, np.nan], [1, -0.25]], np.float32),
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", KEYS)
@pytest.mark.parametrize("opset", [2, 4])
def test_encoded(keys: str, values: str, opset: int) -> None:
    given = {f"keys_{keys}": KEYS[keys], f"values_{values}": KEYS[values]}
    if values == "int64s" == keys:
        given["default_int64"] = 42
    x = LOOKED_UP[keys]
    if opset == 2 and keys == "floats":
        x = np.nan_to_num(x, nan=7)  # which that opset says nothing of
    check_operator("LabelEncoder", [x], given, domain=ML, opset=opset)


def test_the_last_of_equal_keys_counts() -> None:
    """As ONNX says; onnxruntime takes the first."""
    for keys, x in (
        ("strings", texts("a", "b")),
        ("int64s", np.array([1, 2])),
        ("floats", np.ones(2, np.float32)),
    ):
        given = {f"keys_{keys}": tuple(x[:1].tolist()) * 2, "values_int64s": (5, 6)}
        [found] = run_operator("LabelEncoder", [x], given, domain=ML, opset=4)
        assert found[0] == 6


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int32])
def test_encoded_by_tensors(dtype: Any) -> None:
    keys, values = np.array([3, 1, 2], dtype), np.array([30, 10, 20], dtype)
    given = {"keys_tensor": keys, "values_tensor": values, "default_tensor": np.array([7], dtype)}
    [found] = run_operator("LabelEncoder", [np.array([1, 2, 4, 3], dtype)], given, domain=ML, opset=4)
    assert found.dtype == dtype and found.tolist() == [10, 20, 7, 30]


def test_first_label_encoder() -> None:
    given = {"classes_strings": ("x", "y", "z"), "default_int64": -5, "default_string": "?"}
    check_operator("LabelEncoder", [texts("z", "q", "x")], given, domain=ML, opset=1, against="onnxruntime")
    check_operator("LabelEncoder", [np.array([2, 3, 0])], given, domain=ML, opset=1, against="onnxruntime")


def test_mapped() -> None:
    given = {"cats_strings": ("x", "y"), "cats_int64s": (10, 20), "default_int64": -5, "default_string": "?"}
    check_operator("CategoryMapper", [texts("y", "q", "x")], given, domain=ML, opset=1)
    check_operator("CategoryMapper", [np.array([[20], [3]])], given, domain=ML, opset=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys_int64s": (1, 2), "values_int64s": (1,)}, "2 keys and 1 values"),
        ({"keys_int64s": (1,)}, "one of values_strings, .* there are 0"),
        ({"keys_int64s": (1,), "keys_strings": ("a",), "values_int64s": (1,)}, "there are 2"),
    ],
)
def test_tables_that_are_none(given: dict[str, Any], message: str) -> None:
    model = build_model("LabelEncoder", [np.array([1])], given, domain=ML, opset=2)
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


def test_tables_look_only_their_type_up() -> None:
    given = {"keys_int64s": (1,), "values_int64s": (2,)}
    with pytest.raises(InvalidGraph, match="X has element type float"):
        inferred_types("LabelEncoder", [numbers(2)], given, domain=ML, opset=2)


@pytest.mark.parametrize("x", [np.array([[1, 7], [3, 1]]), np.array([1.9, 3.0, -1.5], np.float32)])
def test_one_hot(x: Array) -> None:
    check_operator("OneHotEncoder", [x], {"cats_int64s": (3, 1, -1)}, domain=ML, opset=1)


def test_one_hot_strings() -> None:
    given: dict[str, Any] = {"cats_strings": ("b", "a")}
    check_operator("OneHotEncoder", [texts("a", "b", "c").reshape(3, 1)], given, domain=ML, opset=1)
    with pytest.raises(RuntimeException, match="'c' is none of its 2 categories"):
        run_operator("OneHotEncoder", [texts("a", "c")], {**given, "zeros": 0}, domain=ML, opset=1)
    for wrong in ({}, {"cats_int64s": (1,), **given}):
        with pytest.raises(Error, match="one of cats_strings and cats_int64s"):
            inferred_types("OneHotEncoder", [texts("a")], wrong, domain=ML, opset=1)
