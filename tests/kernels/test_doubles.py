"""float64 on Vulkan: every operator is right to the precision of the type, or left to the CPU with a reason.

SPIR-V has no logarithms, exponentials, powers or trigonometric functions of 64-bit numbers; drivers that are
given them compute nonsense, and a detour through float32 loses half the digits. Exponentials and logarithms
are written out in simpler operations (`vkml.ir.double_functions`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.ops
from tests.kernels.test_pointwise_math import VARIANTS
from tests.ops.recurrent_cases import recurrent_case
from tests.vulkan_cases import Array, Cases, Fixed, target
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, dtypes
from vkml.ir.operator import REGISTRY, Operator
from vkml.onnx import save_graph
from vkml.ops.pointwise import Pointwise
from vkml.ops.reduce import Reduction


def fixed(*values: float) -> Fixed:
    return Fixed(np.array(values, np.int64))


def positive(cases: Cases, *shape: int) -> Array:
    return np.abs(cases.array(np.float64, shape)) + 0.1


def add_pointwise(cases: Cases) -> None:
    for (domain, op), spec in REGISTRY.items():
        if domain or not isinstance(spec, Pointwise) or dtypes.FLOAT64 not in spec.allowed:
            continue
        arity = 3 if op in ("Max", "Min", "Sum", "Mean") else spec.inputs[0]
        for attributes in VARIANTS.get(op, [{}]):
            arrays = [cases.array(np.float64, (5, 8)) for _ in range(arity)]
            add(cases, op, *arrays, **attributes)
            add(cases, op, *(np.abs(array) / 10 + 0.01 for array in arrays), **attributes)
    x = positive(cases, 5, 8)
    for exponent in (-1.0, 0.5, 1.0, 2.0, 3.0, 2.5):
        add(cases, "Pow", x, Fixed(np.array(exponent)))
        add(cases, "Pow", x, Fixed(np.array(exponent, np.float32)))
    add(cases, "Clip", x, Fixed(np.array(0.7)), Fixed(np.array(2.1)))
    add(cases, "Where", x > 1, x, -x)
    add(cases, "Identity", x)
    for kind in ("float32", "float16", "int32", "int64", "uint8", "bool"):
        add(cases, "Cast", x, to=dtypes.from_numpy(np.dtype(kind)).code)
        add(cases, "Cast", x.astype(kind), to=dtypes.FLOAT64.code)
        add(cases, "CastLike", x.astype(kind), x)


def add_reductions(cases: Cases) -> None:
    for (domain, op), spec in REGISTRY.items():
        if not domain and isinstance(spec, Reduction):
            for x in (
                cases.array(np.float64, (3, 40)),
                positive(cases, 3, 40) * 0.1,
                positive(cases, 3, 2000),
            ):
                add(cases, op, x, fixed(1))
                add(cases, op, x, fixed(0), keepdims=0)
    for op in (
        "ArgMax",
        "ArgMin",
        "CumSum",
        "CumProd",
        "Softmax",
        "LogSoftmax",
        "Hardmax",
        "LpNormalization",
    ):
        x = cases.array(np.float64, (3, 40))
        more = (fixed(1),) if op.startswith("Cum") else ()
        add(cases, op, x, *more, **({} if more else {"axis": 1}))
    add(cases, "LpNormalization", cases.array(np.float64, (3, 40)), p=1)
    labels = Fixed(np.array([3, 0, 39]))
    add(cases, "SoftmaxCrossEntropyLoss", cases.array(np.float64, (3, 40)), labels, reduction="none")


def add_images(cases: Cases) -> None:
    def weight(*shape: int) -> Array:
        return cases.array(np.float64, shape)

    x, channels = weight(2, 4, 9, 8), [weight(4) for _ in range(3)]
    add(cases, "Conv", x, weight(6, 4, 3, 3), weight(6))
    add(cases, "Conv", x, weight(6, 4, 1, 1))
    add(cases, "Conv", x, weight(4, 1, 3, 3), group=4)
    add(cases, "ConvTranspose", x, weight(4, 3, 3, 3), strides=(2, 2))
    for op, attributes in (
        ("MaxPool", {}),
        ("AveragePool", {}),
        *(("LpPool", {"p": p}) for p in (1, 2, 3)),
    ):
        add(cases, op, x, kernel_shape=(3, 2), pads=(1, 0, 1, 1), **attributes)
    add(cases, "GlobalAveragePool", x)
    add(cases, "GlobalMaxPool", x)
    for p in (1, 2, 3):
        add(cases, "GlobalLpPool", x, p=p)
    add(cases, "BatchNormalization", x, *channels, positive(cases, 4))
    add(cases, "InstanceNormalization", x, *channels[:2])
    add(cases, "GroupNormalization", x, *channels[:2], num_groups=2)
    add(cases, "LayerNormalization", x, weight(8), weight(8))
    add(cases, "RMSNormalization", x, weight(8))
    add(cases, "MeanVarianceNormalization", x)
    add(cases, "LRN", x, size=3)
    add(cases, "DepthToSpace", x, blocksize=2)
    add(cases, "RoiAlign", x, weight(3, 4), Fixed(np.array([0, 0, 0])), output_height=2)
    add(cases, "SpaceToDepth", weight(2, 4, 6, 8), blocksize=2)
    scales = Fixed(np.array([1, 1, 1.5, 2.25], np.float32))
    for mode in ("nearest", "linear", "cubic"):
        add(cases, "Resize", x, None, scales, mode=mode)


def add_matrices(cases: Cases) -> None:
    def matrix(*shape: int) -> Array:
        return cases.array(np.float64, shape)

    add(cases, "MatMul", matrix(40, 33), matrix(33, 37))
    add(cases, "MatMul", matrix(2, 128), matrix(128, 64))
    add(cases, "Gemm", matrix(33, 20), matrix(24, 33), matrix(24), transA=1, transB=1, alpha=0.7, beta=0.3)
    add(cases, "Einsum", matrix(4, 5), matrix(5, 6), equation="ij,jk->ik")


def add_moves(cases: Cases) -> None:
    x = cases.array(np.float64, (4, 6))
    places = np.array([[3, 0, 1, 1, 2, 0]], np.int64)
    add(cases, "Concat", x, x, axis=0)
    add(cases, "ConstantOfShape", fixed(2, 3), value=Constant(dtypes.FLOAT64, (1,), np.array([0.3])))
    add(cases, "Expand", x, fixed(2, 4, 6))
    add(cases, "Flatten", x)
    add(cases, "Gather", x, Fixed(np.array([2, 0])))
    add(cases, "TopK", x, fixed(2), axis=0)
    add(cases, "BitCast", x, to=dtypes.INT64.code)
    add(cases, "GatherElements", x, Fixed(places))
    add(cases, "GatherND", x, Fixed(np.array([[1], [0]])))
    add(cases, "OneHot", Fixed(np.array([1, 0, 3])), fixed(4), Fixed(np.array([0.1, 0.7])))
    add(cases, "Pad", x, fixed(1, 0, 2, 1), Fixed(np.array(0.3)))
    add(cases, "Pad", x, fixed(1, 0, 2, 1), mode="reflect")
    add(cases, "CenterCropPad", x, fixed(6, 4))
    add(cases, "Reshape", x, fixed(6, 4))
    for reduction in ("none", "add", "mul", "max", "min"):
        add(cases, "ScatterElements", x, Fixed(places), cases.array(np.float64, (1, 6)), reduction=reduction)
        updates = cases.array(np.float64, (2, 6))
        add(cases, "ScatterND", x, Fixed(np.array([[1], [3]])), updates, reduction=reduction)
    add(cases, "TensorScatter", x[None], x[None, :2], Fixed(np.array([1])), axis=1)
    add(cases, "Range", *(Fixed(np.array(number)) for number in (0.1, 2.0, 0.3)))
    add(cases, "ReverseSequence", x, Fixed(np.array([1, 2, 3, 4, 2, 1])))
    add(cases, "Slice", x, fixed(1), fixed(3), fixed(0))
    add(cases, "Split", x, axis=1, outputs=2, num_outputs=2)
    add(cases, "Squeeze", x[None], fixed(0))
    add(cases, "Unsqueeze", x, fixed(0))
    add(cases, "Tile", x, fixed(2, 1))
    add(cases, "Transpose", x)
    add(cases, "Trilu", x)


def add_recurrent(cases: Cases) -> None:
    exact = {
        "LSTM": ("HardSigmoid", "Softsign", "Relu"),
        "GRU": ("HardSigmoid", "LeakyRelu"),
        "RNN": ("Relu",),
    }
    for op, activations in exact.items():
        for hidden, attributes in ((5, {}), (24, {"activations": activations})):
            case = recurrent_case(cases.random, op, steps=3, batch=2, size=4, hidden=hidden, **attributes)
            case = case.doubled()
            cases.add(
                op, *case.inputs, outputs=len(case.outputs), may_fall_back=not attributes, **case.attributes
            )


GROUPS = {
    "pointwise": add_pointwise,
    "reductions": add_reductions,
    "images": add_images,
    "matrices": add_matrices,
    "moves": add_moves,
    "recurrent": add_recurrent,
}
TAKE_NO_DOUBLES = {
    "ConvInteger",
    "MatMulInteger",
    "And",
    "Or",
    "Xor",
    "Not",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
}


def add(cases: Cases, op: str, *inputs: Any, **rest: Any) -> None:
    cases.add(op, *inputs, may_fall_back=True, **rest)


def test_conversion_to_half_rounds_once(vulkan_device_name: str) -> None:
    """Just beyond the middle of two halves: rounded to float32 first, it would lie in the middle."""
    if not {"float64", "float16", "storage_16bit"} <= target(vulkan_device_name).capabilities:
        return
    middle = np.ldexp(1 + np.arange(1, 2048, 2) / 2048, np.arange(1024) % 30 - 14)
    x = np.concatenate(
        [middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), [65520.0, 65519.999999]]
    )
    x = np.concatenate([x, -x, [np.inf, -np.inf, np.nan, 1e300, 0.0, -0.0]])
    sketch = Sketch("cast")
    cast = sketch.node("Cast", sketch.input("x", x.shape, dtypes.FLOAT64), to=dtypes.FLOAT16.code)
    model = save_graph(sketch.finish(cast))
    with vkml.InferenceSession(model, devices=vulkan_device_name, strict=True) as session:
        [found] = session.run(None, {"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, x.astype(np.float16))


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_remainders_are_exact(vulkan_device_name: str, kind: Any) -> None:
    """Whatever the quotient is, numbers that are not normal among the operands."""
    dtype, random = dtypes.from_numpy(np.dtype(kind)), np.random.default_rng(6)
    if dtype == dtypes.FLOAT64 and not {"float64", "int64"} <= target(vulkan_device_name).capabilities:
        return
    codes = random.integers(0, 1 << dtype.bits, (2, 4000), dtype=f"u{dtype.bits // 8}", endpoint=False)
    x, y = codes.view(kind)
    tiny = np.finfo(kind).smallest_subnormal
    y[:500] = tiny * random.integers(1, 2000, 500)
    x[250:500] = tiny * random.integers(1, 1 << 20, 250)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, tiny, np.finfo(kind).max, 3.5], kind)
    x = np.concatenate([x, np.repeat(special, special.size)])
    y = np.concatenate([y, np.tile(special, special.size)])
    sketch = Sketch("remainder")
    names = [sketch.input(name, x.shape, dtype) for name in "xy"]
    model = save_graph(sketch.finish(sketch.node("Mod", *names, fmod=1)))
    with vkml.InferenceSession(model, devices=vulkan_device_name, strict=True) as session:
        [found] = session.run(None, {"x": x, "y": y})
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    right = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    # Devices may flush what is not normal.
    right |= (dtype == dtypes.FLOAT32) & (found == 0) & (np.abs(wanted) < np.finfo(kind).smallest_normal)
    assert right.all(), (x[~right][:5], y[~right][:5], found[~right][:5], wanted[~right][:5])


@pytest.mark.parametrize("group", GROUPS)
def test_every_operator(vulkan_device_name: str, group: str) -> None:
    if "float64" not in target(vulkan_device_name).capabilities:
        return
    cases = Cases(41)
    GROUPS[group](cases)
    cases.check(vulkan_device_name)


def test_no_operator_is_missing() -> None:
    cases = Cases(41)
    for fill in GROUPS.values():
        fill(cases)
    tried = {case.node.op for case in cases.cases}
    able = {
        op
        for (domain, op), spec in REGISTRY.items()
        if not domain and (spec.is_pointwise or type(spec).lower is not Operator.lower)
    }
    # Scatter is ScatterElements' old name.
    assert able - tried == TAKE_NO_DOUBLES | {"Scatter"}
