"""Linear models, support vector machines and optimizers: against onnxruntime, and onnx's evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, run_operator
from tests.ops.extension_cases import runs_everything
from vkml.errors import InvalidGraph

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(dtype)


def listed(*shape: int, seed: int = 1) -> tuple[float, ...]:
    return tuple(numbers(*shape, seed=seed).reshape(-1).tolist())


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_regression(transform: str, targets: int) -> None:
    given = {"coefficients": listed(targets, 4), "targets": targets, "post_transform": transform}
    given["intercepts"] = (0.4,) * targets
    x = np.abs(numbers(6, 4)) / 4
    check_operator("LinearRegressor", [x], given, domain=ML, opset=1)


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("classes", [2, 3])
def test_classification(transform: str, classes: int) -> None:
    given = {"coefficients": listed(classes, 4), "post_transform": transform}
    given["classlabels_strings"] = ("a", "b", "c")[:classes]
    given["intercepts"] = listed(classes, seed=2)
    check_operator("LinearClassifier", [numbers(9, 4)], given, domain=ML, opset=1, outputs=2)
    zeros = {**given, "intercepts": (0.0,) * classes}  # without any, onnxruntime answers NaN
    given.pop("intercepts")
    found, wanted = (
        run_operator("LinearClassifier", [numbers(9, 4)], each, domain=ML, opset=1, outputs=2)
        for each in (given, zeros)
    )
    assert found[0].tolist() == wanted[0].tolist() and found[1].tolist() == wanted[1].tolist()


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
def test_two_classes_by_one_score(transform: str, dtype: Any) -> None:
    given = {
        "coefficients": listed(1, 4),
        "intercepts": (0.1,),
        "classlabels_ints": (7, 3),
        "post_transform": transform,
        "multi_class": 1,
    }
    x = (numbers(9, 4) * 10).astype(dtype)
    check_operator("LinearClassifier", [x], given, domain=ML, opset=1, outputs=2)


KERNELS = {
    "LINEAR": (0.0, 0.0, 0.0),
    "POLY": (0.7, 0.2, 3.0),
    "RBF": (0.6, 0.0, 0.0),
    "SIGMOID": (0.5, 0.1, 0.0),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regression(kernel: str, one_class: int) -> None:
    given = {
        "coefficients": listed(5),
        "support_vectors": listed(5, 3, seed=3),
        "n_supports": 5,
        "rho": (0.05,),
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "one_class": one_class,
    }
    check_operator("SVMRegressor", [numbers(8, 3) * 3], given, domain=ML, opset=1)


def test_support_vector_regression_without_vectors() -> None:
    given = {"coefficients": listed(3), "rho": (0.05,), "kernel_type": "LINEAR"}
    check_operator("SVMRegressor", [numbers(8, 3)], given, domain=ML, opset=1)


def machine(classes: int, kernel: str = "RBF", probabilities: bool = False) -> dict[str, Any]:
    counts = (3, 2, 4, 1)[:classes]
    pairs, total = classes * (classes - 1) // 2, sum(counts)
    given = {
        "coefficients": listed(classes - 1, total),
        "support_vectors": listed(total, 3, seed=3),
        "vectors_per_class": counts,
        "rho": listed(pairs, seed=4),
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "classlabels_ints": (9, 5, 7, 8)[:classes],
    }
    if probabilities:
        given |= {"prob_a": tuple(-np.abs(numbers(pairs)) - 1), "prob_b": listed(pairs, seed=6)}
    return given


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_support_vector_classification(kernel: str, classes: int, probabilities: bool) -> None:
    given = machine(classes, kernel, probabilities)
    x = numbers(30, 3) * 5
    check_operator("SVMClassifier", [x], given, domain=ML, opset=1, outputs=2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 3])
def test_transforms_of_support_vector_machines(transform: str, classes: int) -> None:
    given = {**machine(classes), "post_transform": transform}
    check_operator("SVMClassifier", [numbers(9, 3)], given, domain=ML, opset=1, outputs=2)


@pytest.mark.parametrize(
    ("op", "given", "message"),
    [
        ("LinearRegressor", {"coefficients": (1.0, 2.0, 3.0), "targets": 2}, "3 numbers for 2 targets"),
        ("LinearClassifier", {"coefficients": (1.0,), "intercepts": (1.0,)}, "one of classlabels_ints"),
        ("SVMRegressor", {"coefficients": (1.0,) * 3}, "rho is missing"),
        ("SVMClassifier", {**machine(3), "rho": (1.0,)}, "for 3 pairs of classes"),
        ("SVMClassifier", {**machine(3), "vectors_per_class": (3, 2)}, "27 numbers for 5 support vectors"),
        ("SVMClassifier", {**machine(3), "coefficients": (1.0,) * 9}, "9 coefficients for 3 classes"),
        ("SVMClassifier", {**machine(3), "kernel_type": "COSINE"}, "kernel_type must be one of"),
        ("LinearRegressor", {"coefficients": (1.0, 2.0)}, "for 2 features, the input has 3"),
    ],
)
def test_models_that_are_none(op: str, given: dict[str, Any], message: str) -> None:
    outputs = 2 if op.endswith("Classifier") else 1
    model = build_model(op, [numbers(2, 3)], given, domain=ML, opset=1, outputs=outputs)
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


STEPS = {
    "Adagrad": ({"norm_coefficient": 0.1, "decay_factor": 0.2}, 1),
    "Adam": ({"norm_coefficient": 0.1, "alpha": 0.7, "norm_coefficient_post": 0.05}, 2),
    "Momentum": ({"norm_coefficient": 0.1, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}, 1),
}


@pytest.mark.parametrize("op", STEPS)
@pytest.mark.parametrize("number", [0, 3])
def test_steps_of_optimizers(op: str, number: int) -> None:
    given, states = STEPS[op]
    shapes = [(2, 3), (4,)]
    tensors = [np.abs(numbers(*shape, seed=kind)) for kind in range(2 + states) for shape in shapes]
    inputs = [np.array(0.1, np.float32), np.array(number), *tensors]
    found = check_operator(
        op,
        inputs,
        given,
        domain="ai.onnx.preview.training",
        opset=1,
        outputs=2 * (1 + states),
        against="onnx",
    )
    assert not np.allclose(found[0], tensors[0])
    doubles = [*inputs[:2], *(each.astype(np.float64) for each in tensors)]
    outputs = 2 * (1 + states)
    exact = run_operator(op, doubles, given, domain="ai.onnx.preview.training", opset=1, outputs=outputs)
    for mine, wanted in zip(found, exact, strict=True):
        assert wanted.dtype == np.float64
        np.testing.assert_allclose(mine, wanted, rtol=1e-5)


def test_steps_know_what_belongs_together() -> None:
    tensors = [numbers(2), numbers(2), numbers(3)]
    with pytest.raises(InvalidGraph, match=r"input 4 is float\[3\], what is optimized float\[2\]"):
        inputs = [np.array(0.1, np.float32), np.array(1), *tensors]
        run_operator("Adagrad", inputs, domain="ai.onnx.preview.training", opset=1, outputs=2)


@pytest.mark.parametrize("form", ["RGB", "BGR", "Grayscale"])
def test_images(form: str, device_name: str) -> None:
    import io

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    model = build_model("ImageDecoder", [np.zeros(1, np.uint8)], {"pixel_format": form}, opset=20)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    session = vkml.InferenceSession(model.SerializeToString(), devices=device_name)
    for mode in ("RGB", "RGBA", "L", "P", "1", "I;16"):
        file = io.BytesIO()
        image = Image.fromarray(pixels)
        image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
        image.save(file, "PNG")
        [found] = session.run(None, {"x0": np.frombuffer(file.getvalue(), np.uint8)})
        assert found.shape == (5, 7, 1 if form == "Grayscale" else 3), mode
        if mode == "RGB" and form != "Grayscale":
            assert found.tolist() == pixels[:, :, :: -1 if form == "BGR" else 1].tolist()
    for wrong in (b"no image", file.getvalue()[:40]):
        [found] = session.run(None, {"x0": np.frombuffer(wrong, np.uint8)})
        assert found.size == 0 and found.ndim == 3


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("op", ["LinearRegressor", "LinearClassifier", "one score", *KERNELS])
def test_predictors_are_steps_on_a_device(op: str, transform: str, vulkan_device_name: str) -> None:
    """And their gradients follow."""
    given: dict[str, Any] = {"post_transform": transform}
    name, outputs = op, 1
    if op == "LinearRegressor":
        given |= {"coefficients": listed(3, 4), "targets": 3, "intercepts": (0.4, 0.5, 0.6)}
    elif op in KERNELS:
        name = "SVMRegressor"
        given |= {"coefficients": listed(5), "support_vectors": listed(5, 4, seed=3), "n_supports": 5}
        given |= {"rho": (0.2,), "kernel_type": op, "kernel_params": KERNELS[op]}
        given["one_class"] = int(transform == "SOFTMAX")
    else:
        name, outputs = "LinearClassifier", 2
        classes = 1 if op == "one score" else 3
        given |= {"coefficients": listed(classes, 4), "intercepts": listed(classes, seed=2)}
        given["classlabels_ints"] = (7, 3) if classes == 1 else (7, 3, 5)
    x = numbers(9, 4)
    model = build_model(name, [x], given, domain=ML, opset=1, outputs=outputs).SerializeToString()
    wanted = vkml.InferenceSession(model, devices="cpu").run(None, {"x0": x})
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        found = session.run(None, {"x0": x})
        devices = {step.device for step in session.report().steps}
        assert "cpu" not in devices or not runs_everything(vulkan_device_name)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
