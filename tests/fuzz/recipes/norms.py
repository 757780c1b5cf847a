"""Normalisations over batches, channels, groups, rows and neighbours."""

from __future__ import annotations

from tests.fuzz.graphs import GraphBuilder, Skip, Value
from tests.fuzz.recipes.registry import data_input, recipe, some_axes
from tests.fuzz.recipes.windows import image
from tests.fuzz.tensors import Fill

EPSILONS = (None, None, 1e-3, 0.1, 1e-7)


def vector(build: GraphBuilder, code: int, shape: tuple[int, ...], fill: str = "ordinary") -> Value:
    return build.take([code], shape=shape, fill=Fill(fill), reuse=0.2)


@recipe("BatchNormalization")
def batch_normalization(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1, 5) if build.chance(0.5) else image(build, op)
    if build.chance(0.5):  # behind a convolution, into which it is folded
        found = build.having([data.code], 3, 5, lambda value: any(
            node.op_type == "Conv" and value.name in node.output for node in build.nodes))  # fmt: skip
        data = found or data
    shape = (data.dims[1] if len(data.dims) > 1 else 1,)
    statistics = [vector(build, data.code, shape) for _ in range(3)]
    variance = vector(build, data.code, shape, "positive")
    training = build.opset >= 14 and build.chance(0.2)
    attributes = {"epsilon": build.pick(*EPSILONS), "training_mode": 1 if training else None}
    attributes["momentum"] = build.pick(None, 0.5)
    build.node(op, [data, *statistics, variance], attributes, build.pick(1, 3) if training else 1)


@recipe("InstanceNormalization")
def instance_normalization(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    scale, bias = (vector(build, data.code, data.dims[1:2]) for _ in range(2))
    build.node(op, [data, scale, bias], {"epsilon": build.pick(*EPSILONS)})


@recipe("GroupNormalization")
def group_normalization(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    channels = data.dims[1]
    groups = build.pick(*(count for count in (1, 2, 4, channels) if count and channels % count == 0))
    scale, bias = (vector(build, data.code, (channels if build.opset >= 21 else groups,)) for _ in range(2))
    build.node(op, [data, scale, bias], {"epsilon": build.pick(*EPSILONS), "num_groups": groups})


@recipe("LayerNormalization", "RMSNormalization")
def layer_normalization(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = build.integer(0, data.rank - 1)
    shape = data.dims[axis:]
    if build.chance(0.15):
        shape = shape[build.integer(0, len(shape)) :]
    scale = vector(build, data.code, shape)
    attributes = {"epsilon": build.pick(*EPSILONS), "axis": build.pick(axis, axis - data.rank)}
    if op == "RMSNormalization":
        build.node(op, [data, scale], attributes)
        return
    bias = [vector(build, data.code, shape)] if build.chance(0.6) else []
    outputs = build.pick([True], [True], [True, True, True], [True, False, True])
    build.node(op, [data, scale, *bias], attributes, outputs)


@recipe("MeanVarianceNormalization")
def mean_variance(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1, 5)
    if data.rank == 4 and build.chance(0.5):
        build.node(op, [data])
        return
    axes = some_axes(build, data.rank)
    if not axes:
        raise Skip("no axes")
    build.node(op, [data], {"axes": axes})


@recipe("LRN")
def local_response(build: GraphBuilder, op: str) -> None:
    attributes = {
        "size": build.pick(1, 2, 3, 5),
        "alpha": build.pick(None, 0.5),
        "beta": build.pick(None, 0.5, 1.0),
    }
    build.node(op, [image(build, op)], {**attributes, "bias": build.pick(None, 2.0)})
