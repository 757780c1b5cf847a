"""What is known of elementwise operators, casts and Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.known.conditions import ONNX, ORT, Freedom, always, is_double, is_half, is_wide_whole
from tests.fuzz.tensors import Array
from tests.fuzz.trusted import REFERENCE_LIMIT
from vkml.ir import Node, dtypes


def _leaves_range(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data, target = inputs[0], dtypes.from_numpy(result.dtype)
    if (
        data is None
        or not target.is_integer
        or dtypes.from_numpy(data.dtype).kind not in "fiu"
        or data.shape != result.shape
    ):
        return False
    least, most = dtypes.integer_bounds(target)
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64)
        return ~((np.trunc(wide) >= least) & (np.trunc(wide) <= most))


def _is_mask(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.inputs[0].endswith("/mask")


def _divides_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    base, exponent = inputs
    if result.dtype.kind not in "iu" or base is None or exponent is None:
        return False
    with np.errstate(all="ignore"):
        size = np.abs(base.astype(np.float64)) ** exponent.astype(np.float64)
    return (exponent < 0) | ~(size < np.iinfo(result.dtype).max)


def _exceeds_doubles(node: Node, inputs: list[Array | None], result: Array) -> Any:
    base, exponent = inputs
    if result.dtype.itemsize < 8 or result.dtype.kind != "i" or base is None or exponent is None:
        return False
    with np.errstate(all="ignore"):
        return ~(np.abs(base.astype(np.float64)) ** exponent.astype(np.float64) < 2**53)


def _is_odd_beyond_doubles(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Negative numbers to powers that are odd, where float64 has even ones only."""
    base, exponent = inputs
    if base is None or exponent is None or exponent.dtype.kind not in "iu":
        return False
    is_odd = (exponent & 1 != 0) & (np.abs(exponent.astype(np.float64)) >= 2**53)
    return is_odd & (np.signbit(base) if base.dtype.kind == "f" else base < 0)


def _is_inexact_where_numpy_has_doubles(node: Node, inputs: list[Array | None], result: Array) -> Any:
    base, exponent = inputs
    if base is None or exponent is None or base.dtype.isbuiltin != 1 or exponent.dtype.isbuiltin != 1:
        return False
    if np.result_type(base, exponent) != np.float64:
        return False
    return _is_odd_beyond_doubles(node, inputs, result) | _exceeds_doubles(node, inputs, result)


def _was_bool(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == object and inputs[0] is not None and inputs[0].dtype == np.bool_


def _writes_brain_floats(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return result.dtype == object and data is not None and data.dtype == dtypes.BFLOAT16.storage


def _shrinks_by_less_than_float32_tells(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data, bias = inputs[0], node.attributes["bias"]
    if data is None or result.dtype.kind not in "iu":
        return False
    wide, single = data.astype(np.float64), data.astype(np.float32)
    with np.errstate(all="ignore"):
        return np.any(
            [np.trunc(wide + step) != np.trunc(single + np.float32(step)) for step in (bias, -bias)], axis=0
        )


def _is_large_mask(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.bool_ and result.size > REFERENCE_LIMIT


def _leaves_powers_of_two(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """What float8e8m0 does not have, where ONNX's table does not say how it is rounded."""
    data, target = inputs[0], dtypes.from_numpy(result.dtype)
    if data is None or target is not dtypes.FLOAT8E8M0 or data.dtype == object:
        return False
    wide = data.astype(np.float64)
    is_beyond = ~((wide >= 2.0**-127) & (wide <= 2.0**127))
    is_tabled = (node.attributes["saturate"], node.attributes["round_mode"]) in ((1, "up"), (0, "nearest"))
    return (wide < 0) | ((wide == 0) & np.signbit(wide)) | (is_beyond & (not is_tabled))


def _draws_lots(node: Node, inputs: list[Array | None], result: Array) -> Any:
    ratio, training = [*inputs, None, None][1:3]
    return training is not None and bool(training.any()) and (ratio is None or bool(ratio.any()))


def _is_of_opset_1(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 6


def _has_endless_slope(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return not np.isfinite(node.attributes["alpha"])


FREEDOMS = (
    Freedom("Pow", _divides_whole, "powers of integers, negative or too large: ONNX does not say"),
    Freedom("Pow", _exceeds_doubles, "onnxruntime computes powers of integers in float64", ORT),
    Freedom("Pow", _is_odd_beyond_doubles, "onnxruntime knows exponents as float64", ORT),
    Freedom(
        "Pow",
        _is_inexact_where_numpy_has_doubles,
        "onnx's evaluator computes in float64 where NumPy has no other type for both",
        ONNX,
    ),
    Freedom("Shrink", is_wide_whole, "integers beyond float64's whole numbers, plus a float"),
    Freedom("Cast CastLike", _leaves_range, "conversions of what the target type cannot hold: undefined"),
    Freedom(
        "Cast CastLike", _leaves_powers_of_two, "ONNX's table of float8e8m0 has two modes of rounding only"
    ),
    Freedom("CastLike", _is_mask, "onnxruntime's masks are empty where Dropout does nothing", ORT),
    Freedom("HardSwish", is_double, "onnx's function has 1/6 as float32; the operator's text does not"),
    Freedom("Elu LeakyRelu Selu", _has_endless_slope, "onnx's evaluator multiplies it by 0 above, too", ONNX),
    Freedom("Selu", _is_of_opset_1, "onnx's evaluator has the defaults of opset 6 in opset 1, too", ONNX),
    Freedom(
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        always,
        "everyone's random numbers are their own",
    ),
    Freedom("Dropout", _draws_lots, "everyone's random numbers are their own"),
    Freedom(
        "Dropout", _is_large_mask, "onnxruntime's old masks are empty; too large for onnx to say so", ORT
    ),
    Freedom("Cast CastLike", _was_bool, "onnx's evaluator writes False, onnxruntime and vkml 0", ONNX),
    Freedom("Cast CastLike", _writes_brain_floats, "onnxruntime writes eight digits, vkml as float32", ORT),
    Freedom("Shrink", _shrinks_by_less_than_float32_tells, "float64 with vkml, float32 with others"),
    Freedom("Gelu", is_half, "onnx's evaluator computes float16 in float16", ONNX),
)
