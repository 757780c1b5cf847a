"""What others get wrong in an operator, or ONNX leaves open, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.disturbances import EXACT, JITTERED, LINEAR
from tests.fuzz.tensors import HALVES, Array, is_computed_float
from tests.fuzz.trusted import REFERENCE_LIMIT
from vkml.ir import Node, dtypes

Where = Callable[[Node, list[Array | None], Array], Any]
"""Node, inputs, vkml's result → whether all of it, or a mask of its elements."""


@dataclass(frozen=True)
class Freedom:
    """Elements of a node's results that other runtimes get wrong, or may make what they like of."""

    ops: str
    where: Where
    reason: str
    of: str = ""
    """The runtime that is excused; any, where this is empty."""


def _floats(inputs: list[Array | None]) -> list[Array]:
    return [array for array in inputs if array is not None and is_computed_float(array)]


def always(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return True


def has_nan(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(np.isnan(array).any() for array in _floats(inputs))


def has_special(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(not np.isfinite(array).all() for array in _floats(inputs))


def is_double(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.float64


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


def _is_bfloat16_formula(node: Node, inputs: list[Array | None], result: Array) -> Any:
    has_factor = node.op in ("LeakyRelu", "ThresholdedRelu")
    return result.dtype == dtypes.BFLOAT16.storage and (has_factor or node.op not in EXACT)


def _is_mask(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.inputs[0].endswith("/mask")


def _is_flattened(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return bool(node.attributes["is_flattened"])


def _is_any_float(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind in "fc" or (result.dtype.kind == "V" and "float" in result.dtype.name)


def _is_complex(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind == "c"


def _is_text(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == object


def is_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind in "iu"


def is_large(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Numbers whose squares lose or overflow what other places need."""
    return has_special(node, inputs, result) or any(
        np.abs(array).max(initial=0) > 1e6 for array in _floats(inputs)
    )


def _spoils_running_sum(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Places whose own squares count for little beside the largest, of which a difference keeps an error."""
    data = inputs[0]
    if data is None or not data.size:
        return False
    share = abs(node.attributes["alpha"]) / node.attributes["size"]
    with np.errstate(all="ignore"):
        squares = share * np.square(data.astype(np.float64))
        return squares.max() / 2 > abs(node.attributes["bias"]) + squares


def overflows_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(array.dtype == np.float16 and not np.isfinite(array).all() for array in _floats(inputs))


def _pads_outwards(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether padding to the same size would have to take something away: windows shorter than strides."""
    if not str(node.attributes["auto_pad"]).startswith("SAME") or inputs[0] is None:
        return False
    kernel = node.attributes["kernel_shape"] or (inputs[1].shape[2:] if inputs[1] is not None else ())
    strides = node.attributes["strides"] or (1,) * len(kernel)
    return any(size < stride for size, stride in zip(kernel, strides, strict=True))


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


def _weights_an_old_term(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 7 and node.attributes["beta"] != 1


def _squares_large_halves(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a variance is taken of float16 of which squares, or their sum, may overflow."""
    data = inputs[0]
    if not node.attributes["training_mode"] or data is None or data.dtype != np.float16:
        return False
    return bool(np.sum(np.square(data.astype(np.float64))) > 60000)


def _pads_for_dilations(node: Node, inputs: list[Array | None], result: Array) -> Any:
    dilations = node.attributes["dilations"] or ()
    return str(node.attributes["auto_pad"]).startswith("SAME") and max(dilations, default=1) > 1


def _is_valid_with_dilations(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["auto_pad"] == "VALID" and max(node.attributes["dilations"] or (), default=1) > 1


def _may_overflow(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(
        array.size and not np.abs(array).max() < float(ml_dtypes.finfo(array.dtype).max) / 16
        for array in _floats(inputs)
    )


def _has_wide_exponent(node: Node, inputs: list[Array | None], result: Array) -> Any:
    exponent = inputs[1]
    if exponent is None or exponent.dtype.kind not in "iu" or result.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        return exponent.astype(result.dtype).astype(np.float64) != exponent.astype(np.float64)


def _is_index(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.int64


def _is_single_half_pixel(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether an axis of the result has one place, which ONNX's text puts at 0 then."""
    is_pytorch = node.attributes["coordinate_transformation_mode"] == "pytorch_half_pixel"
    return is_pytorch and 1 in result.shape


def _has_negative_for_1_norm(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["p"] == 1 and inputs[0] is not None and bool((inputs[0] < 0).any())


def _has_zero_points_of_rows(node: Node, inputs: list[Array | None], result: Array) -> Any:
    zero = inputs[2] if len(inputs) > 2 else None
    return zero is not None and zero.ndim == 1 and zero.size > 1


def _was_bool(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == object and inputs[0] is not None and inputs[0].dtype == np.bool_


def _overhangs(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether windows are counted upwards and already the first one is larger than its axis."""
    kernel, data = node.attributes["kernel_shape"], inputs[0]
    if node.attributes["ceil_mode"] != 1 or data is None:
        return False
    rank = len(kernel)
    pads, dilations = (
        node.attributes["pads"] or (0,) * 2 * rank,
        node.attributes.get("dilations") or (1,) * rank,
    )
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    sizes = [data.shape[2 + axis] + pads[axis] + pads[rank + axis] for axis in range(rank)]
    return any(span > size for span, size in zip(spans, sizes, strict=True))


def _ends_outside(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether windows are counted upwards and the last one reaches beyond its axis."""
    kernel, data = node.attributes["kernel_shape"], inputs[0]
    if node.attributes["ceil_mode"] != 1 or data is None:
        return False
    rank = len(kernel)
    pads, strides = node.attributes["pads"] or (0,) * 2 * rank, node.attributes["strides"] or (1,) * rank
    dilations = node.attributes["dilations"] or (1,) * rank
    ends = [
        (result.shape[2 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        for axis in range(rank)
    ]
    return any(end > data.shape[2 + axis] + pads[axis] + pads[rank + axis] for axis, end in enumerate(ends))


def _pads_to_a_stated_size(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a transposed convolution's size needs pads; if these are split among both sides, below zero."""
    data, weight, sizes = inputs[0], inputs[1], node.attributes["output_shape"]
    if not sizes or data is None or weight is None:
        return False
    rank = data.ndim - 2
    ones = (1,) * rank
    strides, dilations = node.attributes["strides"] or ones, node.attributes["dilations"] or ones
    more = node.attributes["output_padding"] or (0,) * rank
    totals = [
        strides[axis] * (data.shape[2 + axis] - 1)
        + more[axis]
        + (weight.shape[2 + axis] - 1) * dilations[axis]
        + 1
        - sizes[axis - rank]
        for axis in range(rank)
    ]
    return min(totals) < 0 if str(node.attributes["auto_pad"]).startswith("SAME") else max(totals) > 0


def _is_least(node: Node, inputs: list[Array | None], result: Array) -> Any:
    if is_computed_float(result):
        return np.isneginf(result)
    return result == np.iinfo(result.dtype).min if result.dtype.kind == "i" else False


def _strides_from_lower_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    steps = (*(node.attributes["strides"] or ()), *(node.attributes["dilations"] or ()))
    return node.attributes["auto_pad"] == "SAME_LOWER" and any(step != 1 for step in steps)


def _is_of_opset_1_with_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    is_same = str(node.attributes["auto_pad"]).startswith("SAME")
    return node.version < 7 and (is_same or any(node.attributes["pads"] or ()))


def _writes_brain_floats(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return result.dtype == object and data is not None and data.dtype == dtypes.BFLOAT16.storage


def _pads_and_counts_up(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["ceil_mode"] == 1 and any(node.attributes["pads"] or ())


def _has_a_size_at_a_jump(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a size times its scale is a whole number in float32 and just none in float64."""
    data, scales = inputs[0], inputs[2] if len(inputs) > 2 else None
    if data is None or scales is None or not scales.size:
        return False
    axes = node.attributes["axes"] or range(data.ndim)
    sizes = np.array([data.shape[axis] for axis in axes])
    single = sizes.astype(np.float32) * scales.astype(np.float32)
    return bool((np.floor(single) != np.floor(sizes * scales.astype(np.float64))).any())


def _shrinks_by_less_than_float32_tells(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data, bias = inputs[0], node.attributes["bias"]
    if data is None or result.dtype.kind not in "iu":
        return False
    wide, single = data.astype(np.float64), data.astype(np.float32)
    with np.errstate(all="ignore"):
        return np.any(
            [np.trunc(wide + step) != np.trunc(single + np.float32(step)) for step in (bias, -bias)], axis=0
        )


def _counts_valid_up(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["ceil_mode"] == 1 and node.attributes["auto_pad"] == "VALID"


def _misreads_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether paddings, begin, begin, end, end, are others if read as begin, end, begin, end; or not read."""
    pads = node.attributes["pads"] or ()
    return pads[1] != pads[2] if len(pads) == 4 else any(pads)


def _is_large_with_nan(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and data.size > REFERENCE_LIMIT and has_nan(node, inputs, result)


def _comes_from_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return inputs[0] is not None and inputs[0].dtype in HALVES


def _vanishes_in_exponentials(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result < np.log(float(ml_dtypes.finfo(result.dtype).tiny))


def _is_of_old_rois(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["coordinate_transformation_mode"] == "output_half_pixel"


def _has_no_deviation(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result == 0


def _reduces_nothing(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and data.ndim > 0 and data.shape[node.attributes["axis"]] == 0


def _is_large_mask(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.bool_ and result.size > REFERENCE_LIMIT


def _infers_of_old(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 14 and not node.attributes["training_mode"]


def _keeps_all_sizes(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether scales other than 1 leave every size as it is."""
    data = inputs[0]
    return data is not None and data.shape == result.shape


def _has_fractional_indices(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any((array != np.trunc(array)).any() for array in _floats(inputs[:1]))


def _leaves_powers_of_two(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """What float8e8m0 does not have, where ONNX's table does not say how it is rounded."""
    data, target = inputs[0], dtypes.from_numpy(result.dtype)
    if data is None or target is not dtypes.FLOAT8E8M0 or data.dtype == object:
        return False
    wide = data.astype(np.float64)
    is_beyond = ~((wide >= 2.0**-127) & (wide <= 2.0**127))
    is_tabled = (node.attributes["saturate"], node.attributes["round_mode"]) in ((1, "up"), (0, "nearest"))
    return (wide < 0) | ((wide == 0) & np.signbit(wide)) | (is_beyond & (not is_tabled))


def _names_axes_in_disorder(node: Node, inputs: list[Array | None], result: Array) -> Any:
    axes = inputs[1] if len(inputs) > 1 else None
    return node.version < 13 and axes is not None and bool((axes < 0).any() or (np.diff(axes) < 0).any())


def _lies_at_a_jump(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Places whose coordinates lie where the nearest place changes, as closely as float32 tells."""
    data, given = inputs[0], inputs[2] if len(inputs) > 2 else None
    if data is None or node.attributes["mode"] != "nearest" or result.ndim != data.ndim:
        return False
    if not data.size or not result.size:
        return False
    scales = [out / size for size, out in zip(data.shape, result.shape, strict=True)]
    if given is not None and given.size:
        for axis, scale in zip(node.attributes["axes"] or range(data.ndim), given, strict=True):
            scales[axis] = float(scale)
    mode = node.attributes["coordinate_transformation_mode"]
    shift = 0.5 if "half_pixel" in mode else 0.0
    mask = np.zeros(result.shape, bool)
    for axis, scale in enumerate(scales):
        size, out = data.shape[axis], result.shape[axis]
        if mode == "align_corners":
            scale = max(out - 1, 1) / max(size - 1, 1)
        if scale != 1:
            place = (np.arange(out) + shift) / scale - shift
            if mode == "half_pixel_symmetric":
                place += size / 2 * (1 - out / (scale * size))
            jump = place + 0.5 * node.attributes["nearest_mode"].startswith("round")
            lanes = [1] * data.ndim
            lanes[axis] = out
            mask |= (np.abs(jump - np.rint(jump)) < 1e-6 * (size + 1)).reshape(lanes)
    return mask


def _draws_lots(node: Node, inputs: list[Array | None], result: Array) -> Any:
    ratio, training = [*inputs, None, None][1:3]
    return training is not None and bool(training.any()) and (ratio is None or bool(ratio.any()))


def _is_of_opset_1(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 6


def _scales_by_another_type(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data, scale = inputs[:2]
    return data is not None and scale is not None and data.dtype != scale.dtype


def _has_endless_slope(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return not np.isfinite(node.attributes["alpha"])


def _has_groups(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["group"] > 1


FLAGS = ("align_corners", "antialias", "ceil_mode", "exclude_outside", "fmod", "keepdims", "sorted")


def _has_odd_flag(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(node.attributes.get(key) not in (None, 0, 1) for key in FLAGS)


def _keeps_ratio(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["keep_aspect_ratio_policy"] != "stretch"


def _is_offset(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether numbers that are normalised hardly differ, next to their size."""
    data = inputs[0]
    if data is None or not data.size:
        return False
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64)
        if node.op == "GroupNormalization":
            wide = wide.reshape(len(wide), node.attributes["num_groups"], -1)
            axes: tuple[int, ...] = (2,)
        else:
            axes = tuple(axis % data.ndim for axis in node.attributes["axes"])
        return bool((np.abs(wide).max(axis=axes) > 10 * wide.std(axis=axes)).any())


def _is_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.float16


def _is_wide_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Products of integers that overflow, or that float64 cannot hold."""
    if result.dtype.kind not in "iu":
        return False
    sizes = [np.abs(array.astype(np.float64)).max(initial=1) for array in inputs if array is not None]
    terms = max(max(array.shape, default=1) for array in inputs if array is not None)
    return float(np.prod(sizes)) * terms >= min(2**50, int(np.iinfo(result.dtype).max))


def _is_unsorted_or_backwards(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return (node.attributes["axis"] or 0) < 0 or not node.attributes["sorted"]


def overflows_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Sums of integers that leave their type."""
    if result.dtype.kind not in "iu" or inputs[0] is None:
        return False
    size = np.abs(inputs[0].astype(np.float64))
    total = np.prod(np.maximum(size, 1)) if node.op == "ReduceProd" else np.sum(size * np.maximum(size, 1))
    return total >= np.iinfo(result.dtype).max


def _has_single_size(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return bool(node.attributes["align_corners"]) and 1 in result.shape[1:-1]


def _crops(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"


def _scales_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    is_whole_factor = all(float(node.attributes[key]).is_integer() for key in ("alpha", "beta"))
    return result.dtype.kind in "iu" and not is_whole_factor


ORT, ONNX = "onnxruntime", "onnx's evaluator"


def _has_no_steps(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return inputs[0] is not None and inputs[0].shape[1 if node.attributes["layout"] else 0] == 0


def _is_beyond_the_evaluator(node: Node, inputs: list[Array | None], result: Array) -> Any:
    has_lengths = len(inputs) > 4 and inputs[4] is not None
    others = (node.attributes.get(key) for key in ("activations", "clip", "input_forget"))
    return has_lengths or any(value not in (None, 0) for value in others)


FREEDOMS = (
    Freedom("MaxPool GlobalMaxPool", has_nan, "ONNX does not say; vkml hands NaN on, as in ReduceMax"),
    Freedom("ScatterElements ScatterND", has_nan, "the least and greatest with NaN: ONNX does not say"),
    Freedom(
        "Unique TopK ArgMax ArgMin Hardmax NonMaxSuppression",
        has_nan,
        "the order of NaN: ONNX does not say",
    ),
    Freedom(
        "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd",
        overflows_whole,
        "integers that overflow: ONNX does not say; vkml wraps around, onnxruntime does not always",
    ),
    Freedom(
        "ReduceMean ReduceL2 ReduceLogSum ReduceLogSumExp GridSample Resize Upsample",
        is_whole,
        "how integers are rounded: ONNX does not say",
    ),
    Freedom("Gemm", _scales_whole, "integers times a fraction: when they are truncated, ONNX does not say"),
    Freedom("Pow", _divides_whole, "powers of integers, negative or too large: ONNX does not say"),
    Freedom("Pow", _exceeds_doubles, "onnxruntime computes powers of integers in float64", ORT),
    Freedom("Shrink", _is_wide_whole, "integers beyond float64's whole numbers, plus a float"),
    Freedom(
        "Conv ConvInteger ConvTranspose MaxPool AveragePool LpPool",
        _pads_outwards,
        "a window below its stride, and padding to the same size: no two runtimes agree",
    ),
    Freedom("Cast CastLike", _leaves_range, "conversions of what the target type cannot hold: undefined"),
    Freedom(
        "Cast CastLike", _leaves_powers_of_two, "ONNX's table of float8e8m0 has two modes of rounding only"
    ),
    Freedom("*", _is_bfloat16_formula, "onnx's evaluator rounds every step and factor to bfloat16", ONNX),
    Freedom("CastLike", _is_mask, "onnxruntime's masks are empty where Dropout does nothing", ORT),
    Freedom(
        "GroupNormalization LayerNormalization RMSNormalization", is_double, "stash_type: float32 on the way"
    ),
    Freedom("Softmax LogSoftmax Hardmax", _is_flattened, "onnx's evaluator knows the newest form only", ONNX),
    Freedom(
        "MaxPool AveragePool LpPool",
        _pads_for_dilations,
        "padding to the same size: others forget the dilations",
    ),
    Freedom(
        "Resize Upsample GridSample RoiAlign", _may_overflow, "infinity times a weight of 0: who multiplies?"
    ),
    Freedom("Resize", _keeps_ratio, "onnx's evaluator reads the place before at the end of an axis", ONNX),
    Freedom("Resize Upsample", _keeps_all_sizes, "onnxruntime copies, whatever the scales", ORT),
    Freedom(
        "Squeeze Unsqueeze",
        _names_axes_in_disorder,
        "onnx's evaluator takes axis after axis, each of the tensor that it has by then",
        ONNX,
    ),
    Freedom("OneHot", _has_fractional_indices, "onnx's evaluator wraps them before it cuts them off", ONNX),
    Freedom("AffineGrid", _has_single_size, "the corner of a single place: no two runtimes agree"),
    Freedom("Resize", _crops, "onnx's text crops before it scales, others do not"),
    Freedom("HardSwish", is_double, "onnx's function has 1/6 as float32; the operator's text does not"),
    Freedom("OneHot", _is_any_float, "others compute (on - off) * mask + off"),
    Freedom("LRN", is_large, "onnxruntime keeps a running sum, which one large square spoils for good", ORT),
    Freedom(
        "LRN", _spoils_running_sum, "onnxruntime keeps a running sum, of large squares and of small", ORT
    ),
    Freedom("MeanVarianceNormalization", _is_half, "onnxruntime adds 1e-9 in float16, which is 0 there", ORT),
    Freedom(
        "MeanVarianceNormalization GroupNormalization",
        _is_offset,
        "others subtract the square of the mean from the mean square, as ONNX's function bodies do",
    ),
    Freedom(
        "ReduceMax ReduceMin",
        _is_large_with_nan,
        "onnxruntime loses NaN where it reduces in blocks; too large for onnx's evaluator to say so",
        ORT,
    ),
    Freedom(
        "BatchNormalization", _squares_large_halves, "onnxruntime adds squares of float16 in float16", ORT
    ),
    Freedom("LogSoftmax", _vanishes_in_exponentials, "onnx's evaluator takes the logarithm of 0", ONNX),
    Freedom("RoiAlign", _is_of_old_rois, "onnx's evaluator knows half pixels only, whatever the opset", ONNX),
    Freedom("MeanVarianceNormalization", _has_no_deviation, "onnxruntime divides by 0 without 1e-9", ORT),
    Freedom("ArgMax ArgMin", _reduces_nothing, "onnxruntime leaves 0 of an axis of no places", ORT),
    Freedom("Elu LeakyRelu Selu", _has_endless_slope, "onnx's evaluator multiplies it by 0 above, too", ONNX),
    Freedom("Selu", _is_of_opset_1, "onnx's evaluator has the defaults of opset 6 in opset 1, too", ONNX),
    Freedom(
        "RMSNormalization",
        _scales_by_another_type,
        "the result is of the scale's type; onnx's evaluator gives the input's",
        ONNX,
    ),
    Freedom("Dropout", _draws_lots, "everyone's random numbers are their own"),
    Freedom(
        "Dropout", _is_large_mask, "onnxruntime's old masks are empty; too large for onnx to say so", ORT
    ),
    Freedom(
        "BatchNormalization",
        _infers_of_old,
        "onnx's evaluator trains before opset 14",
        ONNX,
    ),
    Freedom(
        "Resize", _lies_at_a_jump, "coordinates are float32 with vkml, float64 with onnx's evaluator", ONNX
    ),
    Freedom("Resize", _is_single_half_pixel, "onnx's evaluator has -0.5 where its text has 0", ONNX),
    Freedom("LpNormalization", _has_negative_for_1_norm, "onnx's evaluator takes no absolute values", ONNX),
    Freedom("MatMulInteger", _has_zero_points_of_rows, "onnx's evaluator takes them for columns'", ONNX),
    Freedom("Cast CastLike", _was_bool, "onnx's evaluator writes False, onnxruntime and vkml 0", ONNX),
    Freedom("MaxPool AveragePool LpPool", _overhangs, "onnx's evaluator makes nothing of such windows", ONNX),
    Freedom(
        "ConvTranspose",
        _pads_to_a_stated_size,
        "onnx's evaluator pads where it is to pad alike only; what is missing it adds on both sides, "
        "vkml and onnxruntime at the end",
        ONNX,
    ),
    Freedom(
        "MaxPool GlobalMaxPool",
        _is_least,
        "onnxruntime begins with the least finite number, onnx's evaluator has 0 of padding only",
    ),
    Freedom(
        "MaxPool",
        _strides_from_lower_pads,
        "onnx's evaluator rounds the size down and puts the odd place at the end",
        ONNX,
    ),
    Freedom(
        "AveragePool",
        _is_of_opset_1_with_pads,
        "opset 1 leaves padding out of the mean; onnx's evaluator counts it",
        ONNX,
    ),
    Freedom("Cast CastLike", _writes_brain_floats, "onnxruntime writes eight digits, vkml as float32", ORT),
    Freedom("MaxPool", _pads_and_counts_up, "onnx's evaluator counts padding twice when it rounds up", ONNX),
    Freedom(
        "Resize", _has_a_size_at_a_jump, "sizes are float32 with vkml and onnxruntime, float64 there", ONNX
    ),
    Freedom("Shrink", _shrinks_by_less_than_float32_tells, "float64 with vkml, float32 with others"),
    Freedom("AveragePool", _ends_outside, "onnx's evaluator adds half of what is missing at the front", ONNX),
    Freedom("LpPool", _ends_outside, "onnx's evaluator takes a part's mean times the whole window", ONNX),
    Freedom(
        "MaxPool AveragePool LpPool",
        _counts_valid_up,
        "ONNX's formula for VALID, which it deprecates, counts down; vkml and onnxruntime as they are told",
        ONNX,
    ),
    Freedom(
        "MaxPool AveragePool LpPool",
        _is_valid_with_dilations,
        "onnx's evaluator forgets the dilations in the size of the result",
        ONNX,
    ),
    Freedom("MaxPool", _misreads_pads, "onnx's evaluator takes pads for pairs, and for images only", ONNX),
    Freedom("LayerNormalization", _comes_from_half, "onnx's evaluator rounds what it stashes to half", ONNX),
    Freedom("*", overflows_half, "onnxruntime knows float16 as float32 between nodes", ORT),
    Freedom("LRN", always, "onnx's evaluator counts channels by the size of the batch", ONNX),
    Freedom(" ".join(LINEAR | JITTERED), _is_half, "onnx's evaluator adds float16 in float16", ONNX),
    Freedom("MaxPool", _is_index, "onnx's evaluator counts places within each plane", ONNX),
    Freedom("GlobalMaxPool", always, "onnx's evaluator reduces the last two axes only", ONNX),
    Freedom(
        "AffineGrid Erf Gelu GridSample", is_double, "onnx's evaluator computes float64 in float32", ONNX
    ),
    Freedom("Gemm", _weights_an_old_term, "onnx's evaluator forgets beta without broadcast=1", ONNX),
    Freedom("Gelu", _is_half, "onnx's evaluator computes float16 in float16", ONNX),
    Freedom("Gemm MatMul Einsum", _is_wide_whole, "onnx's evaluator computes integers in float64", ONNX),
    Freedom("Resize", _is_complex, "onnx's evaluator drops the imaginary part", ONNX),
    Freedom("CenterCropPad Pad", _is_text, "onnx's evaluator pads texts with numbers", ONNX),
    Freedom("ConvTranspose", _has_groups, "onnx's evaluator sums over groups", ONNX),
    Freedom("*", _has_odd_flag, "a flag neither 0 nor 1: vkml takes it for 1, others cut it off or for 0"),
    Freedom("LSTM GRU RNN", _has_no_steps, "onnxruntime's states are then what was in memory", ORT),
    Freedom(
        "LSTM GRU RNN",
        _is_beyond_the_evaluator,
        "onnx's evaluator knows neither lengths nor activations, clips and coupled gates",
        ONNX,
    ),
    Freedom("Unique", _is_unsorted_or_backwards, "onnx's evaluator sorts all the same, and turns axes", ONNX),
)


def freedom(node: Node, inputs: list[Array | None], result: Array, source: str) -> Any:
    """A mask, or one bool for all, of elements not to be compared with what a runtime says of them."""
    found: Any = np.False_
    for entry in FREEDOMS:
        fits = entry.ops == "*" or (node.op in entry.ops.split() and not node.domain)
        if fits and entry.of in ("", source):
            found = found | np.asarray(entry.where(node, inputs, result))
    return found
