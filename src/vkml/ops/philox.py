"""Philox4x32-10: random words from a key and a counter, the same bits on every device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import INT32, UINT32
from vkml.ir.graph import Constant, Graph, Node, Value
from vkml.ir.lowering import Lowering, V, all_given
from vkml.ir.operator import REQUIRED, Array, Operator, operator
from vkml.ir.scalar import Scalar, argument, binary, compare, convert, where
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.scalar_evaluation import evaluate

STATE_WORDS = 6
"""Of a generator's state: the key (the seed, low word first), then the number of the next block."""
COLUMNS = 1024
"""Blocks that differ in the low part of their number alone: two short constants count all blocks."""
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""Constants of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as
easy as 1, 2, 3", Supercomputing 2011, section 3.3 and its library Random123."""


def blocks_of(words: int) -> int:
    """How many blocks of four words are drawn for so many words."""
    blocks = -(-words // 4)
    return blocks if blocks <= COLUMNS else -(-blocks // COLUMNS) * COLUMNS


def philox(counter: Sequence[Scalar], key: Sequence[Scalar]) -> list[Scalar]:
    """The four words of the block that a counter of four words numbers, under a key of two."""
    words, (low, high) = list(counter), key
    for _ in range(ROUNDS):
        first, second = (_product(words[at], MULTIPLIERS[at // 2]) for at in (0, 2))
        words = [second[1] ^ words[1] ^ low, second[0], first[1] ^ words[3] ^ high, first[0]]
        low, high = low + KEY_STEPS[0], high + KEY_STEPS[1]
    return words


def _product(x: Scalar, y: int) -> tuple[Scalar, Scalar]:
    """The low and the high word of a product, from halves of 16 bits: devices may lack 64-bit integers."""
    x_low, x_high = x & 0xFFFF, _shifted(x)
    y_low, y_high = y & 0xFFFF, y >> 16
    middle = x_high * y_low + _shifted(x_low * y_low)
    carried = x_low * y_high + (middle & 0xFFFF)
    return x * y, x_high * y_high + _shifted(middle) + _shifted(carried)


def _shifted(x: Scalar) -> Scalar:
    return binary("right_shift", x, 16)


def advanced(counter: Sequence[Scalar], count: Scalar) -> list[Scalar]:
    """A counter of words, the lowest first, plus a number of one word."""
    found = []
    for word in counter:
        total = word + count
        found.append(total)
        count = convert(compare("less", total, word), UINT32)
    return found


def _uint32(at: int) -> Scalar:
    return argument(at, UINT32)


@functools.lru_cache(maxsize=1)
def _forms() -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """The words of a block, of the state's words, the blocks before, row and column; and the next state.

    That has the word's place as its last argument.
    """
    key, counter = [_uint32(0), _uint32(1)], [_uint32(at) for at in range(2, STATE_WORDS)]
    skip = _uint32(STATE_WORDS)
    row, column = (convert(argument(STATE_WORDS + at, INT32), UINT32) for at in (1, 2))
    # Not skip + number: that may pass 32 bits.
    words = philox(advanced(advanced(counter, skip), row * COLUMNS + column), key)
    place = argument(STATE_WORDS + 1, INT32)
    after = key[0]
    for at, word in enumerate([key[1], *advanced(counter, skip)], 1):
        after = where(compare("equal", place, at), word, after)
    return tuple(words), (after,)


@functools.lru_cache(maxsize=64)
def _body(is_next: bool, dims: tuple[int, ...]) -> Graph:
    """The forms as the body of a kernel over so many places."""
    forms = _forms()[is_next]
    positions = 1 if is_next else 2
    inputs = tuple(
        Value(f"x{at}", TensorType(UINT32 if at <= STATE_WORDS else INT32, dims))
        for at in range(STATE_WORDS + 1 + positions)
    )
    names = tuple(value.name for value in inputs)
    nodes = tuple(
        Node("Expression", names, (f"y{at}",), {"form": form, "to": UINT32.code}, f"philox {at}", "vkml", 1)
        for at, form in enumerate(forms)
    )
    types = {f"y{at}": TensorType(UINT32, dims) for at in range(len(forms))}
    outputs = tuple(Value(name, type_) for name, type_ in types.items())
    return Graph(inputs, outputs, nodes, {}, types, name="philox")


def _checked(node: Node, inputs: Sequence[Known | None]) -> None:
    state, count = required(node, inputs, 0), required(node, inputs, 1)
    require_dtype(node, state, (UINT32,), "the state")
    require_dtype(node, count, (UINT32,), "the number of blocks")
    if state.dims != (STATE_WORDS,) or count.dims != ():
        raise InvalidGraph(
            f"{node.label}: a state of {STATE_WORDS} words and a single number are needed, their shapes are "
            f"{list(state.dims)} and {list(count.dims)}"
        )


def _words(inputs: Sequence[Array | None]) -> list[Array]:
    """The state's words and the number of blocks, each of one element."""
    return [*present(inputs, 0).reshape(STATE_WORDS, 1, 1), present(inputs, 1).reshape(1, 1)]


def _views(build: Lowering[V], inputs: Sequence[V | None], shape: Sequence[int]) -> list[V]:
    """The state's words and the number of blocks, broadcast to a shape."""
    state, count = all_given(inputs)
    words = [build.reshape(state.slice([at], [1], [1]), ()) for at in range(STATE_WORDS)]
    return [view.expand(shape) for view in (*words, count)]


def _positions(build: Lowering[V], count: int, shape: Sequence[int]) -> V:
    """0, 1, 2, … as a constant, under a shape."""
    numbers = Constant(INT32, tuple(shape), np.arange(count, dtype=np.int32).reshape(shape))
    return build.constant(numbers, f"0 to {count - 1}")


@operator("Philox")
class Philox(Operator):
    """The four words of each of ``blocks`` blocks that follow the one that a state stands at.

    Inputs are the state and the number of blocks after it that others have drawn. Output n is word n of all
    blocks, in rows of `COLUMNS` where there are more than that many.
    """

    domain = "vkml"
    inputs = (2, 2)
    outputs = (4, 4)
    attributes = {"blocks": REQUIRED}

    def _dims(self, node: Node) -> tuple[int, int]:
        blocks = int(node.attributes["blocks"])
        rows = -(-blocks // COLUMNS)
        if rows > 1 and blocks % COLUMNS:
            raise InvalidGraph(f"{node.label}: more than {COLUMNS} blocks are a multiple of that")
        return (rows, COLUMNS) if rows > 1 else (1, blocks)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        _checked(node, inputs)
        return [check_size(node, UINT32, self._dims(node))] * 4

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        dims = self._dims(node)
        row, column = np.arange(dims[0], dtype=np.int32)[:, None], np.arange(dims[1], dtype=np.int32)
        found = evaluate(_forms()[0], [*_words(inputs), row, column])
        return [np.broadcast_to(words, dims) for words in found]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        dims = self._dims(node)
        row, column = _positions(build, dims[0], (dims[0], 1)), _positions(build, dims[1], (1, dims[1]))
        leaves = [*_views(build, inputs, dims), row.expand(dims), column.expand(dims)]
        return build.fused(_body(False, dims), leaves)


@operator("PhiloxAdvance")
class PhiloxAdvance(Operator):
    """The state of a generator after so many blocks."""

    domain = "vkml"
    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        _checked(node, inputs)
        return [static(UINT32, (STATE_WORDS,))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        [found] = evaluate(_forms()[1], [*_words(inputs), np.arange(STATE_WORDS, dtype=np.int32)])
        return [np.ascontiguousarray(found.reshape(STATE_WORDS))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        shape = (STATE_WORDS,)
        places = _positions(build, STATE_WORDS, shape)
        return build.fused(_body(True, shape), [*_views(build, inputs, shape), places])
