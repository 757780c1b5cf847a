"""Products with dequantised constants become MatMulNBits, rows gathered from them GatherBlockQuantized.

Both keep numbers as few bits as they have; folding would make floats of them. Exporters of weight-only models
write a scale for the whole matrix, for each column, or for blocks along k, and the matrix as it is
multiplied, transposed, or for Gemm either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, DType, Graph, GraphIndex, Node
from vkml.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT2, INT4, INT8, UINT2, UINT4, UINT8
from vkml.ir.graph import MadeConstant
from vkml.ir.packing import packed
from vkml.passes.rewriting import Rewriting

Array = np.ndarray[Any, Any]
_SIGNED, _UNSIGNED = (INT2, INT4, INT8), (UINT2, UINT4, UINT8)
_WORD_BITS = 32
"""Blocks are whole words of so many bits: kernels read such."""
_LEAST_BYTES = 1 << 16
"""Of floats: smaller matrices are folded to them."""


def use_few_bits(graph: Graph, *, gathers: bool = True) -> Graph:
    """The graph with products of dequantised matrices, and rows of such, as of few bits.

    Args:
        graph: normalised; types need not be known, DequantizeLinear of constants not be folded.
        gathers: whether rows are gathered from such, too.
    """
    if not any(node.op == "DequantizeLinear" and not node.domain for node in graph.nodes):
        return graph
    rewriter = _Rewriter(graph)
    rewriter.write(_FORMS if gathers else _PRODUCTS)
    return rewriter.finish()


@dataclass(frozen=True)
class _Matrix:
    """A dequantised constant [k, n], or [n, k]."""

    codes: Constant
    scale: Constant
    zero: Constant | None
    k_axis: int
    block: int
    """Numbers along k with a scale."""

    @property
    def inner(self) -> int:
        return self.codes.shape[self.k_axis]

    @property
    def columns(self) -> int:
        return self.codes.shape[1 - self.k_axis]

    @property
    def blocks(self) -> int:
        return -(-self.inner // self.block)


class _Rewriter(Rewriting):
    """Writes the nodes of a graph anew."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._index = GraphIndex.of(graph)
        self._made: dict[tuple[str, int, bool], list[str]] = {}
        """Dequantised value, axis of k, and whether codes are flat → codes, scales and zero points."""

    def write(self, forms: Mapping[str, Callable[[_Rewriter, Node], bool]]) -> None:
        """Adds all nodes, or what stands in their places by the forms of operators."""
        for node in self._graph.nodes:
            self.stem = node.outputs[0]
            form = None if node.domain else forms.get(node.op)
            if form is None or not form(self, node):
                self.nodes.append(node)

    def add(self, node: Node) -> None:
        """Adds a node whose types are inferred when all are."""
        self.nodes.append(node)

    def _matmul(self, node: Node) -> bool:
        return self._multiply(node, 0, node.outputs[0])

    def _gemm(self, node: Node) -> bool:
        stated = node.attributes
        if stated["transA"] or stated["alpha"] != 1 or stated["beta"] != 1:
            return False
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        product = self.name("product") if bias else node.outputs[0]
        if not self._multiply(node, 1 if stated["transB"] else 0, product):
            return False
        if bias:
            self.apply("Add", [product, bias], made=node.outputs[0])
        return True

    def _gather(self, node: Node) -> bool:
        if node.attributes["axis"] not in (0, -2):
            return False
        matrix = self._dequantized(node.inputs[0], 1)
        if matrix is None or matrix.inner % matrix.block:
            return False
        sizes = {"bits": matrix.codes.dtype.bits, "block_size": matrix.block}
        codes, *others = self._constants_of(node.inputs[0], matrix, is_flat=True)
        inputs = [codes, node.inputs[1], *others]
        self.apply("GatherBlockQuantized", inputs, made=node.outputs[0], domain="com.microsoft", **sizes)
        return True

    def _multiply(self, node: Node, k_axis: int, made: str) -> bool:
        """Adds the product of a node's first two inputs; False where the second is none for it."""
        name = node.inputs[1]
        maker = self._index.producer(name)
        if maker is not None and maker.op == "Transpose" and not maker.domain:
            if tuple(maker.attributes["perm"] or (1, 0)) != (1, 0):
                return False
            name, k_axis = maker.inputs[0], 1 - k_axis
        matrix = self._dequantized(name, k_axis)
        if matrix is None:
            return False
        sizes = {"K": matrix.inner, "N": matrix.columns, "block_size": matrix.block}
        inputs = [node.inputs[0], *self._constants_of(name, matrix)]
        bits = matrix.codes.dtype.bits
        self.apply("MatMulNBits", inputs, made=made, domain="com.microsoft", bits=bits, **sizes)
        return True

    def _dequantized(self, name: str, k_axis: int) -> _Matrix | None:
        """The matrix of constants that a value is made of; None where there is none, or none for a kernel."""
        maker = self._index.producer(name)
        is_made = maker is not None and maker.op == "DequantizeLinear" and not maker.domain
        return self._matrix(maker, k_axis) if maker is not None and is_made else None

    def _constants_of(self, name: str, matrix: _Matrix, *, is_flat: bool = False) -> list[str]:
        """Codes, scales and, where they are not the middle, zero points; made once for each value.

        Codes are [n, blocks, bytes], or [n, bytes] where they are to be flat.
        """
        key = name, matrix.k_axis, is_flat
        if key not in self._made:
            self.stem = name
            self._made[key] = self._operands(matrix, is_flat)
        return self._made[key]

    def _matrix(self, node: Node, k_axis: int) -> _Matrix | None:
        """What a DequantizeLinear makes floats of; None where that is no matrix of constants for a kernel."""
        codes, scale, *zeros = (self._graph.constants.get(name) for name in node.inputs if name)
        if codes is None or scale is None or None in zeros or len(codes.shape) != 2:
            return None
        if codes.dtype not in (*_SIGNED, *_UNSIGNED) or scale.dtype not in (FLOAT32, FLOAT16, BFLOAT16):
            return None
        if node.attributes["output_dtype"] not in (0, scale.dtype.code) or scale.is_open:
            return None
        if 4 * codes.type.elements < _LEAST_BYTES:
            return None
        inner, columns = codes.shape[k_axis], codes.shape[1 - k_axis]
        axis, block = node.attributes["axis"] % 2, node.attributes["block_size"]
        if block:
            wanted = [-(-inner // block), columns]
            if axis != k_axis or list(scale.shape) != (wanted if k_axis == 0 else wanted[::-1]):
                return None
        elif scale.type.elements != 1 and (axis == k_axis or scale.shape != (columns,)):
            return None
        per_word = _WORD_BITS // codes.dtype.bits
        if block % per_word:
            return None
        return _Matrix(
            codes, scale, zeros[0] if zeros else None, k_axis, block or -(-inner // per_word) * per_word
        )

    def _operands(self, matrix: _Matrix, is_flat: bool) -> list[str]:
        """The constants of `_constants_of`."""
        dtype, k_axis, block = matrix.codes.dtype, matrix.k_axis, matrix.block
        bits, columns, blocks = dtype.bits, matrix.columns, matrix.blocks
        of_block = block * bits // 8
        shape = (columns, blocks * of_block) if is_flat else (columns, blocks, of_block)
        flip = 1 << bits - 1 if dtype in _SIGNED else 0

        def along_k(array: Array) -> Array:
            """[n, …] of [k, n] or [n, k], of n numbers or of one."""
            if array.ndim == 2:
                return np.ascontiguousarray(array.T if k_axis == 0 else array)
            return np.ascontiguousarray(np.broadcast_to(array.reshape(-1, 1), (columns, 1)))

        def unsigned(array: Array) -> Array:
            found: Array = array.view(np.uint8) & np.uint8((1 << bits) - 1)
            return np.bitwise_xor(found, np.uint8(flip), out=found)

        def codes(array: Array) -> Array:
            found, room = unsigned(array), [(0, 0), (0, 0)]
            room[k_axis] = 0, blocks * block - found.shape[k_axis]
            if any(room[k_axis]):
                found = np.pad(found, room)
            if k_axis:
                return packed(found, bits).reshape(shape)
            # Words are turned: bytes would take several times as long.
            per_word = _WORD_BITS // bits
            words = np.zeros((found.shape[0] // per_word, columns), "<u4")
            for at in range(per_word):
                words |= found[at::per_word].astype(np.uint32) << np.uint32(at * bits)
            return np.ascontiguousarray(words.T).view(np.uint8).reshape(shape)

        operands = [
            self._constant(codes, matrix.codes, UINT8, shape, "codes"),
            self._constant(along_k, matrix.scale, matrix.scale.dtype, (columns, blocks), "scales"),
        ]
        middle = 1 << bits - 1
        if matrix.zero is not None:
            zeros = unsigned(along_k(matrix.zero.array))
        else:
            zeros = np.full((columns, 1), flip, np.uint8)
        if (zeros != middle).any():
            zeros = packed(np.ascontiguousarray(np.broadcast_to(zeros, (columns, blocks))), bits)
            operands.append(self.constant(zeros, UINT8, "zeros"))
        return operands

    def _constant(
        self,
        make: Callable[[Array], Array],
        source: Constant,
        dtype: DType,
        shape: tuple[int, ...],
        what: str,
    ) -> str:
        name = self.name(what)
        self.constants[name] = made = MadeConstant(dtype, shape, source, make)
        self.types[name] = made.type
        return name


_PRODUCTS: Mapping[str, Callable[[_Rewriter, Node], bool]] = {
    "MatMul": _Rewriter._matmul,
    "Gemm": _Rewriter._gemm,
}
_FORMS = {**_PRODUCTS, "Gather": _Rewriter._gather}
