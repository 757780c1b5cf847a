"""Which opset a node needs, and which later ones only allow more than it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkml.ir import DType, Node, dtypes, find

OLDEST = 18
"""The oldest opset that is written: from it on reductions take their axes as an input, as the newest do."""

_OPERATORS = {
    "AffineGrid": 20, "Attention": 23, "BitCast": 26, "CausalConvWithState": 27, "CumProd": 26, "DFT": 20,
    "DeformConv": 19, "Gelu": 20, "GridSample": 20, "GroupNormalization": 21, "ImageDecoder": 20,
    "LinearAttention": 27, "RMSNormalization": 23, "RegexFullMatch": 20, "RotaryEmbedding": 23,
    "StringConcat": 20, "StringSplit": 20, "Swish": 24, "TensorScatter": 24,
}  # fmt: skip
"""Operators that are younger, or have been others before."""

_ATTRIBUTES: Mapping[str, Mapping[str, int]] = {
    "AveragePool": {"dilations": 19},
    "Cast": {"saturate": 19, "round_mode": 24},
    "CastLike": {"saturate": 19, "round_mode": 24},
    "DequantizeLinear": {"block_size": 21, "output_dtype": 23},
    "GroupNormalization": {"stash_type": 21},
    "QuantizeLinear": {"saturate": 19, "block_size": 21, "output_dtype": 21, "precision": 23},
    "Range": {"stash_type": 27},
    "SpaceToDepth": {"mode": 28},
}
_VALUES: Mapping[str, tuple[str, str, int]] = {
    "Pad": ("mode", "wrap", 19),
    "Resize": ("coordinate_transformation_mode", "half_pixel_symmetric", 19),
}
"""Values of attributes that are younger than these."""

_BFLOAT16 = {
    **dict.fromkeys(
        (
            "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "Bernoulli", "Conv",
            "ConvTranspose", "Cos", "Cosh", "Det", "Elu", "EyeLike", "GRU", "GlobalAveragePool",
            "GlobalLpPool", "GlobalMaxPool", "GridSample", "HardSigmoid", "HardSwish",
            "InstanceNormalization", "LSTM", "LpNormalization", "LpPool", "MaxPool", "MaxRoiPool",
            "MaxUnpool", "Mish", "Multinomial", "NegativeLogLikelihoodLoss", "RNN", "RandomNormalLike",
            "RandomUniformLike", "RoiAlign", "Round", "Selu", "Sin", "Sinh", "Softplus", "Softsign", "Tan",
            "ThresholdedRelu",
        ),
        22,
    ),
    "ConstantOfShape": 20, "IsInf": 20, "QuantizeLinear": 19, "SplitToSequence": 24, "TopK": 24, "Range": 27,
    "Celu": 28, "Compress": 28, "Einsum": 28, "OneHot": 28, "ReverseSequence": 28, "Unique": 28,
}  # fmt: skip
_TYPES: Mapping[DType, Mapping[str, int]] = {
    dtypes.BFLOAT16: _BFLOAT16,
    dtypes.FLOAT16: {"IsInf": 20, "QuantizeLinear": 19, "Range": 27, "Celu": 28},
    dtypes.FLOAT64: {"Celu": 28},
    dtypes.BOOL: {"ReduceMax": 20, "ReduceMin": 20},
    **{dtype: {"BitShift": 28} for dtype in (dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64)},
}
"""Element types of a first input that operators take since then."""


def stated(node: Node) -> dict[str, Any]:
    """A node's attributes without those that are what they are when they are left out."""
    defaults = find(node).attributes
    return {
        key: value
        for key, value in node.attributes.items()
        if value is not None
        and (type(value) is not type(defaults[key]) or value != defaults[key])
        and not (key == "dilations" and set(value) == {1})
    }


def needed_opset(node: Node, inputs: Sequence[DType | None]) -> int:
    """The first opset, from `OLDEST` on, that has all that a node of ONNX's own domain states.

    Args:
        node: in its newest form.
        inputs: element types; None for what is absent.
    """
    needs = [OLDEST, _OPERATORS.get(node.op, 0)]
    attributes = stated(node)
    needs += [since for key, since in _ATTRIBUTES.get(node.op, {}).items() if key in attributes]
    if node.op in _VALUES:
        key, value, since = _VALUES[node.op]
        needs.append(since if attributes.get(key) == value else 0)
    if inputs and inputs[0] is not None:
        needs.append(_TYPES.get(inputs[0], {}).get(node.op, 0))
    return max(needs)
