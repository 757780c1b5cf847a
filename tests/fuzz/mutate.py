"""Mutated cases: valid models whose structure is changed a little, so that most of vkml is still reached."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import vkml.ops  # noqa: F401  (fills the registry)
from tests.conformance import suite as conformance
from tests.fuzz.case import Case, Run
from tests.fuzz.generate import random_case, random_runs
from tests.fuzz.tensors import NATIVE, Array, random_tensor
from vkml.ir.operator import REGISTRY
from vkml.onnx.wire import encode_varint

INTEGERS = (0, 1, -1, 2, 3, -2, 5, 7, 64, 127, 2**16, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, math.inf, -math.inf, math.nan)
TEXTS = ("", "NOTSET", "SAME_UPPER", "linear", "nearest", "constant", "add", "?", "é\x00")
LARGEST_FEED = 1 << 18
FOLDER = Path(__file__).parents[3] / "shared" / "models"
SHARED = tuple(sorted(path for path in FOLDER.glob("*.onnx") if path.stat().st_size < 1 << 18))
"""Public models that lie beside this checkout, where they do."""
Mutation = Callable[[np.random.Generator, ModelProto], None]


def mutated_case(seed: int, index: int, chosen: Sequence[str] = ()) -> Case:
    """The case of a number; independent of all others. See `random_case`."""
    rng = np.random.default_rng([seed, index, 1])
    kind = rng.random() if not chosen else 1.0
    if kind < 0.03 and SHARED:
        base = shared_case(SHARED[int(rng.integers(len(SHARED)))])
    elif kind < 0.3:
        base = official_case(int(rng.integers(len(official()))))
    else:
        base = random_case(seed, int(rng.integers(1 << 40)), chosen)
    proto = base.proto()
    assert proto is not None
    names = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        names.append(mutation.__name__)
        mutation(rng, proto)
    data = proto.SerializeToString(deterministic=True)
    if rng.random() < 0.2:
        data = damaged(rng, data)
        names.append("damaged")
    feeds = tuple(fitting_feed(rng, proto, feed) for feed in base.feeds[:2])
    return replace(
        base,
        model=data,
        feeds=feeds,
        runs=random_runs(rng, len(feeds)),
        is_mutated=True,
        origin=f"mutated case {seed}:{index} ({', '.join(names)} of {base.origin})",
    )


def fitting_feed(rng: np.random.Generator, proto: ModelProto, feed: object) -> dict[str, Array]:
    """The old feed where it fits the inputs as they are now, and new values elsewhere."""
    assert isinstance(feed, dict)
    found = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        if tensor.elem_type not in known_codes():
            continue
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        old = feed.get(value.name)
        if old is not None and _fits(old, tensor.elem_type, sizes, tensor.HasField("shape")):
            found[value.name] = old
            continue
        shape = [2 if size < 0 else size for size in sizes]
        if math.prod(max(size, 1) for size in shape) > LARGEST_FEED or len(shape) > 32:
            shape = [min(size, 2) for size in shape][:32]
            if math.prod(shape) > LARGEST_FEED:
                shape = []
        found[value.name] = random_tensor(rng, tensor.elem_type, shape)
    return found


@functools.cache
def known_codes() -> frozenset[int]:
    codes = set()
    for code in TensorProto.DataType.values():
        try:
            helper.tensor_dtype_to_np_dtype(code)
        except (KeyError, TypeError, ValueError):
            continue
        codes.add(code)
    return frozenset(codes - {TensorProto.UNDEFINED})


def _fits(array: Array, code: int, sizes: list[int], has_shape: bool) -> bool:
    if array.dtype != helper.tensor_dtype_to_np_dtype(code):
        return False
    return not has_shape or (
        len(sizes) == array.ndim and all(a in (-1, b) for a, b in zip(sizes, array.shape, strict=True))
    )


# -- models of others --------------------------------------------------------------------------------------


def shared_case(path: Path) -> Case:
    """A public model; its inputs are filled when it has been mutated."""
    return Case(path.read_bytes(), ({},), (Run(0),), origin=f"the public model {path.name}")


# -- onnx's own test cases ----------------------------------------------------------------------------------


@functools.cache
def official() -> tuple[str, ...]:
    """Names of onnx's operator tests."""
    return tuple(sorted(_official()))


@functools.cache
def _official() -> dict[str, conformance.Case]:
    alone = {op for (_, op), spec in REGISTRY.items() if spec.stands_alone}
    return {
        name: case
        for name, case in conformance.suite().items()
        if case.kind == "node"
        and len(case.source_for_session()) < 1 << 20
        and all(value.type.HasField("tensor_type") for value in case.model().graph.input)
        # The judge follows tensors from node to node; bodies and sequences have test_wrapped.py.
        and not alone & case.operators
    }


def official_case(number: int) -> Case:
    """One of onnx's operator tests as it is."""
    found = _official()[official()[number]]
    model = found.model()
    arrays, _ = next(found.data_sets())
    feed = {value.name: _plain(array) for value, array in zip(model.graph.input, arrays, strict=False)}
    data = model.SerializeToString(deterministic=True)
    return Case(data, (feed,), random_runs(np.random.default_rng(number), 1), origin=f"onnx's {found.name}")


def _plain(array: object) -> Array:
    found = np.asarray(array)
    return found.astype(object) if found.dtype.kind in "US" else found


# -- mutations ----------------------------------------------------------------------------------------------


def _node(rng: np.random.Generator, proto: ModelProto) -> NodeProto | None:
    nodes = proto.graph.node
    return nodes[int(rng.integers(len(nodes)))] if nodes else None


def _names(proto: ModelProto) -> list[str]:
    graph = proto.graph
    found = [entry.name for entry in (*graph.input, *graph.initializer)]
    return found + [name for node in graph.node for name in node.output if name]


def _pick(rng: np.random.Generator, choices: object) -> object:
    options = list(choices)  # type: ignore[call-overload]
    return options[int(rng.integers(len(options)))]


def drop_node(rng: np.random.Generator, proto: ModelProto) -> None:
    """A node goes; its readers read its first input."""
    nodes = proto.graph.node
    if not nodes:
        return
    at = int(rng.integers(len(nodes)))
    gone = nodes[at]
    source = next((name for name in gone.input if name), "")
    del proto.graph.node[at]
    for node in proto.graph.node:
        node.input[:] = [source if name in gone.output else name for name in node.input]


def double_node(rng: np.random.Generator, proto: ModelProto) -> None:
    node = _node(rng, proto)
    if node is None:
        return
    copy = proto.graph.node.add()
    copy.CopyFrom(node)
    if rng.random() < 0.8:
        copy.output[:] = [f"{name}.again" if name else "" for name in copy.output]
        if copy.output and rng.random() < 0.5:
            proto.graph.output.append(helper.make_empty_tensor_value_info(copy.output[0]))


def rewire(rng: np.random.Generator, proto: ModelProto) -> None:
    """An input reads another value, or none."""
    node = _node(rng, proto)
    if node is not None and node.input:
        names = [*_names(proto), *_names(proto), "", "nowhere"]
        node.input[int(rng.integers(len(node.input)))] = str(_pick(rng, names))


def change_inputs(rng: np.random.Generator, proto: ModelProto) -> None:
    """Inputs swapped, one more, one less."""
    node = _node(rng, proto)
    if node is None:
        return
    names = list(node.input)
    chosen = rng.random()
    if chosen < 0.4 and names:
        names.pop()
    elif chosen < 0.7:
        names.append(str(_pick(rng, [*_names(proto), ""])))
    else:
        rng.shuffle(names)
    node.input[:] = names


def change_outputs(rng: np.random.Generator, proto: ModelProto) -> None:
    node = _node(rng, proto)
    if node is None or not node.output:
        return
    chosen = rng.random()
    if chosen < 0.3:
        node.output.append("one.more")
    elif chosen < 0.5:
        node.output[int(rng.integers(len(node.output)))] = ""
    elif chosen < 0.7:
        del node.output[-1]
    else:
        node.output[int(rng.integers(len(node.output)))] = str(_pick(rng, _names(proto)))


def change_operator(rng: np.random.Generator, proto: ModelProto) -> None:
    from tests.fuzz.recipes import RECIPES

    node = _node(rng, proto)
    if node is not None:
        node.op_type = str(_pick(rng, [name for name in RECIPES if name[0].isupper()]))
        if rng.random() < 0.5:
            del node.attribute[:]


def change_attribute(rng: np.random.Generator, proto: ModelProto) -> None:
    """An attribute goes, comes, or has another value or type."""
    node = _node(rng, proto)
    if node is None:
        return
    chosen = rng.random()
    if chosen < 0.2 or not node.attribute:
        name = str(
            _pick(rng, ("axis", "axes", "keepdims", "mode", "pads", "alpha", "to", "unheard-of", "group"))
        )
        node.attribute.append(helper.make_attribute(name, _pick(rng, (1, -1, 0, 0.5, "x", [1, 2]))))
        return
    at = int(rng.integers(len(node.attribute)))
    attribute = node.attribute[at]
    if chosen < 0.35:
        del node.attribute[at]
    elif chosen < 0.42:
        kind = _pick(rng, (1, 0.5, "linear", [1, 1], [0.5], []))
        fresh = helper.make_attribute(
            attribute.name, kind, attr_type=AttributeProto.INTS if kind == [] else None
        )
        attribute.CopyFrom(fresh)
    elif attribute.type == AttributeProto.INT:
        attribute.i = int(_pick(rng, INTEGERS))  # type: ignore[call-overload]
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = float(_pick(rng, FLOATS))  # type: ignore[arg-type]
    elif attribute.type == AttributeProto.STRING:
        attribute.s = str(_pick(rng, TEXTS)).encode()
    elif attribute.type == AttributeProto.INTS:
        numbers = list(attribute.ints)
        if numbers and rng.random() < 0.7:
            numbers[int(rng.integers(len(numbers)))] = int(_pick(rng, INTEGERS))  # type: ignore[call-overload]
        elif rng.random() < 0.5:
            numbers.append(1)
        elif numbers:
            numbers.pop()
        del attribute.ints[:]
        attribute.ints.extend(numbers)
    elif attribute.type == AttributeProto.TENSOR:
        change_tensor(rng, attribute.t)


def change_tensor(rng: np.random.Generator, tensor: TensorProto) -> None:
    """Values, shape, type or data of a tensor."""
    chosen = rng.random()
    if chosen < 0.5 and tensor.data_type in NATIVE:
        try:
            array = np.array(numpy_helper.to_array(tensor))
        except Exception:  # an earlier mutation may have made it unreadable
            return
        if not array.size:
            return
        at = int(rng.integers(array.size))
        options = FLOATS if array.dtype.kind == "f" else INTEGERS
        with np.errstate(all="ignore"):
            array.reshape(-1)[at] = np.array(_pick(rng, options)).astype(array.dtype)
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(array, name))
    elif chosen < 0.65 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = int(_pick(rng, (0, 1, 2, 3, -1, 2**31)))  # type: ignore[call-overload]
    elif chosen < 0.75:
        tensor.dims.append(1)
    elif chosen < 0.85:
        tensor.data_type = int(_pick(rng, TensorProto.DataType.values()))  # type: ignore[call-overload]
    elif tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data)))]
    else:
        del tensor.dims[:]


def change_constant(rng: np.random.Generator, proto: ModelProto) -> None:
    if proto.graph.initializer:
        change_tensor(rng, proto.graph.initializer[int(rng.integers(len(proto.graph.initializer)))])


def change_stated_type(rng: np.random.Generator, proto: ModelProto) -> None:
    """A type or a size that the model states of an input, an output or a value."""
    stated = [*proto.graph.input, *proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    if not stated:
        return
    tensor = stated[int(rng.integers(len(stated)))].type.tensor_type
    chosen = rng.random()
    if chosen < 0.3:
        tensor.elem_type = int(_pick(rng, [*TensorProto.DataType.values(), *NATIVE, *NATIVE]))  # type: ignore[call-overload]
    elif chosen < 0.8 and tensor.shape.dim:
        dim = tensor.shape.dim[int(rng.integers(len(tensor.shape.dim)))]
        if rng.random() < 0.3:
            dim.dim_param = str(_pick(rng, ("n", "m", "")))
        else:
            dim.dim_value = int(_pick(rng, (0, 1, 2, 3, 4, -1, 2**31, 2**62)))  # type: ignore[call-overload]
    elif chosen < 0.9:
        tensor.shape.dim.add().dim_value = 1
    else:
        tensor.ClearField("shape")


def change_graph(rng: np.random.Generator, proto: ModelProto) -> None:
    """What the graph takes and gives."""
    graph = proto.graph
    chosen = rng.random()
    if chosen < 0.25 and len(graph.output) > 1:
        del graph.output[int(rng.integers(len(graph.output)))]
    elif chosen < 0.5:
        names = _names(proto)
        if names:
            graph.output.append(helper.make_empty_tensor_value_info(str(_pick(rng, names))))
    elif chosen < 0.7 and graph.initializer:  # a constant that becomes an input
        at = int(rng.integers(len(graph.initializer)))
        tensor = graph.initializer[at]
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        del graph.initializer[at]
    elif graph.input:
        del graph.input[int(rng.integers(len(graph.input)))]


def change_version(rng: np.random.Generator, proto: ModelProto) -> None:
    if rng.random() < 0.85 and proto.opset_import:
        entry = proto.opset_import[0]
        entry.version = int(_pick(rng, [*range(1, 27), entry.version + 1, entry.version - 1, 99, 0, -1]))  # type: ignore[call-overload]
    else:
        proto.ir_version = int(_pick(rng, (0, 1, 3, 4, 7, 8, 9, 10, 11, 99)))  # type: ignore[call-overload]


def shuffle_nodes(rng: np.random.Generator, proto: ModelProto) -> None:
    nodes = [proto.graph.node[int(at)] for at in rng.permutation(len(proto.graph.node))]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """The file cut off, or with bytes changed, left out, or put in from elsewhere."""
    if not data:
        return data
    at = int(rng.integers(len(data)))
    chosen = rng.random()
    if chosen < 0.2:
        return data[:at]
    if chosen < 0.5:
        return data[:at] + bytes([int(rng.integers(256))]) + data[at + 1 :]
    if chosen < 0.7:  # lengths, sizes and types are all such numbers
        number = encode_varint(int(_pick(rng, INTEGERS)) % 2**64)  # type: ignore[call-overload]
        return data[:at] + number + data[at + len(number) :]
    if chosen < 0.85:
        return data[:at] + data[at + int(rng.integers(1, 20)) :]
    other = int(rng.integers(len(data)))
    return data[:at] + data[other : other + int(rng.integers(1, 40))] + data[at:]


MUTATIONS: tuple[Mutation, ...] = (
    *(drop_node, double_node, rewire, rewire, change_inputs, change_outputs, change_operator),
    *(change_attribute, change_attribute, change_attribute, change_constant, change_constant),
    *(change_stated_type, change_stated_type, change_graph, change_version, shuffle_nodes),
)
