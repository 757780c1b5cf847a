"""Quantising and dequantising as pointwise expressions, fused with what is before and behind."""

from __future__ import annotations

import numpy as np

from vkml.ir import Graph, Node, scalar
from vkml.ir.dtypes import FLOAT16, FLOAT32, INT8, INT16, INT32, INT64, UINT8, UINT16, DType
from vkml.ir.scalar import Scalar
from vkml.ops.quantization import Granularity, aligned_shape, granularity
from vkml.ops.quantization_forms import dequantized_form, quantized_form
from vkml.passes.rewriting import Rewriting

_STEPS = (INT8, UINT8, INT16, UINT16)


def state_quantization(graph: Graph) -> Graph:
    """The graph, specialised, with expressions in the place of what quantises and dequantises.

    Blocks, bfloat16, float8 and numbers of less than 8 bits stay what they are: devices have their steps.
    """
    if not any(node.op in (*_FORMS, "DynamicQuantizeLinear") and not node.domain for node in graph.nodes):
        return graph
    write = Rewriting(graph)
    for node in graph.nodes:
        if node.op == "DynamicQuantizeLinear" and not node.domain:
            _write_dynamic(write, node)
            continue
        if node.op not in _FORMS or node.domain or not _fits(node, graph):
            write.nodes.append(node)
            continue
        write.stem = node.outputs[0]
        x, scale = (graph.types[name] for name in node.inputs[:2])
        shape = aligned_shape(node, x.dims, scale.dims)
        inputs = [node.inputs[0]]
        for name in node.inputs[1:]:
            constant = graph.constants.get(name)
            if graph.types[name].shape == shape:
                inputs.append(name)
            elif constant is not None and not constant.is_open:
                inputs.append(write.constant(constant.array.reshape(shape), constant.dtype))
            else:
                sizes = write.constant(np.array(shape, np.int64), INT64, "shape")
                inputs.append(write.apply("Reshape", [name, sizes], allowzero=1))
        kinds = [graph.types[name].dtype for name in node.inputs]
        result = graph.types[node.outputs[0]].dtype
        arguments = [scalar.argument(at, kind) for at, kind in enumerate(kinds)]
        form = _FORMS[node.op](arguments, result)
        write.apply("Expression", inputs, made=node.outputs[0], domain="vkml", form=form, to=result.code)
    return write.finish()


def _write_dynamic(write: Rewriting, node: Node) -> None:
    """The range of all elements, from which scale and zero point follow, and the elements by these."""
    type_ = write.types[node.inputs[0]]
    if not type_.is_static or not all(isinstance(size, int) and size > 0 for size in type_.dims):
        write.nodes.append(node)
        return
    steps, scale, zero = (*node.outputs, "", "")[:3]
    write.stem = steps or scale or zero
    ends = [write.apply(op, [node.inputs[0]], keepdims=0) for op in ("ReduceMin", "ReduceMax")]
    least = scalar.binary("minimum", scalar.argument(0, FLOAT32), 0.0)
    most = scalar.binary("maximum", scalar.argument(1, FLOAT32), 0.0)
    form = scalar.where(scalar.compare("equal", least, most), 1.0, (most - least) / 255.0)
    scale = write.apply("Expression", ends, made=scale, domain="vkml", form=form, to=FLOAT32.code)
    form = _quantized([-least, scalar.argument(1, FLOAT32)], UINT8)
    given = [ends[0], scale]
    zero = write.apply("Expression", given, made=zero, domain="vkml", form=form, to=UINT8.code)
    kinds = (FLOAT32, FLOAT32, UINT8)
    form = _quantized([scalar.argument(at, kind) for at, kind in enumerate(kinds)], UINT8)
    given = [node.inputs[0], scale, zero]
    write.apply("Expression", given, made=steps, domain="vkml", form=form, to=UINT8.code)


def _fits(node: Node, graph: Graph) -> bool:
    types = [graph.types[name] for name in node.inputs if name]
    if len(types) < len(node.inputs) or not all(type_.is_static for type_ in types):
        return False
    if granularity(node, types[0].dims, types[1].dims) == Granularity.BLOCK:
        return False
    result = graph.types[node.outputs[0]].dtype
    if types[1].dtype != FLOAT32:
        return False
    if node.op == "QuantizeLinear":
        is_single = node.attributes["precision"] in (0, FLOAT32.code)
        return is_single and types[0].dtype in (FLOAT32, FLOAT16) and result in _STEPS
    return types[0].dtype in (*_STEPS, INT32) and result in (FLOAT32, FLOAT16)


def _quantized(arguments: list[Scalar], result: DType) -> Scalar:
    x, scale, *rest = arguments
    return quantized_form(x, scale, rest[0] if rest else None, result)


def _dequantized(arguments: list[Scalar], result: DType) -> Scalar:
    x, scale, *rest = arguments
    return dequantized_form(x, scale, rest[0] if rest else None, result)


_FORMS = {"QuantizeLinear": _quantized, "DequantizeLinear": _dequantized}
