"""Forms of attention of com.microsoft against onnxruntime; what its CPU lacks, against another form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml
from tests.ops.checking import assert_same, run_reference
from tests.ops.extension_cases import check_all_on, found_by, model_of, runs_everything
from vkml.errors import Error

Array = np.ndarray[Any, Any]
Case = tuple[list[Array | None], dict[str, Any], Sequence[str]]
RANDOM = np.random.default_rng(906)


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def pair(*shape: int) -> list[Array]:
    return [real(*shape), real(*shape)]


B, S, N, H = 2, 4, 2, 8
Q, K, V = (real(B, S, N * H) for _ in range(3))
ONE = [x[:, :1] for x in (Q, K, V)]
BIAS = real(3 * N * H)
PADDED = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
LOWER = np.tril(np.ones((B, S, S), np.int32))
STARTS = whole(2, 4, 0, 4, 8, 0, 4, 8)
PAST, BUFFER = pair(B, N, 3, H), pair(B, N, 9, H)
HEADS, CAUSAL = {"num_heads": N}, {"num_heads": N, "unidirectional": 1}
LITTLE, SCALED = {**HEADS, "mask_filter_value": -2.0}, {**HEADS, "scale": 0.2}
IN_BUFFER = {**HEADS, "past_present_share_buffer": 1}
X, WEIGHTS = real(B, S, 10), real(10, 3 * N * H)
MULTI: dict[str, Case] = {
    "MultiHeadAttention": ([Q, K, V], HEADS, "y"),
    "MultiHeadAttention scaled": ([Q, *pair(B, 5, N * H), BIAS], {**HEADS, "scale": 0.7}, "y"),
    "MultiHeadAttention of narrow values": ([Q, real(B, 5, N * H), real(B, 5, 6)], HEADS, "y"),
    "MultiHeadAttention of lengths": ([Q, K, V, None, whole(2, 4)], HEADS, "y"),
    "MultiHeadAttention of places": ([Q, K, V, None, STARTS], HEADS, "y"),
    "MultiHeadAttention of padding": ([Q, K, V, None, PADDED], CAUSAL, "y"),
    "MultiHeadAttention of a mask a row": ([Q, K, V, None, LOWER], HEADS, "y"),
    "MultiHeadAttention that hides little": ([Q, K, V, None, PADDED], LITTLE, "y"),
    "MultiHeadAttention with numbers": ([Q, K, V, None, PADDED, real(1, N, S, S)], HEADS, "y"),
    "MultiHeadAttention with a past": (
        [Q, K, V, BIAS, np.ones((B, 7), np.int32), real(B, 1, S, 7), *PAST], HEADS, "ykv",
    ),
    "MultiHeadAttention causal with a past": ([Q, K, V, None, None, None, *PAST], CAUSAL, "ykv"),
    "MultiHeadAttention of one row": ([*ONE, None, None, None, *PAST], CAUSAL, "ykv"),
    "MultiHeadAttention in a buffer": ([Q, K, V, None, None, None, *BUFFER, whole(3)], HEADS, "ykv"),
    "MultiHeadAttention causal in a buffer": ([Q, K, V, None, None, None, *BUFFER, whole(3)], CAUSAL, "ykv"),
    "MultiHeadAttention masked in a buffer": (
        [Q, K, V, None, np.array([[1] * 7, [0, *[1] * 6]], np.int32), None, *BUFFER, whole(3)], HEADS, "ykv",
    ),
    "MultiHeadAttention across": ([Q, *pair(B, N, 6, H), BIAS, whole(2, 6)], HEADS, "y"),
    "DecoderMaskedMultiHeadAttention": (
        [*ONE, PADDED, None, *BUFFER, whole(3), None, None, BIAS], IN_BUFFER, "ykv",
    ),
    "DecoderMaskedMultiHeadAttention across": (
        [ONE[0], *pair(B, N, 6, H), np.array([[0, 1, 1, 1, 1, 1]] * 2, np.int32)], HEADS, "y",
    ),
    "Attention": ([X, WEIGHTS, BIAS], HEADS, "yp"),
    "Attention unbiased": ([X, WEIGHTS], CAUSAL, "y"),
    "Attention of lengths": ([X, WEIGHTS, BIAS, whole(2, 4)], HEADS, "y"),
    "Attention of ends and starts": ([X, WEIGHTS, BIAS, whole(2, 4, 1, 0)], CAUSAL, "y"),
    "Attention of padding": ([X, WEIGHTS, BIAS, PADDED, None, real(1, N, S, S)], SCALED, "y"),
    "Attention of a mask a row": ([X, WEIGHTS, BIAS, LOWER], HEADS, "y"),
    "Attention with a past": ([X, WEIGHTS, BIAS, whole(5, 7), real(2, B, N, 3, H)], CAUSAL, "yp"),
    "Attention of widths": ([X, real(10, 36), real(36)], {**HEADS, "qkv_hidden_sizes": [16, 16, 4]}, "y"),
}  # fmt: skip

SHARED = {"num_heads": 4, "kv_num_heads": 2}
TURNED = {**SHARED, "do_rotary": 1}
TABLES = pair(32, 8)
WINDOW = {**TURNED, "local_window_size": 3}


def grouped(
    batch: int, rows: int, places: int | None, *ends: int, more: Sequence[Array | None] = ()
) -> list[Any]:
    """Inputs of GroupQueryAttention: of before, `places` have room and `ends` have been filled."""
    given = [real(batch, rows, heads * 16) for heads in (4, 2, 2)]
    past = [None, None] if places is None else pair(batch, 2, places, 16)
    return [*given, *past, whole(*(end - 1 for end in ends)), np.array(max(ends), np.int32), *more]


SINK = [None, None, real(4)]
GROUPED: dict[str, Case] = {
    "GroupQueryAttention of a prompt": (grouped(2, 5, None, 5, 5, more=TABLES), TURNED, "ykv"),
    "GroupQueryAttention capped": (
        grouped(1, 5, None, 5, more=TABLES),
        {**TURNED, "rotary_interleaved": 1, "scale": 0.3, "softcap": 3.0},
        "ykv",
    ),
    "GroupQueryAttention packed": (
        [real(2, 5, 8 * 16), *[None] * 4, whole(4, 4), np.array(5, np.int32), *TABLES], TURNED, "ykv",
    ),
    "GroupQueryAttention of a window": (grouped(1, 5, None, 5, more=TABLES), WINDOW, "ykv"),
    "GroupQueryAttention of one row": (grouped(1, 1, 6, 7, more=TABLES), WINDOW, "ykv"),
    "GroupQueryAttention of unlike batches": (grouped(2, 1, 6, 7, 4, more=TABLES), WINDOW, "ykv"),
    "GroupQueryAttention in a buffer": (grouped(1, 1, 12, 7, more=TABLES), TURNED, "ykv"),
    "GroupQueryAttention of two in a buffer": (grouped(2, 1, 12, 7, 5, more=TABLES), TURNED, "ykv"),
    "GroupQueryAttention of a prompt in a buffer": (grouped(1, 5, 12, 5, more=TABLES), TURNED, "ykv"),
    "GroupQueryAttention of a chunk": (
        grouped(1, 3, 12, 7, more=[*TABLES, np.array([[4, 6, 8]])]), TURNED, "ykv",
    ),
    "GroupQueryAttention with numbers": (
        grouped(2, 1, 4, 5, 5, more=[None, None, None, real(2, 1, 1, 5)]), SHARED, "ykv",
    ),
    "GroupQueryAttention smooth": (grouped(2, 5, None, 5, 5), {**SHARED, "smooth_softmax": 1}, "ykv"),
    "GroupQueryAttention with a sink": (
        grouped(1, 5, None, 5, more=[None, None, None, real(1, 1, 5, 5), real(4)]),
        {**SHARED, "qk_output": 1, "softcap": 2.0},
        "ykvs",
    ),
    "GroupQueryAttention of unlike batches with a sink": (
        grouped(2, 1, 6, 7, 4, more=[*TABLES, *SINK]), WINDOW, "ykv",
    ),
    "GroupQueryAttention that shows weights": (grouped(1, 1, 6, 7), {**SHARED, "qk_output": 2}, "ykvs"),
    "GroupQueryAttention without order": (grouped(2, 5, None, 5, 2), {**SHARED, "causal": 0}, "ykv"),
    "RotaryEmbedding": ([real(2, 5, 64), np.tile(np.arange(5), (2, 1)), *TABLES], {}, "y"),
    "RotaryEmbedding of heads": ([real(2, 4, 5, 16), np.array([3]), *TABLES], {"interleaved": 1}, "y"),
    "RotaryEmbedding of a part": (
        [real(2, 5, 64), np.array([3]), *pair(32, 4)], {"num_heads": 4, "rotary_embedding_dim": 8}, "y",
    ),
    "RotaryEmbedding of batches in a row": (
        [real(1, 5, 64), np.array([[0, 1, 0, 1, 2]]), *TABLES], {"is_packed_batching": 1, "scale": 2.0}, "y",
    ),
}  # fmt: skip


def kept(
    bits: int, kind: str, batch: int, rows: int, places: int | None, *ends: int, turns: bool = True
) -> Case:
    """GroupQueryAttention whose keys and values are kept as integers."""
    count = 32 if kind == "PER_CHANNEL" else 1
    scales = [np.abs(real(count)) / 20 + 0.01 for _ in range(2)]
    if bits == 4:
        scales = [16 * each for each in scales]
    inputs = grouped(
        batch, rows, None, *ends, more=[*(TABLES if turns else (None, None)), None, None, None, *scales]
    )
    if places is not None:
        random = np.random.default_rng(bits)
        codes = random.integers(0, 256, (2, batch, 2, places, 16 * bits // 8)).astype(np.uint8)
        inputs[3:5] = codes if bits == 4 else codes.view(np.int8)
    stated = {**SHARED, "kv_cache_bit_width": bits, "k_quant_type": kind, "v_quant_type": kind}
    return inputs, {**stated, "do_rotary": int(turns)}, "ykv"


QUANTIZED: dict[str, Case] = {
    "GroupQueryAttention of bytes": kept(8, "PER_TENSOR", 2, 1, 12, 7, 5),
    "GroupQueryAttention of bytes, a scale a column": kept(8, "PER_CHANNEL", 1, 1, 12, 7),
    "GroupQueryAttention of bytes, a chunk": kept(8, "PER_TENSOR", 1, 3, 12, 9, turns=False),
    "GroupQueryAttention of bytes, a prompt": kept(8, "PER_TENSOR", 2, 5, 0, 5, 5),
    "GroupQueryAttention of bytes that grow": kept(8, "PER_CHANNEL", 1, 1, 6, 7),
    "GroupQueryAttention of halves of bytes": kept(4, "PER_TENSOR", 2, 1, 12, 7, 5),
    "GroupQueryAttention of halves of bytes, a scale a column": kept(4, "PER_CHANNEL", 1, 2, 6, 6),
    "GroupQueryAttention of halves of bytes, a prompt": kept(4, "PER_CHANNEL", 1, 5, 8, 5),
}
CASES = {**MULTI, **GROUPED, **QUANTIZED}


def case(name: str) -> tuple[Any, dict[str, Array]]:
    return model_of(name.split()[0], *CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str) -> None:
    model, feed = case(name)
    expected = run_reference(model, feed)
    found = found_by(model, feed)
    assert len(found) == len(expected)
    for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if at in (1, 2) and name.startswith("Group"):
            # Behind what has been filled, a buffer holds what it held, or 0.
            filled = np.arange(mine.shape[2]) <= feed["x5"].reshape(-1, 1, 1)
            mine, theirs = (np.where(filled[..., None], each, 0) for each in (mine, theirs))
        assert_same(mine, theirs, 1e-5, 1e-5, f"{name} {at}")


ON_DEVICES = (
    "MultiHeadAttention of padding",
    "MultiHeadAttention causal in a buffer",
    "Attention with a past",
    "GroupQueryAttention of a window",
    "GroupQueryAttention of unlike batches with a sink",
    "GroupQueryAttention of bytes, a scale a column",
    "GroupQueryAttention of halves of bytes",
    "RotaryEmbedding of a part",
)


def test_a_device_runs_all_of_their_parts(vulkan_device_name: str) -> None:
    check_all_on(vulkan_device_name, map(case, ON_DEVICES))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        (
            "MultiHeadAttention",
            [*pair(2, 24, 32), real(2, 24, 32), None, np.ones((2, 31), np.int32), None, *pair(2, 2, 7, 16)],
            CAUSAL,
        ),
        ("GroupQueryAttention", grouped(2, 16, 30, 30, 28, more=TABLES), WINDOW | {"local_window_size": 9}),
    ],
)  # fmt: skip
def test_it_is_one_launch_where_there_are_matrix_units(
    unit: str, op: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    model, feed = model_of(op, inputs, attributes, "ykv")
    if "x6" in feed and feed["x6"].ndim == 0:  # the number of keys decides shapes: reports want it, too
        model.graph.initializer.append(numpy_helper.from_array(feed.pop("x6"), "x6"))
        model.graph.input.remove(next(each for each in model.graph.input if each.name == "x6"))
    with vkml.InferenceSession(model.SerializeToString(), devices=unit, precision="high") as session:
        found = session.run(None, feed)
        steps = session.report().steps
    assert not [step for step in steps if "Softmax" in step.operators]
    assert [step.kernel for step in steps if "Attention" in step.operators and step.kernel == "attention"]
    # Operands in halfs or TF32, ten bits behind the point each: as tests/ops/test_attention.py.
    np.testing.assert_allclose(found[0], found_by(model, feed)[0], rtol=4e-3, atol=4e-3)


def test_half_precision() -> None:
    inputs, attributes, outputs = CASES["GroupQueryAttention in a buffer"]
    wide = found_by(*model_of("GroupQueryAttention", inputs, attributes, outputs))
    half = [x if x is None or x.dtype != np.float32 else x.astype(np.float16) for x in inputs]
    for mine, theirs in zip(
        found_by(*model_of("GroupQueryAttention", half, attributes, outputs)), wide, strict=True
    ):
        assert mine.dtype == np.float16
        # Halfs between the operators: a few roundings of 2^-11 each.
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def split(x: Array, parts: int) -> list[Array]:
    """(batch, rows, heads, parts, columns), each part with its heads side by side."""
    return [x[:, :, :, at].reshape(*x.shape[:2], -1) for at in range(parts)]


def test_packed_heads_are_what_they_hold() -> None:
    three, two = real(B, S, N, 3, H), real(B, 5, N, 2, H)
    for packed, apart in (
        ([three, None, None, BIAS], [*split(three, 3), BIAS]),
        ([np.concatenate(split(three, 3), 2), None, None, BIAS], [*split(three, 3), BIAS]),
        ([Q, two], [Q, *split(two, 2)]),
    ):
        [found] = found_by(*model_of("MultiHeadAttention", packed, HEADS, "y"))
        [expected] = run_reference(*model_of("MultiHeadAttention", apart, HEADS, "y"))
        assert_same(found, expected, 1e-5, 1e-5)


def projected(x: Array, past: Array | None = None, rotary: int = 0) -> list[Array | None]:
    """What MultiHeadAttention is given in the place of Attention."""
    parts = np.split(x @ WEIGHTS + BIAS, 3, axis=2)
    if rotary:
        place = np.arange(x.shape[1]) + (0 if past is None else past.shape[3])
        angles = place[:, None] * 10000.0 ** -(np.arange(0, rotary, 2) / rotary)
        turn = np.exp(1j * angles)[:, None]
        for at in (0, 1):
            heads = parts[at].reshape(*x.shape[:2], N, H).copy()
            pairs = (heads[..., : rotary // 2] + 1j * heads[..., rotary // 2 : rotary]) * turn
            heads[..., :rotary] = np.concatenate([pairs.real, pairs.imag], -1)
            parts[at] = heads.reshape(parts[at].shape)
    return [*parts, None, None, None, *([None] * 2 if past is None else past)]


def test_attention_is_that_of_products() -> None:
    past, buffer = real(2, B, N, 3, H), real(2, B, N, 9, H)
    places = np.tril(np.ones((B, 1, 9, 9), np.int32))
    mask = np.tril(np.ones((B, S, 7), np.int32), 3)
    for inputs, attributes, others, more in (
        ([None, past], {"do_rotary": 1}, projected(X, past, H), {}),
        ([], {"do_rotary": 1, "rotary_embedding_dim": 4}, projected(X, None, 4), {}),
        ([places, past], {}, [*projected(X, past)[:4], mask, None, *past], {}),
        ([None, buffer, None, whole(3)], IN_BUFFER, [*projected(X, buffer), whole(3)], {}),
        ([None, past, real(1, N, S, 7)], {"unidirectional": 1}, None, CAUSAL),
    ):  # fmt: skip
        if others is None:
            others = [*projected(X)[:5], inputs[2], *past]
        found, cache = found_by(*model_of("Attention", [X, WEIGHTS, BIAS, *inputs], HEADS | attributes, "yp"))
        expected, *caches = run_reference(*model_of("MultiHeadAttention", others, HEADS | more, "ykv"))
        assert_same(found, expected, 1e-5, 1e-5)
        assert_same(cache, np.stack(caches), 1e-5, 1e-5)


def test_queries_and_keys_of_root_mean_square_1() -> None:
    inputs, attributes, outputs = CASES["GroupQueryAttention of one row"]
    scales = pair(16)
    plain = [*inputs, *[None] * (14 - len(inputs)), *scales]
    found = found_by(
        *model_of("GroupQueryAttention", plain, {**attributes, "qk_norm_epsilon": 1e-3}, outputs)
    )
    given = list(inputs)
    for at, scale in zip((0, 1), scales, strict=True):
        x = inputs[at]
        assert x is not None
        heads = x.reshape(*x.shape[:2], -1, 16)
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3) * scale
        given[at] = heads.reshape(x.shape)
    expected = run_reference(*model_of("GroupQueryAttention", given, attributes, outputs))
    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine, theirs, 1e-5, 1e-5)


def decoder(op: str, attributes: dict[str, Any]) -> Any:
    """A node whose past has an open length, and a mask that is as long as all keys."""
    names = ["q", "k", "v", "past_k", "past_v"]
    nodes = [
        helper.make_node("Shape", ["mask"], ["count"], start=1, end=2),
        helper.make_node("Cast", ["count"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "axes"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["ends"], to=TensorProto.INT32),
        helper.make_node(
            op, [*names, "ends", "total", "cos", "sin"], ["y", "new_k", "new_v"], "node",
            domain="com.microsoft", **attributes,
        ),
    ]  # fmt: skip
    dims = [[1, "rows", 64], [1, "rows", 32], [1, "rows", 32], [1, 2, "past", 16], [1, 2, "past", 16]]
    feeds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, each)
        for name, each in zip(names, dims, strict=True)
    ]
    feeds.append(helper.make_tensor_value_info("mask", TensorProto.INT64, [1, "all"]))
    constants = {"axes": np.array([1]), "one": np.array(1), "cos": TABLES[0], "sin": TABLES[1]}
    graph = helper.make_graph(
        nodes, "decoder", feeds, [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_a_past_that_grows_is_one_plan(either_device_name: str) -> None:
    model = decoder("GroupQueryAttention", TURNED)
    past = pair(1, 2, 0, 16)
    strict = runs_everything(either_device_name)
    with vkml.InferenceSession(
        model.SerializeToString(), devices=either_device_name, strict=strict
    ) as session:
        for rows in (5, 1, 1, 1, 1, 1):
            own = [real(1, rows, heads * 16) for heads in (4, 2, 2)]
            mask = np.ones((1, past[0].shape[2] + rows), np.int64)
            feed = dict(zip(("q", "k", "v", "past_k", "past_v", "mask"), [*own, *past, mask], strict=True))
            found, expected = session.run(None, feed), run_reference(model, feed)
            for mine, theirs in zip(found, expected, strict=True):
                assert_same(mine, theirs, 1e-4, 1e-5)
            past = expected[1:]
        assert len(session._runner.plans.kept) <= 4, "a prompt, its first row, and all that follow"


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("MultiHeadAttention", [Q, K, V], {"num_heads": 3}, "16 columns of queries are no 3 heads"),
        ("MultiHeadAttention", [Q, K, V, None, whole(1, 2, 3)], HEADS, r"mask has the shape \[3\]"),
        ("MultiHeadAttention", [Q, K], HEADS, "keys and no values"),
        ("MultiHeadAttention", [Q, K, V, *[None] * 3, *BUFFER, whole(3), whole(1)], HEADS, "several beams"),
        ("MultiHeadAttention", [Q, K, V, None, None, None, PAST[0]], HEADS, "come together"),
        ("Attention", [X, real(10, 20)], HEADS, "20 columns of weights"),
        ("Attention", [X, WEIGHTS, None, None, BUFFER[0]], IN_BUFFER, "come together"),
        ("GroupQueryAttention", grouped(1, 2, 4, 7), SHARED, "7 keys, of which 2 are this call's, with 4"),
        ("GroupQueryAttention", grouped(1, 2, None, 2), TURNED, "without tables"),
        ("GroupQueryAttention", grouped(1, 2, None, 2), SHARED | {"num_heads": 3}, "3 heads of queries"),
        ("RotaryEmbedding", [real(2, 5, 64), np.array([3, 4]), *TABLES], {}, r"must be \[1\] or \[2, 5\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    op: str, inputs: list[Array | None], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Error, match=message):
        found_by(*model_of(op, inputs, attributes, "y"))


@pytest.mark.parametrize("attributes", [SHARED, TURNED, WINDOW, {**TURNED, "qk_output": 2}])
@pytest.mark.parametrize(("ends", "counts"), [((7, 5), (4, 2)), ((4, 3), (4, 1)), ((9, 9), (1, 3))])
def test_rows_that_do_not_count(
    attributes: dict[str, Any], ends: tuple[int, int], counts: tuple[int, int], either_device_name: str
) -> None:
    """Chunks filled up on the right: rows that count are as onnxruntime has them, whatever the others are."""
    given = grouped(2, 4, 12, *ends, more=TABLES if attributes.get("do_rotary") else [None, None])
    given += [None] * (16 - len(given)) + [whole(*counts)]
    outputs = "ykvs" if "qk_output" in attributes else "ykv"
    model, feed = model_of("GroupQueryAttention", given, attributes, outputs)
    expected = run_reference(model, feed)
    for spoiled in (False, True):
        for at in range(3) if spoiled else ():
            for batch, count in enumerate(counts):
                feed[f"x{at}"][batch, count:] = np.nan
        with vkml.InferenceSession(model.SerializeToString(), devices=either_device_name) as session:
            found = session.run(None, feed)
        for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            assert mine.shape == theirs.shape
            for batch, (end, count) in enumerate(zip(ends, counts, strict=True)):
                part: Any = {0: np.s_[batch, :count], 3: np.s_[batch, :, :count, :end]}
                seen = part.get(at, np.s_[batch, :, :end])
                assert_same(mine[seen], theirs[seen], 2e-5, 2e-5, f"{at}")


def test_rows_that_do_not_count_need_no_room() -> None:
    """Behind what a buffer holds, or without one: onnxruntime refuses both."""
    for places, ends, counts in ((None, (4, 2), (4, 2)), (9, (9, 8), (1, 2))):
        given = grouped(2, 4, places, *ends, more=TABLES)
        given += [None] * (16 - len(given)) + [whole(*counts)]
        model, feed = model_of("GroupQueryAttention", given, TURNED, "ykv")
        found = found_by(model, feed)
        for batch, (end, count) in enumerate(zip(ends, counts, strict=True)):
            own = [None if x is None else x[batch : batch + 1] for x in given[:5]]
            own = [None if x is None else x[:, :count] for x in own[:3]] + own[3:]
            inputs = [*own, whole(end - 1), np.array(end, np.int32), *TABLES]
            alone = found_by(*model_of("GroupQueryAttention", inputs, TURNED, "ykv"))
            assert_same(found[0][batch, :count], alone[0][0], 1e-5, 1e-5)
            for mine, theirs in zip(found[1:], alone[1:], strict=True):
                assert_same(mine[batch, :, :end], theirs[0, :, :end], 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_quant_type": "PER_ROW"}, "one of NONE"),
        ({"kv_cache_bit_width": 5}, "4 or 8, not 5"),
        ({"k_quant_type": "NONE"}, "k_scale is there"),
        ({"kv_cache_bit_width": 4}, "uint8"),
    ],
)
def test_what_cannot_be_kept(change: dict[str, Any], message: str) -> None:
    inputs, attributes, outputs = CASES["GroupQueryAttention of bytes"]
    model, feed = model_of("GroupQueryAttention", inputs, {**attributes, **change}, outputs)
    with pytest.raises(vkml.Error, match=message):
        found_by(model, feed)
