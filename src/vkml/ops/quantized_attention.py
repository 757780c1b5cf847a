"""QAttention and QEmbedLayerNormalization of com.microsoft: others between numbers dequantised."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import NotImplemented
from vkml.ir.dtypes import FLOAT32, INT64
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, OPTIONAL, REQUIRED, register
from vkml.ops.extension import Extension, Writer


def _attention(build: Writer) -> Sequence[Node]:
    """MultiHeadAttention of a product of integers."""
    x, weight, bias, x_scale, weight_scale, mask, x_zero, weight_zero, past = map(build.given, range(9))
    for key in ("do_rotary", "past_present_share_buffer"):
        if build.stated(key, 0):
            raise NotImplemented(f"{build.node.label}: {key}=1 is not supported")
    sums = build.apply("Cast", build.apply("MatMulInteger", x, weight, x_zero, weight_zero), to=FLOAT32.code)
    product = build.apply("Mul", sums, build.apply("Mul", x_scale, weight_scale))
    parts = build.apply("Split", build.apply("Add", product, bias), outputs=3, axis=-1, num_outputs=3)
    first = build.constant([0], INT64)
    before: list[str] = ["", ""]
    if past:
        halves = build.apply("Split", past, outputs=2, axis=0, num_outputs=2)
        before = [build.apply("Squeeze", each, first) for each in (halves, f"{halves}:1")]
    caches = [build.name(what) if build.wanted(1) else "" for what in ("keys", "values")]
    heads = [parts, f"{parts}:1", f"{parts}:2"]
    build.apply_to(
        [build.wanted(0), *caches], "MultiHeadAttention", *heads, "", mask, "", *before,
        domain="com.microsoft",
        num_heads=build.stated("num_heads", REQUIRED),
        unidirectional=build.stated("unidirectional", 0),
        scale=build.stated("scale", None),
        mask_filter_value=build.stated("mask_filter_value", None),
    )  # fmt: skip
    if build.wanted(1):
        layers = [build.apply("Unsqueeze", each, first) for each in caches]
        build.apply("Concat", *layers, made=build.wanted(1), axis=0)
    return build.nodes


def _embedding(build: Writer) -> Sequence[Node]:
    """EmbedLayerNormalization of tables dequantised."""

    def numbers(at: int) -> str:
        # The scales of the five that are quantised follow the mask, in their order, then the zero points.
        scale = (2, 3, 4, 5, 6).index(at) + 8
        given = [build.given(each) for each in (at, scale, scale + 5)]
        return build.apply("DequantizeLinear", *given) if given[0] else ""

    tables = [numbers(at) for at in (2, 3, 4, 5, 6)]
    inputs = [build.given(0), build.given(1), *tables, build.given(7)]
    epsilon = build.stated("epsilon", _EPSILON["epsilon"])
    build.apply_to(
        build.node.outputs, "EmbedLayerNormalization", *inputs, domain="com.microsoft", epsilon=epsilon
    )
    return build.nodes


_EPSILON = {"epsilon": 1e-12}
_ATTENTION = {
    "do_rotary": 0,
    "mask_filter_value": OPTIONAL,
    "num_heads": REQUIRED,
    "past_present_share_buffer": 0,
    "scale": OPTIONAL,
    "unidirectional": 0,
}

register(
    Extension(
        "QAttention",
        (5, 9),
        _attention,
        _ATTENTION,
        {"mask_filter_value": FLOAT, "num_heads": INT, "scale": FLOAT},
        outputs=(1, 2),
    )
)
register(Extension("QEmbedLayerNormalization", (12, 18), _embedding, _EPSILON, outputs=(1, 2)))
