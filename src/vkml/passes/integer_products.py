"""Products of dequantised numbers become products of the integers, whose sums are scaled.

A product of x and w, quantised as (a - z) s and (b - y) t, is the product of a and b - y, less z times the
column sums of b - y, times s t. Machine code multiplies uint8 with int8; numbers quantised to int8 are those
quantised to uint8 with a zero point that is 128 more, weights are constants whose zero points are subtracted
before the model runs. Weights then stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, GraphIndex, Node, scalar, unused, value_names
from vkml.ir.dtypes import FLOAT32, INT8, INT32, UINT8
from vkml.ops.quantization import dequantized
from vkml.passes.rewriting import Rewriting

Array = np.ndarray[Any, Any]

_SIGN = 128
"""What uint8 is more than int8."""
_WORD = 4
"""Channels that machine code takes at a time."""
MOST_BYTE_TAPS = 2**24 // (255 * 128)
"""Of depthwise windows over bytes, whose sums float32 holds exactly: machine code multiplies them as such."""


def use_integer_products(graph: Graph, *, has_depthwise: bool = False) -> Graph:
    """The graph with products of bytes, for a device that multiplies these faster than floats.

    Args:
        graph: normalised; types need not be known, nor constants be folded.
        has_depthwise: whether there are kernels of depthwise convolutions of bytes, and over three axes.
    """
    if not any(node.op in _FORMS and not node.domain for node in graph.nodes):
        return graph
    rewriter = _Rewriter(_with_unsigned(graph), has_depthwise)
    rewriter.write()
    return rewriter.finish()


def _is(node: Node | None, op: str) -> bool:
    return node is not None and node.op == op and not node.domain


def _number(graph: Graph, name: str) -> Array | None:
    """A constant of one element, as an array without axes."""
    constant = graph.constants.get(name)
    if constant is None or constant.is_open or constant.type.elements != 1:
        return None
    return constant.array.reshape(())


def _with_unsigned(graph: Graph) -> Graph:
    """Numbers that are quantised to int8, and dequantised by all that reads them, as uint8."""
    index = GraphIndex.of(graph)
    shifted = {
        node.outputs[0]
        for node in graph.nodes
        if _is(node, "QuantizeLinear")
        and _has_signed_zero(graph, node)
        and not node.attributes["output_dtype"]
        and not index.is_output(node.outputs[0])
        and not index.is_captured(node.outputs[0])
        and all(
            _is(each, "DequantizeLinear")
            and each.inputs[0] == node.outputs[0]
            and _has_signed_zero(graph, each)
            for each in index.consumers(node.outputs[0])
        )
    }
    if not shifted:
        return graph
    taken, constants, types = value_names(graph), dict(graph.constants), dict(graph.types)
    made: dict[str, str] = {}

    def unsigned(name: str) -> str:
        if name not in made:
            array = np.asarray(constants[name].array.astype(np.int16) + _SIGN).astype(np.uint8)
            made[name] = unused(f"{name}+{_SIGN}", taken)
            taken.add(made[name])
            constants[made[name]] = constant = Constant(UINT8, array.shape, array)
            types[made[name]] = constant.type
        return made[name]

    nodes = [
        replace(node, inputs=(*node.inputs[:2], unsigned(node.inputs[2])))
        if not shifted.isdisjoint((*node.inputs[:1], *node.outputs))
        else node
        for node in graph.nodes
    ]
    for name in shifted:
        types.pop(name, None)
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


def _has_signed_zero(graph: Graph, node: Node) -> bool:
    zero = _number(graph, node.inputs[2]) if len(node.inputs) > 2 else None
    return zero is not None and zero.dtype == np.int8


@dataclass
class _Left:
    """The quantised operand of a product that a run computes."""

    name: str
    zero: Array | str
    """Its zero point: a number, or the name of one that is computed."""
    scale: Array | None = None
    """None where integers are wanted, not numbers."""


@dataclass
class _Weight:
    """The constant operand of a product: int8, less its zero point."""

    bytes: Array
    scale: Array
    """A vector of one element, or one for each column or filter."""


class _Rewriter(Rewriting):
    """Writes the nodes of a graph anew."""

    def __init__(self, graph: Graph, has_depthwise: bool) -> None:
        super().__init__(graph)
        self._has_depthwise = has_depthwise
        self._index = GraphIndex.of(graph)

    def write(self) -> None:
        """Adds all nodes, or what stands in their places."""
        for node in self._graph.nodes:
            form = None if node.domain else _FORMS.get(node.op)
            self.stem = node.outputs[0]
            if form is None or not form(self, node):
                self.nodes.append(node)

    def add(self, node: Node) -> None:
        """Adds a node whose types are inferred when all are."""
        self.nodes.append(node)

    # -- what is written ------------------------------------------------------------------------------------

    def _corrected(self, sums: str, left: _Left, columns: Array) -> tuple[scalar.Scalar, list[str]]:
        """Sums of products without what the zero point adds to them: a form, and its arguments.

        Args:
            sums: int32.
            left: gives the zero point.
            columns: sums of the other side's bytes, as they broadcast with `sums`.
        """
        first, second = scalar.argument(0, INT32), scalar.argument(1, INT32)
        if isinstance(left.zero, str):
            zero = scalar.convert(scalar.argument(2, UINT8), INT32)
            return first - second * zero, [sums, self.constant(columns, INT32, "column sums"), left.zero]
        product = (columns.astype(np.int64) * int(left.zero)).astype(np.int32)  # wraps as the sums do
        return first - second, [sums, self.constant(product, INT32, "column sums")]

    def _scale(
        self, sums: str, left: _Left, columns: Array, weight: Array, bias: Array | None, made: str
    ) -> None:
        """Adds the node that makes numbers of sums.

        Args:
            sums: as for `_corrected`, as are `left` and `columns`.
            weight: the scale of the other side, as it broadcasts with them.
            bias: float32, broadcasting so.
            made: the result's name.
        """
        assert left.scale is not None
        form, inputs = self._corrected(sums, left, columns)
        inputs.append(self.constant(left.scale * weight, FLOAT32, "scale"))
        form = scalar.convert(form, FLOAT32) * scalar.argument(len(inputs) - 1, FLOAT32)
        if bias is not None:
            inputs.append(self.constant(bias, FLOAT32, "bias"))
            form = form + scalar.argument(len(inputs) - 1, FLOAT32)
        self.apply("Expression", inputs, made=made, domain="vkml", form=form, to=FLOAT32.code)

    # -- what is looked for ---------------------------------------------------------------------------------

    def _dequantizer(self, name: str) -> Node | None:
        """The node that makes a float32 of quantised numbers, with one scale or one for each place."""
        node = self._index.producer(name)
        if node is None or not _is(node, "DequantizeLinear"):
            return None
        scale = self._graph.constants.get(node.inputs[1])
        is_plain = not node.attributes["block_size"] and node.attributes["output_dtype"] in (0, FLOAT32.code)
        return node if is_plain and scale is not None and scale.dtype == FLOAT32 else None

    def _left(self, name: str) -> _Left | None:
        """A float operand that is dequantised from uint8, with one scale."""
        node = self._dequantizer(name)
        if node is None or len(node.inputs) < 3:  # without a zero point the type is not known here
            return None
        scale, zero = _number(self._graph, node.inputs[1]), _number(self._graph, node.inputs[2])
        if scale is None or zero is None or zero.dtype != np.uint8:
            return None
        return _Left(node.inputs[0], zero, scale)

    def _weight(self, name: str, axis: int) -> _Weight | None:
        """A float operand that is dequantised from constant bytes, with one scale or one along an axis."""
        node = self._dequantizer(name)
        if node is None:
            return None
        values, scale = self._graph.constants.get(node.inputs[0]), self._graph.constants[node.inputs[1]].array
        zero = self._graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if values is None or (len(node.inputs) > 2 and zero is None):
            return None
        rank = len(values.shape)
        if rank <= axis or (scale.size > 1 and scale.shape != (values.shape[axis],)):
            return None
        if scale.size > 1 and node.attributes["axis"] not in (axis, axis - rank):
            return None
        steps = _steps(values, None if zero is None else zero.array, axis)
        return None if steps is None else _Weight(steps, scale.reshape(-1))

    def _matrix(self, name: str, axis: int) -> _Weight | None:
        """As `_weight`, of a matrix, which PyTorch transposes once it is dequantised."""
        maker = self._index.producer(name)
        is_turned = maker is not None and _is(maker, "Transpose")
        if maker is not None and is_turned:
            if tuple(maker.attributes["perm"] or (1, 0)) != (1, 0):
                return None
            name, axis = maker.inputs[0], 1 - axis
        found = self._weight(name, axis)
        if found is None or found.bytes.ndim != 2:
            return None
        return replace(found, bytes=np.ascontiguousarray(found.bytes.T)) if is_turned else found

    def _bias(self, node: Node) -> tuple[bool, Array | None]:
        """Whether the third input is known, or absent; its numbers, stated or dequantised."""
        if len(node.inputs) < 3 or not node.inputs[2]:
            return True, None
        constant = self._graph.constants.get(node.inputs[2])
        if constant is not None:
            return constant.dtype == FLOAT32, constant.array
        maker = self._dequantizer(node.inputs[2])
        found = [] if maker is None else [self._graph.constants.get(name) for name in maker.inputs]
        arrays = [each.array for each in found if each is not None]
        if not arrays or len(arrays) < len(found) or arrays[0].ndim != 1:
            return False, None
        if any(each.size not in (1, arrays[0].size) for each in arrays[1:]):
            return False, None
        zero = arrays[2].reshape(-1) if len(arrays) > 2 else None
        return True, dequantized(arrays[0], arrays[1].reshape(-1), zero, FLOAT32)

    # -- forms ----------------------------------------------------------------------------------------------

    def matmul(self, node: Node) -> bool:
        left, weight = self._left(node.inputs[0]), self._matrix(node.inputs[1], 1)
        if left is None or weight is None:
            return False
        sums = self.apply("MatMulInteger", [left.name, self.constant(weight.bytes, INT8, "bytes")])
        self._scale(sums, left, _sums(weight.bytes, 0), weight.scale, None, node.outputs[0])
        return True

    def gemm(self, node: Node) -> bool:
        stated = node.attributes
        if stated["transA"] or stated["alpha"] != 1 or stated["beta"] != 1:
            return False
        left, weight = self._left(node.inputs[0]), self._matrix(node.inputs[1], 0 if stated["transB"] else 1)
        is_known, bias = self._bias(node)
        if left is None or weight is None or not is_known:
            return False
        matrix = np.ascontiguousarray(weight.bytes.T) if stated["transB"] else weight.bytes
        sums = self.apply("MatMulInteger", [left.name, self.constant(matrix, INT8, "bytes")])
        self._scale(sums, left, _sums(matrix, 0), weight.scale, bias, node.outputs[0])
        return True

    def conv(self, node: Node) -> bool:
        left, weight = self._left(node.inputs[0]), self._weight(node.inputs[1], 0)
        is_known, bias = self._bias(node)
        if left is None or weight is None or not is_known:
            return False
        return self._convolve(node, left, weight, bias, node.outputs[0])

    def _convolve(self, node: Node, left: _Left, weight: _Weight, bias: Array | None, made: str) -> bool:
        """Adds a convolution of bytes and what makes numbers of its sums; False where it has no kernel."""
        if not self._has_kernel(node, weight.bytes):
            return False
        assert isinstance(left.zero, np.ndarray)
        trailing = (1,) * (weight.bytes.ndim - 2)
        inputs = [left.name, self.constant(weight.bytes, INT8, "bytes")]
        sums = self.apply("ConvInteger", inputs, **{**node.attributes, "fill": int(left.zero)})
        columns = _sums(weight.bytes, tuple(range(1, weight.bytes.ndim))).reshape(-1, *trailing)
        bias = None if bias is None else bias.reshape(-1, *trailing)
        self._scale(sums, left, columns, weight.scale.reshape(-1, *trailing), bias, made)
        return True

    def _has_kernel(self, node: Node, weight: Array) -> bool:
        """Whether there are kernels for a convolution of bytes, in groups of which channels come by fours."""
        group: int = node.attributes["group"]
        if not 3 <= weight.ndim <= (5 if self._has_depthwise else 4):
            return False
        if weight.shape[1] == 1 and group == len(weight) > 1:
            return self._has_depthwise and weight[0].size <= MOST_BYTE_TAPS
        return group == 1 or weight.shape[1] % _WORD == 0

    def _quantized_operand(self, node: Node) -> _Left | None:
        """The first operand of QLinearMatMul or QLinearConv, which is to be uint8 with one scale."""
        scale, zero = _number(self._graph, node.inputs[1]), _number(self._graph, node.inputs[2])
        if scale is None or zero is None or scale.dtype != np.float32 or zero.dtype != np.uint8:
            return None
        return _Left(node.inputs[0], zero, scale)

    def _quantized_weight(self, node: Node, axis: int) -> _Weight | None:
        """The constant operand of QLinearMatMul or QLinearConv."""
        values, scale, zero = (self._graph.constants.get(name) for name in node.inputs[3:6])
        if values is None or scale is None or zero is None or scale.dtype != FLOAT32:
            return None
        rank, lanes = len(values.shape), scale.array.size
        if rank <= axis or len(scale.shape) > 1 or lanes not in (1, values.shape[axis]):
            return None
        steps = _steps(values, zero.array, axis)
        return None if steps is None else _Weight(steps, scale.array.reshape(-1))

    def _quantize(self, node: Node, numbers: str) -> None:
        """Adds the node that makes the result of QLinearMatMul or QLinearConv of numbers."""
        self.apply("QuantizeLinear", [numbers, *node.inputs[6:8]], made=node.outputs[0])

    def quantized_matmul(self, node: Node) -> bool:
        left, weight = self._quantized_operand(node), self._quantized_weight(node, 1)
        scale = self._graph.constants.get(node.inputs[6])
        if (
            left is None
            or weight is None
            or weight.bytes.ndim != 2
            or scale is None
            or scale.dtype != FLOAT32
        ):
            return False
        sums = self.apply("MatMulInteger", [left.name, self.constant(weight.bytes, INT8, "bytes")])
        numbers = self.name("numbers")
        self._scale(sums, left, _sums(weight.bytes, 0), weight.scale, None, numbers)
        self._quantize(node, numbers)
        return True

    def quantized_conv(self, node: Node) -> bool:
        left, weight = self._quantized_operand(node), self._quantized_weight(node, 0)
        bias, numbers = None, self.name("numbers")
        if left is None or weight is None:
            return False
        if len(node.inputs) > 8:
            steps = self._graph.constants.get(node.inputs[8])
            if steps is None:
                return False
            assert left.scale is not None
            bias = dequantized(steps.array, left.scale * weight.scale, None, FLOAT32)
        if not self._convolve(node, left, weight, bias, numbers):
            return False
        self._quantize(node, numbers)
        return True

    def matmul_integer(self, node: Node) -> bool:
        """Zero points taken out of a product of what is quantised at run time and constant bytes."""
        values = self._graph.constants.get(node.inputs[1])
        a_zero, b_zero = [*node.inputs[2:], "", ""][:2]
        maker = self._index.producer(node.inputs[0])
        if (
            values is None
            or len(values.shape) != 2
            or maker is None
            or not _is(maker, "DynamicQuantizeLinear")
        ):
            return False
        zero = self._graph.constants.get(b_zero)
        if a_zero != maker.outputs[2] or (b_zero and zero is None):
            return False
        steps = _steps(values, None if zero is None else zero.array, 1)
        if steps is None:
            return False
        sums = self.apply("MatMulInteger", [node.inputs[0], self.constant(steps, INT8, "bytes")])
        form, inputs = self._corrected(sums, _Left(node.inputs[0], a_zero), _sums(steps, 0))
        self.apply("Expression", inputs, made=node.outputs[0], domain="vkml", form=form, to=INT32.code)
        return True


def _steps(values: Constant, zero: Array | None, axis: int) -> Array | None:
    """Bytes less their zero points along an axis, as int8; None where they do not fit."""
    if values.dtype not in (INT8, UINT8) or not values.type.elements:
        return None
    if values.dtype == INT8 and (zero is None or not zero.any()):
        return values.array
    wide = values.array.astype(np.int16)
    if zero is not None:
        if zero.ndim > 1 or zero.size not in (1, wide.shape[axis]):
            return None
        wide = wide - zero.astype(np.int16).reshape([-1 if at == axis else 1 for at in range(wide.ndim)])
    if wide.min() < -_SIGN or wide.max() >= _SIGN:
        return None
    return wide.astype(np.int8)


def _sums(weight: Array, axes: int | tuple[int, ...]) -> Array:
    return np.asarray(weight.sum(axes, dtype=np.int32))


_FORMS: Mapping[str, Callable[[_Rewriter, Node], bool]] = {
    "MatMul": _Rewriter.matmul,
    "Gemm": _Rewriter.gemm,
    "Conv": _Rewriter.conv,
    "MatMulInteger": _Rewriter.matmul_integer,
    "QLinearConv": _Rewriter.quantized_conv,
    "QLinearMatMul": _Rewriter.quantized_matmul,
}
