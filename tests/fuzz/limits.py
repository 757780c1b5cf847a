"""What vkml says it cannot do, or will not: refusals that are no findings, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, defs


@dataclass(frozen=True)
class Limit:
    """A refusal that is no mistake."""

    pattern: str
    reason: str
    holds: Callable[[NodeProto | None], bool] = lambda node: True
    """Whether that is so for the node that the message names."""


def _rounds_down(node: NodeProto | None) -> bool:
    """Whether a pool counts whole windows only."""
    return node is None or not any(entry.name == "ceil_mode" and entry.i for entry in node.attribute)


def _integer(node: NodeProto, name: str) -> int:
    """An attribute; 0 where the node does not state it."""
    return next((entry.i for entry in node.attribute if entry.name == name), 0)


def _takes_nearest(node: NodeProto) -> bool:
    """Whether a Resize copies the nearest element, as it does by default."""
    return all(entry.s == b"nearest" for entry in node.attribute if entry.name == "mode")


def _has_foreign_attribute(node: NodeProto) -> bool:
    if node.domain or not defs.has(node.op_type):
        return False
    known = defs.get_schema(node.op_type).attributes
    return any(entry.name not in known for entry in node.attribute)


def _named_in(message: str, proto: ModelProto | None) -> NodeProto | None:
    """The node that a message is about."""
    nodes = proto.graph.node if proto is not None else ()
    labels = ((node, node.name or next((name for name in node.output if name), "?")) for node in nodes)
    return next((node for node, label in labels if f"{node.op_type} node '{label}'" in message), None)


LIMITS = (
    Limit(r"operators? that vkml does not support", "operators that the registry lacks"),
    Limit(r"alpha must not be 0, by which Celu divides", "0 / 0 wherever nothing is positive"),
    Limit(r"bfloat16|computing in \w+ is not supported", "bfloat16 and float8 are moved and cast only"),
    Limit(
        r"is larger than spatial axis",
        "a window larger than its axis: others make nothing of it",
        _rounds_down,
    ),
    Limit(r"the dimension '.*' is .* in input", "onnxruntime lets inputs disagree in a dimension"),
    Limit(
        r"Constant node .*: (takes 0 inputs|the attribute|exactly one value)",
        "onnxruntime does not look at Constant nodes",
    ),
    Limit(r"stash_type -?\d+ is not supported", "float32 on the way only; onnxruntime does not read it"),
    Limit(
        r"Reshape node .*: cannot reshape",
        "onnxruntime takes a flag neither 0 nor 1 for 0",
        lambda node: node is not None and _integer(node, "allowzero") not in (0, 1),
    ),
    Limit(r"Split node .*: num_outputs is -?\d+, the node has", "onnxruntime leaves out what nobody reads"),
    Limit(r"Cast(Like)? node .*: round_mode must be", "onnxruntime reads it for float8e8m0 only"),
    Limit(
        r"Resize node .*: nearest_mode '.*' is not one of",
        "onnxruntime reads it for mode nearest only",
        lambda node: node is not None and not _takes_nearest(node),
    ),
    Limit(
        r"Resize node .*: nearest_mode '' is not one of", "onnxruntime takes no text for opset 10's rounding"
    ),
    Limit(r"Gelu node .*: approximate must be", "onnxruntime takes all texts but tanh for none"),
    Limit(r"in a cycle: .*Constant node", "onnxruntime does not look at Constant nodes"),
    Limit(
        r"MeanVarianceNormalization node .*: axis -?\d+ is outside", "the default axes are those of an image"
    ),
    Limit(r"Arg(Max|Min) node .* has no elements", "the place of the greatest of none"),
    Limit(r"GatherND node .*do not address data", "onnxruntime reads beyond a batch that is too small"),
    Limit(
        r"Reduce\w+ node .*: axis -?\d+ is outside a tensor of rank 0",
        "onnxruntime looks at no axes of a scalar",
    ),
    Limit(r"takes the shape \[\], got", "onnxruntime takes an input of any shape for a scalar"),
    Limit(
        r"Cast node .*: element type 0 is not one that ONNX defines",
        "onnxruntime hands an input on in its own type",
    ),
    Limit(r"(strides|dilations|pads) \[.*\d{10}.*\] must lie in", "a bound of vkml's: numbers of 32 bits"),
    Limit(
        r"AffineGrid node .*: theta of shape .* does not map a tensor of size",
        "onnxruntime reads matrices of other shapes",
    ),
    Limit(r"the type has a dimension of -\d+$", "onnxruntime takes it for an open one"),
    Limit(
        r"RoiAlign node .*: a region from \S+ to \S+ cannot be sampled",
        "regions without an end, or beyond 2^20 places: a bound of vkml's",
    ),
    Limit(r"the graph has no outputs$", "nothing to compute"),
    Limit(
        r"opset (0|-\d+) of domain '.*' does not exist",
        "versions count from 1; onnxruntime looks at that of an operator that it meets",
    ),
    Limit(
        r"Pad node .*: pads -?\d+ and -?\d+ leave 0 elements of axis",
        "nothing is left to repeat; onnxruntime runs that where there are no results",
    ),
    Limit(r"Dropout node .*: (ratio|training_mode) must be a scalar", "onnxruntime reads the first number"),
    Limit(r"Einsum node .*: term '.*\..*' holds something else than letters", "onnxruntime ignores a dot"),
    Limit(
        r"ConvTranspose node .*: pads .* cut more than", "onnxruntime takes an output_shape below 0 for none"
    ),
    Limit(
        r"an output of shape \[(0, .*|.*, 0|.*, 0, .*)\] \(\w+\) takes \d+ bytes; vkml allows",
        "a bound of vkml's: sizes of nothing may be multiplied back",
    ),
    Limit(r"NonMaxSuppression node .* must be one number", "onnxruntime takes the first of several"),
    Limit(r"is not UTF-8", "onnxruntime takes any bytes for a text"),
    Limit(r"Concat node .* cannot be joined", "onnxruntime passes over inputs without elements"),
    Limit(r"name an axis twice", "onnxruntime reduces it once"),
    Limit(r"axis -?\d{9,} is outside|TopK node .*: k is \d{10}", "onnxruntime cuts the number off"),
    Limit(r"slope of shape .* does not broadcast one-way", "onnxruntime broadcasts it both ways"),
    Limit(
        r"MaxUnpool node .*: index .* is outside|ScatterElements node '[^']*/ScatterElements': an index",
        "onnxruntime writes there all the same",
    ),
    Limit(
        r"initializer '.*': (.* takes \d+ bytes, there are \d+$|the shape .* has a negative dimension)",
        "onnxruntime ignores those that nobody reads",
    ),
    Limit(r"Resize node .*: \d+ scales or sizes are given for 0 axes", "onnxruntime takes none for all"),
    Limit(
        r"(strides|dilations|pads) \[.*\] has \d+ entries for \d+ spatial axes",
        "onnxruntime reads the first of them",
    ),
    Limit(r"Conv node .*: pads \[.*\] must not be negative", "onnxruntime crops"),
    Limit(r"Conv node .*: input and weight must have the same rank of 3 or more", "images of no axes"),
    Limit(r"Resize node .*: roi holds numbers that are not finite", "onnxruntime makes sizes of NaN"),
    Limit(r"the element type float6\w+ is not supported", "vkml does not know it"),
    Limit(
        r"GroupNormalization node .*: (scale|bias) must have one entry",
        "onnxruntime reshapes whatever has as many",
    ),
    Limit(
        r"ReverseSequence node .*: batch_axis -?\d+ and time_axis -?\d+ must be 0 and 1",
        "onnxruntime looks at the one only",
    ),
    Limit(
        r"Compress node .*: the condition must have rank 1"
        r"|must be a list of integers, its shape is \[\d+, ",
        "onnxruntime reads any shape in a row",
    ),
    Limit(
        r"CenterCropPad node .*: shape \[(1|.*-\d+.*)\] must hold a size for each",
        "onnxruntime crops all axes to the one size, and takes any number for one",
    ),
    Limit(r"moving packed \w+ elements is not supported", "types below 8 bits are cast only"),
    Limit(
        r"the output '.*' is stated to be \w+ and computes to", "onnxruntime hands inputs on without a look"
    ),
    Limit(
        r"node .*: the attribute '.*' (must be|is not one of)",
        "onnxruntime passes over attributes that an operator does not have",
        lambda node: node is not None and _has_foreign_attribute(node),
    ),
    Limit(
        r"node .*: padding makes \d+ elements, input", "a bound of vkml's: a huge stride may hide huge pads"
    ),
    Limit(
        r"GridSample node .*: the input has element type (bool|string|complex)", "no numbers between these"
    ),
    Limit(r"which that field never has$", "protobuf's parsers take a field of another wire type for unknown"),
    Limit(
        r"(LpPool|GlobalLpPool) node .*: p is -?\d+; it must be positive", "no norm; onnxruntime computes on"
    ),
    Limit(r"Scatter(Elements|ND) node .*: reduction .* is not one of", "onnxruntime takes any text for none"),
    Limit(r"NegativeLogLikelihoodLoss node .*: reduction is", "onnxruntime takes any text for a sum"),
    Limit(
        r"MelWeightMatrix node .* filters from .* Hz of a transform",
        "no filters: their range is empty, or wider than the transform's",
    ),
    Limit(
        r"(NegativeLogLikelihood|SoftmaxCrossEntropy)Loss node .*: (labels must be|there must be a weight)",
        "onnxruntime reads what broadcasts or is there, of shapes that ONNX does not allow",
    ),
    Limit(
        r"Erf node .*: element type u?int\d+ is not", "of opset 9 only: no word on how results are rounded"
    ),
    Limit(r"the value '.*' is produced twice|is there twice", "onnxruntime lets one of two equal names win"),
)


def limit_of(message: str, proto: ModelProto | None) -> str | None:
    """The reason of a refusal that is known; None where it is not."""
    node = _named_in(message, proto)
    # Names may have lines.
    fitting = (
        limit for limit in LIMITS if re.search(limit.pattern, message, re.DOTALL) and limit.holds(node)
    )
    return next((limit.reason for limit in fitting), None)
