"""Graphs of many nodes, inputs, outputs or weights, and how long they take to load.

As a program it takes a case, a device and counts, and prints the seconds of processor time of each count,
after a first load that compiles what kernels there are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import vkml
from vkml.engine.sketch import OPSET, Sketch
from vkml.ir import Graph, Node, TensorType, Value, dtypes
from vkml.ir.types import UNKNOWN
from vkml.onnx import save_graph


def _outputs(sketch: Sketch, values: list[str]) -> Graph:
    """The graph with these values as its outputs, under their own names."""
    return replace(sketch.finish(), outputs=tuple(Value(value, UNKNOWN) for value in values))


def sum_of_inputs(count: int) -> Graph:
    sketch = Sketch("sum")
    return sketch.finish(sketch.node("Sum", *(sketch.input(f"x{at}", (4,)) for at in range(count // 5))))


def concatenation(count: int) -> Graph:
    sketch = Sketch("concatenation")
    x = sketch.input("x", (4,))
    return sketch.finish(sketch.node("Concat", *[x] * count, axis=0))


def concatenation_of_results(count: int) -> Graph:
    sketch = Sketch("concatenation")
    x = sketch.input("x", (4,))
    return sketch.finish(sketch.node("Concat", *(sketch.node("Neg", x) for _ in range(count // 2)), axis=0))


def chain(count: int) -> Graph:
    """Add, Relu, Identity, Reshape, and again."""
    sketch = Sketch("chain")
    x = sketch.input("x", (2, 2))
    half = sketch.constant(np.float32(0.5))
    shapes = [sketch.constant(np.array(shape)) for shape in ([4], [2, 2])]
    for at in range(count // 4):
        x = sketch.node("Relu", sketch.node("Add", x, half))
        x = sketch.node("Reshape", sketch.node("Identity", x), shapes[at % 2])
    return sketch.finish(x)


def consumers(count: int) -> Graph:
    """One value, read by independent nodes, each of which makes an output."""
    sketch = Sketch("consumers")
    x = sketch.node("Tanh", sketch.input("x", (4,)))
    operators = ("Relu", "Neg", "Abs", "Exp")
    return _outputs(sketch, [sketch.node(operators[at % 4], x) for at in range(count)])


def outputs(count: int) -> Graph:
    """One value under many names."""
    sketch = Sketch("outputs")
    value = sketch.node("Relu", sketch.input("x", (4,)))
    for at in range(count):
        sketch.output(value, f"y{at}")
    return sketch.finish()


def initializers(count: int) -> Graph:
    sketch = Sketch("initializers")
    x = sketch.input("x", (4,))
    for at in range(count):
        x = sketch.node("Add", x, sketch.constant(np.full(4, at % 7, np.float32)))
    return sketch.finish(x)


def folded(count: int) -> Graph:
    """A chain of constants."""
    sketch = Sketch("folded")
    value = sketch.constant(np.ones(4, np.float32))
    for _ in range(count):
        value = sketch.node("Neg", value)
    return sketch.finish(sketch.node("Add", sketch.input("x", (4,)), value))


def normalised(count: int) -> Graph:
    """Convolutions, each with its BatchNormalization."""
    sketch = Sketch("normalised")
    x = sketch.input("x", (1, 1, 3, 3))
    for at in range(count // 4):
        x = sketch.node("Conv", x, sketch.constant(np.full((1, 1, 1, 1), 1 + at % 3, np.float32)))
        statistics = (sketch.constant(np.ones(1, np.float32)) for _ in range(4))
        x = sketch.node("BatchNormalization", x, *statistics)
    return sketch.finish(x)


def alive(count: int) -> Graph:
    """Values that all live to the end."""
    sketch = Sketch("alive")
    x = sketch.input("x", (4,))
    made = []
    for _ in range(count // 4):
        x = sketch.node("Softmax", x)
        made.append(x)
    return sketch.finish(sketch.node("Concat", *reversed(made), axis=0))


def lattice(count: int) -> Graph:
    """Two chains that read each other."""
    sketch = Sketch("lattice")
    x = sketch.input("x", (4,))
    y = sketch.node("Neg", x)
    for _ in range(count // 8):
        a, b = sketch.node("Softmax", x), sketch.node("Softmax", y)
        x, y = sketch.node("Add", a, b), sketch.node("Mul", b, a)
    return sketch.finish(x, y)


def refused(count: int) -> Graph:
    """Every second node has no machine code."""
    sketch = Sketch("refused")
    x, places = sketch.input("x", (4,)), sketch.constant(np.arange(4).reshape(4, 1))
    for _ in range(count // 4):
        x = sketch.node("GatherND", sketch.node("Softmax", x), places)
    return sketch.finish(x)


def bodies(count: int) -> Graph:
    """If, Loop and Scan in turn, each with one of its inputs from the last; nodes of bodies count."""
    sketch = Sketch("bodies")
    x = sketch.input("x", (4,))
    condition = sketch.input("condition", (), dtypes.BOOL)
    trips = sketch.input("trips", (), dtypes.INT64)

    def body(inputs: list[Value], *nodes: tuple[str, list[str], str], outputs: list[Value]) -> Graph:
        made = tuple(Node(op, tuple(read), (name,), version=OPSET) for op, read, name in nodes)
        return Graph(tuple(inputs), tuple(outputs), made, {})

    def value(name: str, *shape: int, dtype: dtypes.DType = dtypes.FLOAT32) -> Value:
        return Value(name, TensorType(dtype, shape))

    for _ in range(count // 10):
        branches = {
            name: body([], (op, [x], op), outputs=[value(op, 4)])
            for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
        }
        chosen = sketch.node("If", condition, **branches)
        trip = body(
            [value("number", dtype=dtypes.INT64), value("goes_on", dtype=dtypes.BOOL), value("carried", 4)],
            ("Identity", ["goes_on"], "goes_on_then"),
            ("Tanh", ["carried"], "tanh"),
            ("Add", ["tanh", x], "sum"),
            outputs=[value("goes_on_then", dtype=dtypes.BOOL), value("sum", 4)],
        )
        carried = sketch.node("Loop", trips, condition, chosen, body=trip)
        row = body(
            [value("element")],
            ("Abs", ["element"], "absolute"),
            ("Sqrt", ["absolute"], "root"),
            outputs=[value("root")],
        )
        x = sketch.node("Scan", carried, body=row, num_scan_inputs=1)
    return sketch.finish(x)


CASES: dict[str, Callable[[int], Graph]] = {
    case.__name__: case
    for case in (
        *(sum_of_inputs, concatenation, concatenation_of_results, chain, consumers, outputs, initializers),
        *(folded, normalised, alive, lattice, refused, bodies),
    )
}


def seconds_to_load(model: bytes, device: str) -> float:
    """Processor time, of all threads, until the model is ready to run."""
    before = time.process_time()
    with vkml.InferenceSession(model, devices=device):
        return time.process_time() - before


def main(case: str, device: str, *counts: str) -> None:
    seconds_to_load(save_graph(CASES[case](64)), device)
    for count in counts:
        print(seconds_to_load(save_graph(CASES[case](int(count))), device), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
