"""LinearAttention: a state of keys and values that every row decays, writes to and reads, as a Loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import BOOL, FLOAT32, INT64
from vkml.ir.graph import Graph, Node, Value
from vkml.ir.operator import INT, REQUIRED, register
from vkml.ir.types import UNKNOWN, TensorType
from vkml.ops.extension import Extension, Writer

_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Whether the state decays, and whether it is corrected by what it holds already."""


def _rows_first(build: Writer, x: str, *sizes: int) -> str:
    """(batch, rows, columns) in float32 as (rows, batch, *sizes), of which one is -1: what is left."""
    wide = build.apply("Cast", x, to=FLOAT32.code)
    apart = build.apply("Reshape", wide, build.constant([0, 0, *sizes], INT64))
    return build.apply("Transpose", apart, perm=(1, 0, *range(2, 2 + len(sizes))))


def _scaled(build: Writer, q: str, scale: float) -> str:
    """Queries times the scale, by default one over the root of their columns."""
    if scale:
        return build.apply("Mul", q, build.constant(scale, FLOAT32))
    columns = build.apply("Cast", build.apply("Shape", q, start=4), to=FLOAT32.code)
    return build.apply("Div", q, build.apply("Sqrt", columns))


def _first_state(build: Writer, q: str, k: str, v: str) -> str:
    """Zeros (batch, heads, columns of keys, columns of values)."""
    sizes = [build.apply("Shape", x, start=at, end=at + 1) for x, at in ((q, 1), (k, 2), (k, 4), (v, 4))]
    return build.apply("ConstantOfShape", build.apply("Concat", *sizes, axis=0))


def _body(build: Writer, rows: dict[str, str]) -> Graph:
    """One row: the state before it → that behind it, and what the row reads of it.

    Args:
        build: the writer of what is around.
        rows: the values that rows are taken of, by what they are: q, k, v, decay, beta.
    """
    names = [build.name(f"trip/{what}") for what in ("number", "condition", "state")]
    inner = Writer(Node("Loop", (), (build.name("trip"),), {}, build.node.name, within=build.within))
    number, condition, state = names
    row = {what: inner.apply("Gather", value, number, axis=0) for what, value in rows.items()}
    if "decay" in row:
        state = inner.apply("Mul", state, inner.apply("Exp", row["decay"]))
    value = row["v"]
    if "beta" in row:
        held = inner.apply("MatMul", row["k"], state)
        value = inner.apply("Mul", row["beta"], inner.apply("Sub", value, held))
    column = inner.apply("Transpose", row["k"], perm=(0, 1, 3, 2))
    state = inner.apply("Add", state, inner.apply("Mul", column, value))
    made = inner.apply("MatMul", row["q"], state)
    goes_on = inner.apply("Identity", condition)
    inputs = (
        Value(number, TensorType(INT64, ())),
        Value(condition, TensorType(BOOL, ())),
        Value(names[2], TensorType(FLOAT32, None)),
    )
    outputs = tuple(Value(name, UNKNOWN) for name in (goes_on, state, made))
    return Graph(inputs, outputs, tuple(inner.nodes), {}, name="row")


def _linear_attention(build: Writer) -> Sequence[Node]:
    rule = build.stated("update_rule", _ATTRIBUTES["update_rule"])
    heads, shared = (build.stated(key, REQUIRED) for key in ("q_num_heads", "kv_num_heads"))
    label = build.node.label
    if rule not in _RULES:
        raise InvalidGraph(f"{label}: update_rule {rule!r} is none of {', '.join(_RULES)}")
    if heads < 1 or shared < 1 or heads % shared:
        raise InvalidGraph(f"{label}: {heads} heads of queries share {shared} of keys")
    for at, (what, is_wanted) in enumerate(zip(("decay", "beta"), _RULES[rule], strict=True), 4):
        if bool(build.given(at)) != is_wanted:
            has = "needs" if is_wanted else "has no"
            raise InvalidGraph(f"{label}: the update rule {rule!r} {has} input {at}, {what}")
    q = _rows_first(build, build.given(0), shared, heads // shared, -1)
    k, v = (_rows_first(build, build.given(at), shared, 1, -1) for at in (1, 2))
    rows = {"q": _scaled(build, q, build.stated("scale", 0.0)), "k": k, "v": v}
    if build.given(4):
        rows["decay"] = _rows_first(build, build.given(4), shared, -1, 1)
    if build.given(5):
        rows["beta"] = _rows_first(build, build.given(5), -1, 1, 1)
    past = build.given(3)
    state = build.apply("Cast", past, to=FLOAT32.code) if past else _first_state(build, q, k, v)
    count = build.apply("Squeeze", build.apply("Shape", q, start=0, end=1))
    goes_on = build.constant(np.array(True), BOOL)
    last, read = build.name("state"), build.name("rows")
    build.apply_to((last, read), "Loop", count, goes_on, state, body=_body(build, rows))
    back = build.apply("Transpose", read, perm=(1, 0, 2, 3, 4))
    flat = build.apply("Reshape", back, build.constant([0, 0, -1], INT64))
    build.apply("CastLike", flat, build.given(0), made=build.wanted(0))
    if build.wanted(1):
        build.apply("CastLike", last, past or build.given(0), made=build.wanted(1))
    return build.nodes


_ATTRIBUTES = {
    "chunk_size": 64,
    "kv_num_heads": REQUIRED,
    "q_num_heads": REQUIRED,
    "scale": 0.0,
    "update_rule": "gated_delta",
}
_TYPES = {"kv_num_heads": INT, "q_num_heads": INT}

for _domain in ("", "com.microsoft"):
    register(
        Extension("LinearAttention", (3, 6), _linear_attention, _ATTRIBUTES, _TYPES, (1, 2), domain=_domain)
    )
