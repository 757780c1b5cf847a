"""Nodes of vkml's own operators, and of younger ones than the opset, written in ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkml.errors import UnsupportedOperator
from vkml.exporting.forms import write_form
from vkml.exporting.opsets import needed_opset
from vkml.ir import Graph, Node, dtypes, find
from vkml.ir.scalar import argument
from vkml.ir.size import array_of
from vkml.passes.rewriting import Rewriting


def written_in_standard(graph: Graph, opset: int | None) -> tuple[Graph, int]:
    """The graph in operators of ONNX's own domain, and the opset that it needs.

    Args:
        graph: of nodes in their newest form.
        opset: which is to be enough; None for any.

    Raises:
        UnsupportedOperator: it names the operators that cannot be written so.
    """
    to = Rewriting(graph)
    refused: dict[str, str] = {}
    needs = 0
    for node in graph.nodes:
        mark = len(to.nodes)
        try:
            _write(to, node, opset)
        except UnsupportedOperator as error:
            refused.setdefault(f"{node.domain or 'ai.onnx'}.{node.op}", str(error))
            continue
        for made in to.nodes[mark:]:
            need = _need(to, made)
            if opset is not None and need > opset:
                refused.setdefault(f"ai.onnx.{made.op}", f"{made.label} needs opset {need}")
            needs = max(needs, need)
    if refused:
        listed = "".join(f"\n  {name}: {reason}" for name, reason in sorted(refused.items()))
        raise UnsupportedOperator(
            f"the function computes what ONNX{'' if opset is None else f' of opset {opset}'} has no operator "
            f"for:{listed}"
        )
    return to.finish(), opset or needs


def is_kept(node: Node) -> bool:
    """Whether a node of an operator that is stepwise here is written as it is: ONNX has had it for long."""
    return node.op in ("BatchNormalization", "ConvTranspose") and not node.domain


def _need(to: Rewriting, node: Node) -> int:
    return needed_opset(node, [to.types[name].dtype if name else None for name in node.inputs])


def _write(to: Rewriting, node: Node, opset: int | None) -> None:
    """Adds a node, or those that compute the same."""
    to.stem = node.name
    if node.op == "BatchNormalization" and node.attributes["training_mode"]:
        _batch_normalization(to, node)
        return
    if not node.domain and (opset is None or _need(to, node) <= opset):
        to.nodes.append(node)
        return
    if node.op == "Expression" and node.domain == "vkml":
        write_form(to, node.attributes["form"], node.inputs, to.types[node.outputs[0]].dtype, node.outputs[0])
        return
    if node.op in _STEPS:
        _STEPS[node.op](to, node)
        return
    if not node.domain and _write_pointwise(to, node):
        return
    if node.domain:
        why = (
            "it is drawn anew in each run" if not find(node).is_deterministic else "an operator of vkml's own"
        )
        raise UnsupportedOperator(f"{node.label}: {_HINTS.get(node.op, why)}")
    raise UnsupportedOperator(f"{node.label} needs opset {_need(to, node)}")


_HINTS = {
    "Philox": "random numbers are drawn; export the module in evaluation mode, or pass them as an argument",
    "PhiloxAdvance": "random numbers are drawn",
}


def _write_pointwise(to: Rewriting, node: Node) -> bool:
    """Writes a pointwise operator by its scalar form; False where there is none."""
    operator = find(node)
    if not operator.is_pointwise:
        return False
    types = [to.types[name].dtype if name else None for name in node.inputs]
    arguments = [None if dtype is None else argument(at, dtype) for at, dtype in enumerate(types)]
    result = to.types[node.outputs[0]].dtype
    form = operator.scalar(node, arguments, types, result)
    if form is None:
        return False
    write_form(to, form, node.inputs, result, node.outputs[0])
    return True


def _batch_normalization(to: Rewriting, node: Node) -> None:
    """In training ONNX has it make running statistics whoever reads them."""
    statistics = [to.name(what) for what in ("mean", "variance")][: 3 - len(node.outputs)]
    to.add(replace(node, outputs=(*node.outputs, *statistics)))


def _moments(to: Rewriting, node: Node) -> None:
    """The mean, and the mean of squares of what is left."""
    axes, wide = _ints(to, node.attributes["axes"]), to.types[node.outputs[0]].dtype
    x = to.apply("Cast", [node.inputs[0]], to=wide.code)
    to.apply("ReduceMean", [x, axes], made=node.outputs[0])
    centred = to.apply("Sub", [x, node.outputs[0]])
    to.apply("ReduceMean", [to.apply("Mul", [centred, centred]), axes], made=node.outputs[1])


def _group_normalization(to: Rewriting, node: Node) -> None:
    """Groups as the channels of an InstanceNormalization, then factors and addends of channels."""
    x, scale, bias = node.inputs
    type_ = to.types[x]
    groups = node.attributes["num_groups"]
    parts = to.apply("Reshape", [x, _ints(to, [0, groups, -1])])
    ones = to.constant(np.ones(groups), type_.dtype)
    zeros = to.constant(np.zeros(groups), type_.dtype)
    made = to.apply("InstanceNormalization", [parts, ones, zeros], epsilon=node.attributes["epsilon"])
    back = to.apply("Reshape", [made, to.constant(array_of(type_.dims, (type_.rank,)), dtypes.INT64)])
    shape = _ints(to, [1, -1, *[1] * (type_.rank - 2)])
    scaled = to.apply("Mul", [back, to.apply("Reshape", [scale, shape])])
    to.apply("Add", [scaled, to.apply("Reshape", [bias, shape])], made=node.outputs[0])


def _rms_normalization(to: Rewriting, node: Node) -> None:
    """x over the root of its mean square, in float32 where x has fewer bits."""
    x, scale = node.inputs
    dtype, rank = to.types[x].dtype, to.types[x].rank
    wide = dtype if dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    value = x if dtype == wide else to.apply("Cast", [x], to=wide.code)
    axis = node.attributes["axis"] % rank
    squares = to.apply("Mul", [value, value])
    mean = to.apply("ReduceMean", [squares, _ints(to, list(range(axis, rank)))])
    root = to.apply("Sqrt", [to.apply("Add", [mean, to.constant(node.attributes["epsilon"], wide)])])
    found = to.apply("Div", [value, root])
    if dtype != wide:
        found = to.apply("Cast", [found], to=dtype.code)
    to.apply("Mul", [found, scale], made=node.outputs[0])


def _ints(to: Rewriting, numbers: Sequence[int]) -> str:
    return to.constant(np.array(numbers, np.int64), dtypes.INT64)


def _resample(to: Rewriting, node: Node) -> None:
    """Along each axis neighbours are gathered, weighed and summed."""
    found, rank = node.inputs[0], to.types[node.inputs[0]].rank
    dtype = to.types[found].dtype
    wide = dtype if dtype == dtypes.FLOAT64 else dtypes.FLOAT32
    if dtype != wide:
        found = to.apply("Cast", [found], to=wide.code)
    for axis in range(rank):
        places, weights = (*node.inputs, *[""] * 2 * rank)[1 + 2 * axis : 3 + 2 * axis]
        if not places:
            continue
        found = to.apply("Gather", [found, places], axis=axis)
        by = to.constants[weights].array
        shaped = by.reshape((*by.shape, *[1] * (rank - axis - 1)))
        found = to.apply("Mul", [found, to.constant(shaped, wide)])
        found = to.apply("ReduceSum", [found, _ints(to, [axis + 1])], keepdims=0)
    if dtype != wide:
        found = to.apply("Cast", [found], to=dtype.code)
    to.apply("Identity", [found], made=node.outputs[0])


_STEPS: Mapping[str, Callable[[Rewriting, Node], None]] = {
    "GroupNormalization": _group_normalization,
    "Moments": _moments,
    "RMSNormalization": _rms_normalization,
    "Resample": _resample,
}
