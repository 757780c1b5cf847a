"""Attention: shared heads, masks, caches, windows."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Skip
from tests.fuzz.recipes.registry import recipe
from tests.fuzz.tensors import BOOL, FLOAT, FLOAT16, INT64


@recipe("Attention")
def attention(build: GraphBuilder, op: str) -> None:
    if build.opset < 23:
        raise Skip("not there yet")
    code = build.pick(FLOAT, FLOAT, FLOAT16)
    batch, shared, group = (build.integer(1, 2) for _ in range(3))
    rows, keys, past = build.integer(1, 5), build.integer(1, 5), build.pick(None, 0, 3)
    size, columns = build.integer(1, 5), build.integer(1, 4)
    shapes = [
        (batch, shared * group, rows, size),
        (batch, shared, keys, size),
        (batch, shared, keys, columns),
    ]
    attributes: dict[str, object] = {
        "is_causal": build.pick(None, 0, 1),
        "softcap": build.pick(None, 0.0, 2.0),
        "scale": build.pick(None, 0.5),
    }
    if build.chance(0.4):
        shapes = [(each[0], each[2], each[1] * each[3]) for each in shapes]
        attributes |= {"q_num_heads": shared * group, "kv_num_heads": shared}
    given = [build.new(code, shape) for shape in shapes]
    before = (
        [None, None]
        if past is None
        else [build.new(code, (batch, shared, past, each)) for each in (size, columns)]
    )
    whole = keys + (past or 0)
    mask = None
    if build.chance(0.5):
        shape = build.pick((rows, whole), (1, whole), (batch, 1, rows, whole))
        mask = build.new(build.pick(BOOL, code), shape)
    lengths = None
    if build.opset >= 24 and past is None and build.chance(0.3):
        lengths = build.constant(np.array([build.integer(1, keys) for _ in range(batch)]), INT64)
    if build.opset >= 25 and build.chance(0.3):
        attributes |= {
            "left_window_size": build.pick(None, 0, 2),
            "right_window_size": build.pick(None, 0, 1),
        }
    outputs = build.pick(1, 3, 4) if past is not None else 1
    # Not 2: onnxruntime shows the least number where a mask has made -infinity.
    attributes["qk_matmul_output_mode"] = build.pick(0, 1, 3) if outputs == 4 else None
    build.node(op, [*given, mask, *before, lengths], attributes, outputs=outputs)


@recipe("RotaryEmbedding")
def rotary(build: GraphBuilder, op: str) -> None:
    if build.opset < 23:
        raise Skip("not there yet")
    code = build.pick(FLOAT, FLOAT, FLOAT16)
    batch, heads, rows, pairs = (build.integer(1, 3) for _ in range(4))
    rest = build.pick(0, 0, 2)
    columns = 2 * pairs + rest
    attributes: dict[str, object] = {"interleaved": build.pick(None, 0, 1)}
    attributes["rotary_embedding_dim"] = 2 * pairs if rest else build.pick(None, 0)
    shape: tuple[int, ...] = (batch, heads, rows, columns)
    if build.chance(0.5):
        shape, attributes["num_heads"] = (batch, rows, heads * columns), heads
    positions, table = None, (batch, rows, pairs)
    if build.chance(0.5):
        positions = build.constant(build.rng.integers(0, 5, (batch, rows)), INT64)
        table = (5, pairs)  # type: ignore[assignment]
    given = [build.new(code, each) for each in (shape, table, table)]
    build.node(op, [*given, positions], attributes)


@recipe("CausalConvWithState")
def causal_conv(build: GraphBuilder, op: str) -> None:
    if build.opset < 27:
        raise Skip("not there yet")
    code = build.pick(FLOAT, FLOAT, FLOAT16)
    batch, channels, length, kernel = (build.integer(1, 4) for _ in range(4))
    x, weight = build.new(code, (batch, channels, length)), build.new(code, (channels, 1, kernel))
    bias = build.new(code, (channels,)) if build.chance(0.5) else None
    past = build.new(code, (batch, channels, kernel - 1)) if build.chance(0.5) else None
    attributes = {"activation": build.pick(None, "none", "silu")}
    build.node(op, [x, weight, bias, past], attributes, outputs=build.pick(1, 2))


@recipe("LinearAttention")
def linear_attention(build: GraphBuilder, op: str) -> None:
    if build.opset < 27:
        raise Skip("not there yet")
    code = build.pick(FLOAT, FLOAT, FLOAT16)
    batch, rows, shared, group, size, columns = (build.integer(1, 3) for _ in range(6))
    rule = build.pick("linear", "gated", "delta", "gated_delta")
    widths = (shared * group * size, shared * size, shared * columns)
    given = [build.new(code, (batch, rows, width)) for width in widths]
    past = build.new(build.pick(code, FLOAT), (batch, shared, size, columns)) if build.chance(0.5) else None
    decays, beta = build.pick(shared, shared * size), build.pick(shared, 1)
    decay = build.new(code, (batch, rows, decays)) if "gated" in rule else None
    rate = build.new(code, (batch, rows, beta)) if "delta" in rule else None
    attributes = {"q_num_heads": shared * group, "kv_num_heads": shared, "update_rule": rule}
    build.node(op, [*given, past, decay, rate], attributes, outputs=build.pick(1, 2))
