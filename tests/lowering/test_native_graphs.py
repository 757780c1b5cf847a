"""Random graphs: machine code for both instruction sets against NumPy, node by node and fused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.options import GraphOptimizationLevel, SessionOptions
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, Node
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

SETS = [InstructionSet.AVX2]
if instruction_set() is InstructionSet.AVX512:
    SETS.append(InstructionSet.AVX512)
MOST_ELEMENTS = 60_000
NODES = 14


class RandomGraph:
    """A graph under construction, whose values stay of the order of one; `shapes` knows them all."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.sketch = Sketch("random", 20)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.feeds: dict[str, tuple[int, ...]] = {}
        self.made: list[str] = []
        self.rounds = False
        """Whether a value passes through float16: what differs by one rounding then differs by 1e-3."""
        for number in range(int(self.rng.integers(1, 4))):
            self.input(f"x{number}", self.shape())

    def shape(self) -> tuple[int, ...]:
        rng = self.rng
        if rng.random() < 0.75:
            side = 40 if rng.random() < 0.2 else 12
            spatial = [int(size) for size in rng.integers(1, side, 1 if rng.random() < 0.2 else 2)]
            if rng.random() < 0.5:
                spatial = spatial[:1] * len(spatial)
            return (int(rng.integers(1, 3)), int(rng.choice([1, 2, 3, 8, 16, 17, 33])), *spatial)
        return tuple(int(size) for size in rng.integers(1, 20, int(rng.integers(2, 5))))

    def input(self, name: str, shape: Sequence[int]) -> str:
        self.feeds[name] = self.shapes[name] = tuple(shape)
        return self.sketch.input(name, shape)

    def constant(self, *shape: int, scale: float = 1.0) -> str:
        return self.sketch.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.sketch.constant(np.array(values, np.int64))

    def any(self, *ranks: int) -> str | None:
        """A value of one of these ranks (none stated: of any), the latest being likelier."""
        found = [name for name, shape in self.shapes.items() if not ranks or len(shape) in ranks]
        if not found:
            return None
        return found[-1 - min(int(self.rng.exponential(2.5)), len(found) - 1)]

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def node(self, op: str, *inputs: str, shape: Sequence[int], **attributes: Any) -> str | None:
        """Adds a node unless its result is empty or large."""
        if not 0 < math.prod(shape) <= MOST_ELEMENTS:
            return None
        name = self.sketch.node(op, *inputs, **attributes)
        self.shapes[name] = tuple(shape)
        self.made.append(name)
        return name

    # -- operators ------------------------------------------------------------------------------------------

    def windows(self, spatial: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Attributes of a sliding window, and the sizes of what it makes."""
        kernel = [self.integer(1, 3) for _ in spatial]
        if self.rng.random() < 0.5:
            kernel = [3 for _ in spatial]
        strides = [self.integer(1, 2) for _ in spatial]
        dilations = [1 if self.rng.random() < 0.7 else 2 for _ in spatial]
        begin = [self.integer(0, k - 1) for k in kernel]
        end = begin if self.rng.random() < 0.6 else [self.integer(0, k - 1) for k in kernel]
        sizes = [
            (size + b + e - (k - 1) * d - 1) // s + 1
            for size, b, e, k, d, s in zip(spatial, begin, end, kernel, dilations, strides, strict=True)
        ]
        shared = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [*begin, *end]}
        return shared, sizes if all(size > 0 for size in sizes) else [0]

    def conv(self) -> None:
        x = self.any(3, 4)
        if x is None:
            return
        images, channels, *spatial = self.shapes[x]
        shared, sizes = self.windows(spatial)
        groups = [g for g in (1, 2, 3, channels) if channels % g == 0]
        group = 1 if self.rng.random() < 0.6 else int(self.rng.choice(groups))
        filters = group * self.integer(1, max(1, 24 // group))
        if group == channels and self.rng.random() < 0.7:
            filters = channels
        inner = channels // group
        taps = shared["kernel_shape"]
        weight = self.constant(filters, inner, *taps, scale=1 / math.sqrt(inner * math.prod(taps)))
        bias = [self.constant(filters)] if self.rng.random() < 0.5 else []
        self.node("Conv", x, weight, *bias, shape=(images, filters, *sizes), group=group, **shared)

    def pool(self) -> None:
        x = self.any(3, 4)
        if x is None:
            return
        images, channels, *spatial = self.shapes[x]
        shared, sizes = self.windows(spatial)
        if self.rng.random() < 0.5:
            self.node("MaxPool", x, shape=(images, channels, *sizes), **shared)
        else:
            extra = {"count_include_pad": self.integer(0, 1)}
            self.node("AveragePool", x, shape=(images, channels, *sizes), **shared, **extra)

    def whole_pool(self) -> None:
        x = self.any(3, 4)
        if x is not None:
            shape = self.shapes[x]
            self.node("GlobalAveragePool", x, shape=(*shape[:2], *(1 for _ in shape[2:])))

    def unary(self) -> None:
        x = self.any()
        assert x is not None
        op = str(self.rng.choice(["Relu", "Relu", "Tanh", "Sigmoid", "Neg", "Abs", "HardSwish", "Gelu", "Erf",
                                  "LeakyRelu", "Identity", "Softplus"]))  # fmt: skip
        self.node(op, x, shape=self.shapes[x])

    def binary(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        op = str(self.rng.choice(["Add", "Add", "Mul", "Sub", "Max", "Min"]))
        same = [name for name, other in self.shapes.items() if other == shape]
        if self.rng.random() < 0.6:
            other = str(self.rng.choice(same))
            other_shape = shape
        else:
            other_shape = tuple(size if self.rng.random() < 0.5 else 1 for size in shape)
            other_shape = other_shape[self.integer(0, len(shape) - 1) :]
            other = self.constant(*other_shape)
            if self.rng.random() < 0.3:
                other = self.input(f"y{len(self.feeds)}", other_shape)
        if op == "Mul":
            x = self.node("Tanh", x, shape=shape) or x
            other = self.node("Sigmoid", other, shape=other_shape) or other
        pair = (x, other) if self.rng.random() < 0.5 else (other, x)
        self.node(op, *pair, shape=shape)

    def select(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        mask = self.sketch.constant(self.rng.random(shape[-1:]) < 0.5)
        other = str(self.rng.choice([name for name, other in self.shapes.items() if other == shape]))
        self.node("Where", mask, x, other, shape=shape)

    def halves(self) -> None:
        x = self.any()
        assert x is not None
        self.rounds = True
        half = self.sketch.node("Cast", x, to=10)
        if self.rng.random() < 0.5:
            half = self.sketch.node("Relu", half)
        self.node("Cast", half, shape=self.shapes[x], to=1)

    def concat(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        axis = 1 if self.rng.random() < 0.6 and len(shape) > 1 else self.integer(0, len(shape) - 1)
        fitting = [
            name
            for name, other in self.shapes.items()
            if len(other) == len(shape) and all(a == b or at == axis for at, (a, b) in
                                                enumerate(zip(shape, other, strict=True)))
        ]  # fmt: skip
        parts = [str(self.rng.choice(fitting)) for _ in range(self.integer(1, 3))] + [x]
        if self.rng.random() < 0.2:
            parts.append(self.constant(*shape))
            self.shapes[parts[-1]] = shape
        self.rng.shuffle(parts)
        total = sum(self.shapes[part][axis] for part in parts)
        self.node(
            "Concat", *parts, shape=(*shape[:axis], total, *shape[axis + 1 :]),
            axis=axis if self.rng.random() < 0.5 else axis - len(shape),
        )  # fmt: skip
        for name in [name for name in self.shapes if name.startswith("constant")]:
            del self.shapes[name]

    def split(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        axis = 1 if self.rng.random() < 0.6 and len(shape) > 1 else self.integer(0, len(shape) - 1)
        if shape[axis] < 2:
            return
        first = self.integer(1, shape[axis] - 1)
        sizes = (first, shape[axis] - first)
        names = tuple(f"split_{len(self.sketch._nodes)}_{part}" for part in range(2))
        inputs = (x, self.integers(*sizes))
        self.sketch._nodes.append(Node("Split", inputs, names, {"axis": axis}, names[0], version=20))
        for name, size in zip(names, sizes, strict=True):
            self.shapes[name] = (*shape[:axis], size, *shape[axis + 1 :])
            self.made.append(name)

    def transpose(self) -> None:
        x = self.any()
        assert x is not None
        order = [int(axis) for axis in self.rng.permutation(len(self.shapes[x]))]
        self.node("Transpose", x, shape=[self.shapes[x][axis] for axis in order], perm=order)

    def reshape(self) -> None:
        x = self.any()
        assert x is not None
        left, shape = math.prod(self.shapes[x]), []
        while left > 1 and len(shape) < 3:
            size = int(self.rng.choice([size for size in range(1, left + 1) if left % size == 0]))
            shape.append(size)
            left //= size
        shape.append(left)
        self.node("Reshape", x, self.integers(*shape), shape=shape)

    def slice(self) -> None:
        x = self.any()
        assert x is not None
        starts, stops, steps, shape = [], [], [], []
        for size in self.shapes[x]:
            step = int(self.rng.choice([1, 1, 1, 2, -1, -2]))
            start, stop = 0, size
            if self.rng.random() < 0.4:
                start = self.integer(0, size - 1)
                stop = self.integer(start + 1, size)
            if step < 0:
                start, stop = stop - 1, start - 1 if start else -(2**31)
            starts.append(start)
            stops.append(stop)
            steps.append(step)
            shape.append(len(range(size)[slice(start, stop if stop > -(2**31) else None, step)]))
        axes = self.integers(*range(len(shape)))
        self.node(
            "Slice",
            x,
            self.integers(*starts),
            self.integers(*stops),
            axes,
            self.integers(*steps),
            shape=shape,
        )

    def expand(self) -> None:
        x = self.any()
        assert x is not None
        shape = [size if size > 1 else self.integer(1, 4) for size in self.shapes[x]]
        self.node("Expand", x, self.integers(*shape), shape=shape)

    def rows(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        op = str(self.rng.choice(["Softmax", "LogSoftmax", "LayerNormalization"]))
        if op == "LayerNormalization":
            # With a small epsilon rounding errors of the rows before grow without bounds.
            scale, bias = self.constant(shape[-1]), self.constant(shape[-1])
            self.node(op, x, scale, bias, shape=shape, axis=-1, epsilon=0.1)
        else:
            self.node(op, x, shape=shape, axis=self.integer(0, len(shape) - 1))

    def reduce(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        axes = [axis for axis in range(len(shape)) if self.rng.random() < 0.5] or [len(shape) - 1]
        keeps = self.integer(0, 1)
        left = [1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes]
        op = str(self.rng.choice(["ReduceMean", "ReduceMax", "ReduceMin"]))
        if left:
            self.node(op, x, self.integers(*axes), shape=left, keepdims=keeps)

    def resize(self) -> None:
        x = self.any(4)
        if x is None:
            return
        shape = self.shapes[x]
        factors = [1, 1, self.integer(1, 3), self.integer(1, 3)]
        scales = self.sketch.constant(np.array(factors, np.float32))
        sizes = [size * factor for size, factor in zip(shape, factors, strict=True)]
        mode = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if self.rng.random() < 0.3:
            mode = {"mode": "linear"}
        self.node("Resize", x, "", scales, shape=sizes, **mode)

    def matmul(self) -> None:
        x = self.any(2, 3, 4)
        if x is None:
            return
        shape = self.shapes[x]
        other = [
            name
            for name, theirs in self.shapes.items()
            if len(theirs) in (2, len(shape)) and theirs[-2] == shape[-1] and theirs[:-2] in ((), shape[:-2])
        ]
        if other and self.rng.random() < 0.3:
            weight = str(self.rng.choice(other))
            columns = self.shapes[weight][-1]
        elif self.rng.random() < 0.2:
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            columns = shape[-2]
            turned = self.node("Transpose", x, shape=[shape[axis] for axis in order], perm=order)
            if turned is None:
                return
            weight = turned
        else:
            columns = self.integer(1, 40)
            weight = self.constant(shape[-1], columns)
        scaled = self.node("Tanh", x, shape=shape)
        if scaled is None:
            return
        made = self.node("MatMul", scaled, weight, shape=(*shape[:-1], columns))
        if made is not None:
            factor = self.sketch.constant(np.float32(1 / math.sqrt(shape[-1])))
            self.node("Mul", made, factor, shape=(*shape[:-1], columns))

    def gather(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        axis = self.integer(0, len(shape) - 1)
        picked = self.rng.integers(-shape[axis], shape[axis], self.integer(1, 5))
        shape = (*shape[:axis], len(picked), *shape[axis + 1 :])
        self.node("Gather", x, self.sketch.constant(picked), shape=shape, axis=axis)

    def pad(self) -> None:
        x = self.any()
        assert x is not None
        shape = self.shapes[x]
        pads = [self.integer(0, 1) for _ in range(2 * len(shape))]
        sizes = [size + b + e for size, b, e in
                 zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)]  # fmt: skip
        self.node("Pad", x, self.integers(*pads), shape=sizes)

    def grow(self, nodes: int) -> Graph:
        """Adds nodes; the last value, some others and some that are read again become outputs."""
        kinds: list[Callable[[], None]] = [
            *[self.conv] * 5, *[self.pool] * 3, *[self.unary] * 3, *[self.binary] * 4, *[self.concat] * 4,
            self.split, self.split, self.transpose, self.transpose, self.reshape, self.slice, self.slice,
            self.expand, self.rows, self.reduce, self.resize, self.resize, self.matmul, self.matmul,
            self.gather, self.pad, self.select, self.halves, self.whole_pool,
        ]  # fmt: skip
        while len(self.made) < nodes:
            kinds[int(self.rng.integers(len(kinds)))]()
        used = {name for node in self.sketch._nodes for name in node.inputs}
        wanted = [name for name in self.made if name not in used or self.rng.random() < 0.15]
        wanted += [self.made[-1]] if self.rng.random() < 0.2 else []
        return self.sketch.finish(*wanted)


def awkward(array: Array, number: int) -> Array:
    """The same numbers, in memory as callers may have them."""
    if number % 4 == 1:
        raw = bytearray(array.nbytes + 1)
        made = np.frombuffer(raw, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        made[...] = array
        return made
    if number % 4 == 2:
        array = np.asfortranarray(array)
    if number % 4 == 3:
        array = array.copy()
        array.flags.writeable = False
    return array


def run(graph: Graph, feeds: Sequence[dict[str, Array]], instructions: InstructionSet | None, level: int,
        monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Array]], set[str]]:  # fmt: skip
    """What a session returns for each feed, and the variants of its steps."""
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: instructions)
    options = SessionOptions(graph_optimization_level=GraphOptimizationLevel(level))
    with vkml.InferenceSession(save_graph(graph), options, devices="cpu") as session:
        results = [session.run(None, feed) for feed in feeds]
        return results, {step.variant for step in session.report().steps}


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Compares one graph; the variants that ran."""
    random = RandomGraph(seed)
    graph = random.grow(NODES)
    feed = {name: random.rng.standard_normal(shape).astype(np.float32)
            for name, shape in random.feeds.items()}  # fmt: skip
    again = {name: awkward(array, number + seed) for number, (name, array) in enumerate(feed.items())}
    # What a run leaves in memory must not matter to the next.
    poison = {name: np.full_like(array, np.nan) for name, array in feed.items()}
    [wanted], _ = run(graph, [feed], None, 0, monkeypatch)
    variants: set[str] = set()
    for instructions in SETS:
        for level in (0, 99):
            (first, _, second, third), seen = run(
                graph, [feed, poison, feed, again], instructions, level, monkeypatch
            )
            variants |= seen
            for number, value in enumerate(wanted):
                bound = (3e-3 if random.rounds else 2e-4) * max(1.0, float(np.abs(value).max()))
                label = f"seed {seed}, {instructions.value}, level {level}, output {number}"
                np.testing.assert_allclose(first[number], value, rtol=0, atol=bound, err_msg=label)
                np.testing.assert_array_equal(second[number], first[number], err_msg=f"{label}, again")
                # NumPy's own sums (LogSoftmax) differ in the last place with the order of the memory.
                other = f"{label}, other memory"
                np.testing.assert_allclose(third[number], value, rtol=0, atol=bound, err_msg=other)
    return variants


@pytest.mark.parametrize("first", range(0, 24, 4))
def test_random_graphs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variants: set[str] = set()
    for seed in range(first, first + 4):
        variants |= check(seed, monkeypatch)
    assert variants >= {instructions.value for instructions in SETS}
