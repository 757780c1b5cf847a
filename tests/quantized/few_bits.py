"""Products with weights of few bits, random ones, as exporters of weight-only models write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FewBits:
    """A matrix [k, n] of numbers of few bits.

    Attributes:
        bits: of a number.
        block: numbers along k that share a scale.
        codes: [n, k], from 0 on.
        scales: [n, blocks].
        zeros: [n, blocks], as the codes; None for the middle of these.
    """

    bits: int
    block: int
    codes: Array
    scales: Array
    zeros: Array | None

    @property
    def matrix(self) -> Array:
        """Its numbers, [k, n], as float64."""
        middle = np.full(self.scales.shape, 1 << self.bits - 1) if self.zeros is None else self.zeros
        whole, scales = (
            np.repeat(each.astype(np.float64), self.block, 1)[:, : self.codes.shape[1]]
            for each in (middle, self.scales)
        )
        made: Array = ((self.codes - whole) * scales).T
        return made


def random_weights(
    inner: int,
    columns: int,
    *,
    bits: int = 4,
    block: int = 32,
    has_zeros: bool = False,
    dtype: Any = np.float32,
    seed: int = 0,
) -> FewBits:
    """Numbers of all codes, whose products with rows of spread 1 have about spread 1."""
    random = np.random.default_rng(seed)
    shape = columns, -(-inner // block)
    codes = random.integers(0, 1 << bits, (columns, inner))
    scales = ((0.5 + random.random(shape)) * 3 / 2**bits / inner**0.5).astype(dtype)
    return FewBits(bits, block, codes, scales, random.integers(0, 1 << bits, shape) if has_zeros else None)


def packed(codes: Array, bits: int) -> Array:
    """Codes in bytes along the last axis, the first in the lowest bits."""
    lanes = 8 // bits
    room = np.zeros((*codes.shape[:-1], -codes.shape[-1] % lanes), codes.dtype)
    parts = np.concatenate([codes, room], -1).reshape(*codes.shape[:-1], -1, lanes)
    return np.asarray((parts << np.arange(0, 8, bits)).sum(-1).astype(np.uint8))


class Model:
    """A model of one input x [rows, k] that grows node by node."""

    def __init__(self, inner: int, dtype: Any = np.float32, rows: int | str = "rows") -> None:
        self.type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.input = helper.make_tensor_value_info("x", self.type, [rows, inner])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: Array | np.floating[Any]) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"{op} {len(self.nodes)}", **attributes))
        return name

    def product(self, x: str, weights: FewBits, bias: Array | None = None, **attributes: Any) -> str:
        """A MatMulNBits."""
        columns, inner = weights.codes.shape
        room = -inner % weights.block
        codes = np.pad(weights.codes, ((0, 0), (0, room))).reshape(columns, -1, weights.block)
        given = [x, self.weight(packed(codes, weights.bits)), self.weight(weights.scales.reshape(-1))]
        if weights.zeros is not None or bias is not None:
            zeros = weights.zeros
            given.append("" if zeros is None else self.weight(packed(zeros, weights.bits).reshape(-1)))
        if bias is not None:
            given += ["", self.weight(bias)]
        sizes = {"K": inner, "N": columns, "bits": weights.bits, "block_size": weights.block}
        return self.add("MatMulNBits", *given, domain="com.microsoft", **sizes, **attributes)

    def dequantized_product(self, x: str, weights: FewBits) -> str:
        """A DequantizeLinear of 4 bits in blocks and a MatMul."""
        assert weights.bits == 4
        dtype, middle = (ml_dtypes.int4, 8) if weights.zeros is None else (ml_dtypes.uint4, 0)
        given = [(weights.codes - middle).astype(dtype), weights.scales]
        if weights.zeros is not None:
            given.append(weights.zeros.astype(dtype))
        names = [self.weight(np.ascontiguousarray(array.T)) for array in given]
        matrix = self.add("DequantizeLinear", *names, axis=0, block_size=weights.block)
        return self.add("MatMul", x, matrix)

    def bytes(self, output: str) -> bytes:
        """The model with one output."""
        made = helper.make_tensor_value_info(output, self.type, None)
        graph = helper.make_graph(self.nodes, "few bits", [self.input], [made], self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        found = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        assert isinstance(found, bytes)
        return found


def decoder_layer(rows: int, width: int, heads: int, hidden: int, **attributes: Any) -> bytes:
    """Attention of rows to one another and a gated product of `hidden` columns, all weights of 4 bits.

    Args:
        rows: of the input [rows, width].
        width: of the input and the result.
        heads: of attention.
        hidden: columns of the gate.
        attributes: of each MatMulNBits.
    """
    model = Model(width, rows=rows)

    def linear(x: str, inner: int, columns: int) -> str:
        seed = len(model.nodes)
        return model.product(x, random_weights(inner, columns, seed=seed), **attributes)

    def normal(x: str) -> str:
        return model.add("LayerNormalization", x, model.weight(np.ones(width, np.float32)), axis=-1)

    y, shape = normal("x"), model.weight(np.array([rows, heads, width // heads], np.int64))
    q, k, v = (
        model.add("Transpose", model.add("Reshape", linear(y, width, width), shape), perm=perm)
        for perm in ([1, 0, 2], [1, 2, 0], [1, 0, 2])
    )
    factor = model.weight(np.float32((width // heads) ** -0.5))
    scores = model.add("Softmax", model.add("Mul", model.add("MatMul", q, k), factor), axis=-1)
    mixed = model.add("Transpose", model.add("MatMul", scores, v), perm=[1, 0, 2])
    mixed = model.add("Reshape", mixed, model.weight(np.array([rows, width], np.int64)))
    x = model.add("Add", "x", linear(mixed, width, width))
    y = normal(x)
    gate = linear(y, width, hidden)
    gated = model.add("Mul", model.add("Mul", gate, model.add("Sigmoid", gate)), linear(y, width, hidden))
    return model.bytes(model.add("Add", x, linear(gated, hidden, width)))
