"""Random cases: a graph of a few nodes made a model, with feeds at several sizes and awkward names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from tests.fuzz.case import POISON, PRESENTATIONS, Case, Run
from tests.fuzz.graphs import GraphBuilder, Value
from tests.fuzz.recipes import RECIPES
from tests.fuzz.tensors import Array, random_tensor

OPSETS = (*range(7, 13), 13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 20, 21, 21, 22, 22, 23, 23, 24, 25, 26, 28)
MOST_NODES = 12
NETWORK = (
    *["Conv"] * 5, *["conv_and_norm", "MaxPool", "AveragePool", "chain", "Concat", "Add", "Mul"] * 2,
    *["ConvTranspose", "MatMul", "Resize", "Split", "Transpose", "Slice", "BatchNormalization"] * 2,
    "Relu", "Sigmoid", "Tanh", "HardSwish", "Gelu", "LeakyRelu", "Clip", "Sub", "Max", "Where", "Reshape",
    "Expand", "Softmax", "LogSoftmax", "LayerNormalization", "ReduceMean", "ReduceMax", "ReduceSum", "Gemm",
    "Gather", "Pad", "GlobalAveragePool", "Flatten", "PRelu", "InstanceNormalization", "Cast", "Squeeze",
)  # fmt: skip
"""What networks are made of: the operators that are fused, laid out and compiled together."""
HOSTILE = (
    " ",
    "0",
    "\n",
    "\x1b[31mred\x1b[0m",
    "é",
    "a b",
    "x:0",
    "None",
    "\x7f",
    "%s",
    "{}",
    "../x",
    "ü" * 300,
    "~product",
    "~addend",
    "~sum",
)
MADE_UP = (
    "epsilon", "mask", "shape", "aligned", "inlined", "carried", "goes on", "trip 0", "axis", "row 0",
    "item 0", "result 0", "length", "zero", "made 0", "Unsqueeze 0",
)  # fmt: skip
"""What rewrites put behind `<output>/`."""
Shapes = dict[str, tuple[int | str, ...]]


def random_case(seed: int, index: int, chosen: Sequence[str] = ()) -> Case:
    """The case of a number; the same for the same seed, whatever came before.

    Args:
        seed: of a campaign.
        index: the case's number in it.
        chosen: operators and patterns to draw from; all, where none are chosen.
    """
    rng = np.random.default_rng([seed, index])
    kind = str(rng.choice(["small", "large", "network"], p=[0.8, 0.05, 0.15]))
    most_elements = {"small": 2_500, "large": 40_000, "network": 10_000}[kind]
    build = GraphBuilder(rng, int(rng.choice(OPSETS)), most_elements, kind == "network")
    ops = sorted(chosen or RECIPES) if kind != "network" or chosen else list(NETWORK)
    goal = 1 if rng.random() < 0.25 and kind != "network" else int(rng.integers(2, MOST_NODES + 1))
    for _ in range(goal * 6):
        build.attempt(RECIPES[op := ops[int(rng.integers(len(ops)))]], op)
        if len(build.nodes) >= goal:
            break
    if not build.nodes:
        build.attempt(RECIPES["Relu"], "Relu")
    shapes, sizes = open_dimensions(build)
    model = assembled(build, shapes)
    feeds = [feed(build, shapes, bound) for bound in sizes]
    if rng.random() < 0.5:
        feeds.insert(1, feed(build, shapes, sizes[0]))
    if rng.random() < 0.25:
        renaming = hostile_names(build, model)
        rename(model, renaming)
        feeds = [{renaming.get(name, name): array for name, array in entry.items()} for entry in feeds]
    return Case(
        model.SerializeToString(deterministic=True),
        tuple(feeds),
        random_runs(rng, len(feeds)),
        optimise=bool(rng.random() < 0.9),
        precision="highest" if rng.random() < 0.8 else "high",
        threads=int(rng.choice([0, 0, 0, 1, 3])),
        origin=f"random case {seed}:{index}",
    )


def random_runs(rng: np.random.Generator, feeds: int) -> tuple[Run, ...]:
    """Every feed once, some of them again, handed over in different ways."""
    runs: list[Run] = []
    for number in [*range(feeds), *rng.integers(0, feeds, int(rng.integers(0, 4)))]:
        way = str(rng.choice(PRESENTATIONS)) if rng.random() < 0.4 else "plain"
        if rng.random() < 0.15:
            runs.append(Run(int(number), POISON))
        runs.append(Run(int(number), way))
    return tuple(runs)


# -- sizes --------------------------------------------------------------------------------------------------


def open_dimensions(build: GraphBuilder) -> tuple[Shapes, list[dict[str, int]]]:
    """Shapes of the inputs, some sizes made symbols, and what these are bound to, the built sizes first."""
    shapes: Shapes = {name: value.dims for name, (value, _) in build.inputs.items()}
    bound: dict[str, int] = {}
    free = sorted(
        {size for value, fill in build.inputs.values() if fill.style != "fixed" for size in value.dims}
    )
    if free and build.chance(0.4):
        for symbol in ("n", "m")[: build.integer(1, 2)]:
            size = build.pick(*free)
            if size in bound.values():
                continue
            bound[symbol] = size
            everywhere = build.chance(0.7)
            for name, shape in shapes.items():
                if build.inputs[name][1].style == "fixed":
                    continue
                shapes[name] = tuple(
                    symbol if entry == size and (everywhere or build.chance(0.7)) else entry
                    for entry in shape
                )
        used = {entry for shape in shapes.values() for entry in shape}
        bound = {symbol: size for symbol, size in bound.items() if symbol in used}
    sizes = [bound]
    if bound:
        for _ in range(build.integer(1, 2)):
            sizes.append(
                {symbol: build.pick(1, 2, 3, 5, size + 1, 2 * size) for symbol, size in bound.items()}
            )
    return shapes, sizes


def feed(build: GraphBuilder, shapes: Shapes, bound: dict[str, int]) -> dict[str, Array]:
    """Values for all inputs at one binding of the symbols."""
    found = {}
    for name, (value, fill) in build.inputs.items():
        if fill.style == "fixed" and value.data is not None:
            found[name] = value.data
            continue
        shape = [bound[size] if isinstance(size, str) else size for size in shapes[name]]
        found[name] = random_tensor(build.rng, value.code, shape, fill)
    return found


# -- the model ----------------------------------------------------------------------------------------------


def assembled(build: GraphBuilder, shapes: Shapes) -> ModelProto:
    """The graph as a model, its form varied where the format leaves a choice."""
    read = {name for node in build.nodes for name in node.input}
    made = {name for node in build.nodes for name in node.output}
    inner = [value for value in build.values if value.name in made]
    wanted = [value for value in inner if value.name not in read or build.chance(0.12)] or inner[-1:]
    spare = [value for value in build.values if value.name not in made]
    if spare and build.chance(0.1):
        wanted.append(build.pick(*spare))  # an input or a constant that is an output as it is
    build.rng.shuffle(wanted)  # type: ignore[arg-type]
    nodes, constants = list(build.nodes), []
    for value in build.constants.values():
        if value.name not in read and value not in wanted and build.chance(0.7):
            continue
        assert value.data is not None
        tensor = numpy_helper.from_array(value.data, value.name)
        if build.chance(0.2):
            nodes.insert(0, helper.make_node("Constant", [], [value.name], value=tensor))
        else:
            constants.append(tensor)
    inputs = [
        helper.make_tensor_value_info(name, value.code, [None if s == "m" else s for s in shapes[name]])
        for name, (value, _) in build.inputs.items()
        if name in read or value in wanted or build.chance(0.9)
    ]
    for name in set(build.inputs) - {entry.name for entry in inputs}:
        del build.inputs[name]
    is_old = build.opset < 9 and build.chance(0.5)
    if is_old:  # before IR version 4 every initializer was an input too
        inputs += [helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in constants]
    is_static = all(isinstance(size, int) for shape in shapes.values() for size in shape)
    outputs = [stated(build, value, is_static) for value in wanted]
    graph = helper.make_graph(nodes, "random", inputs, outputs, constants)
    if is_static and build.chance(0.15):
        graph.value_info.extend(
            helper.make_tensor_value_info(value.name, value.code, value.shape)
            for value in inner
            if value.shape is not None and value not in wanted
        )
    imports = [helper.make_opsetid("", build.opset)]
    version = 3 if is_old else 10 if build.opset <= 21 else 11 if build.opset <= 23 else 12
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


def stated(build: GraphBuilder, value: Value, is_static: bool) -> ValueInfoProto:
    """What the model says of an output: all, its type, next to nothing, or sizes that no longer hold."""
    chosen = build.rng.random()
    if value.shape is None or not is_static or chosen < 0.25:
        shape = None
        if value.shape is not None and build.chance(0.4):
            shape = [None] * len(value.shape)
        return helper.make_tensor_value_info(value.name, value.code, shape)
    if chosen < 0.4:
        return helper.make_empty_tensor_value_info(value.name)
    dims: Sequence[int | None] = value.shape
    if chosen > 0.97 and value.shape:
        dims = [size + 1 if build.chance(0.5) else size for size in value.shape]
    return helper.make_tensor_value_info(value.name, value.code, dims)


def hostile_names(build: GraphBuilder, model: ModelProto) -> dict[str, str]:
    """New names for some values: what passes might make up for others, and what prints badly."""
    names = [value.name for value in build.values]
    derived = [
        text
        for node in model.graph.node
        for name in node.output
        if name
        for text in (
            *(f"{name}+bias", f"{name}+weight", f"{name}/axes", f"{name}/split", f"{name}:0", f"{name}_0"),
            *(f"{name}/{end}" for end in MADE_UP),
            *(f"{name}~factor", f"{name}~scaled"),
            *(f"{source}*{name}" for source in node.input if source),
            *(f"{other.input[1]}*{name}" for other in model.graph.node if len(other.input) > 1),
        )
    ]
    pool = [*derived, *derived, *HOSTILE, "output", "constant_0"]
    renaming: dict[str, str] = {}
    taken = set(names)
    for name in names:
        fresh = pool[build.integer(0, len(pool) - 1)]
        if build.chance(0.5) and fresh not in taken:
            renaming[name] = fresh
            taken.add(fresh)
    return renaming


def rename(model: ModelProto, renaming: dict[str, str]) -> None:
    """Gives values other names, everywhere in the graph."""
    graph = model.graph
    for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        entry.name = renaming.get(entry.name, entry.name)
    for node in graph.node:
        node.input[:] = [renaming.get(name, name) for name in node.input]
        node.output[:] = [renaming.get(name, name) for name in node.output]
