"""``python -m tests.engine.open_graphs``: random graphs with expressions of open sizes, run at many sizes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import vkml
from tests.comparing import assert_close
from tests.passes.test_fuse import evaluate
from vkml.engine.plan import Plan
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.onnx import save_graph

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Dim = tuple[int, ...]
"""A size, as what it is for each of the sizes that a graph is run at: equal expressions are equal there."""
SYMBOLS = ("n", "m", "k")
RUNS = 50
LARGE = 9
"""Size from which on hardly anything has to be decided about one."""
MOST_PLANS = 4
"""With open sizes that a graph of large ones takes: for odd and for even numbers, and the like."""
EDGES = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65)
"""Round the widths of vectors and tiles."""
ELEMENTS = 60_000
"""That no value has more of."""


@dataclass(frozen=True)
class OpenGraph:
    """A graph, and sizes for it to run at."""

    graph: Graph
    bindings: tuple[dict[str, int], ...]
    """Symbol → size, of each run."""
    inputs: dict[str, tuple[str | int, ...]]
    """Input → its sizes, symbols of `bindings` or numbers."""

    def feed(self, run: int) -> dict[str, Array]:
        """Inputs of a run."""
        rng, sizes = np.random.default_rng([run, 5]), self.bindings[run]
        return {
            name: rng.standard_normal([sizes[dim] if isinstance(dim, str) else dim for dim in dims]).astype(
                np.float32
            )
            for name, dims in self.inputs.items()
        }


@dataclass(frozen=True)
class _Tensor:
    name: str
    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)


class Generator:
    """Grows one graph, value after value; each of its `_make` methods adds a node or a few, or gives None.

    Args:
        seed: of the graph.
        least: of the sizes; from 2 on, all runs may share a plan, for large ones nothing is halved to 1.
    """

    def __init__(self, seed: int, least: int) -> None:
        self.rng = np.random.default_rng([seed, 13])
        self.decides = least < LARGE
        """Whether there are nodes of which a guard says what they do."""
        self.sketch = Sketch(f"open_{seed}", 17)
        most = max(int(self.rng.choice([9, 20, 33, 66])), 3 * least)
        edges = [size for size in EDGES if least <= size < most]
        drawn = {}
        for name in (*SYMBOLS, "free"):
            is_edge = self.rng.random(RUNS) < 0.5
            drawn[name] = np.where(
                is_edge, self.rng.choice(edges, RUNS), self.rng.integers(max(2, least), most, RUNS)
            )
            if least < 2:
                drawn[name][self.rng.random(RUNS) < 0.1] = least
        self.bindings = tuple({name: int(sizes[run]) for name, sizes in drawn.items()} for run in range(RUNS))
        self._drawn = {name: tuple(int(size) for size in sizes) for name, sizes in drawn.items()}
        self.inputs: dict[str, tuple[str | int, ...]] = {}
        self.values: list[_Tensor] = []

    def grow(self, nodes: int) -> OpenGraph:
        """The graph, with about so many nodes that matter."""
        for at in range(int(self.rng.integers(2, 4))):
            self._input(f"x{at}")
        makers: list[Callable[[_Tensor], _Tensor | None]] = [
            getattr(self, name) for name in sorted(dir(self)) if name.startswith("_make_")
        ]
        made = tries = 0
        while made < nodes and tries < 40 * nodes:
            tries += 1
            # Later values more often: graphs are deep.
            chosen = self.values[-1 - int(self.rng.integers(len(self.values)) ** 2 // len(self.values))]
            found = makers[int(self.rng.integers(len(makers)))](chosen)
            if found is not None:
                self.values.append(found)
                made += 1
        last = self._make_clamped(self.values[-1])
        if last is not None:
            self.values.append(last)
        outputs = list(dict.fromkeys(value.name for value in self.values[-3:]))
        return OpenGraph(self.sketch.finish(*outputs), self.bindings, self.inputs)

    # -- sizes -----------------------------------------------------------------------------------------------

    def _input(self, name: str) -> None:
        choices: list[str | int] = [*SYMBOLS, "n", 1, 3, 8]
        dims = [choices[int(self.rng.integers(len(choices)))] for _ in range(int(self.rng.integers(1, 4)))]
        if not any(isinstance(dim, str) for dim in dims):
            dims[0] = "n"
        if name == "x1" and self.rng.random() < 0.3:
            dims[-1] = "free"
        # The model does not name this one.
        self.sketch.input(name, tuple(None if dim == "free" else dim for dim in dims), dtypes.FLOAT32)
        self.inputs[name] = tuple(dims)
        self.values.append(
            _Tensor(name, tuple(self._drawn.get(str(dim)) or self._known(dim) for dim in dims))
        )

    def _known(self, size: str | int) -> Dim:
        return (int(size),) * RUNS

    def _fits(self, dims: Sequence[Dim]) -> bool:
        """Whether a value of these sizes has neither too many elements nor none."""
        counts = np.prod([np.ones(RUNS, np.int64), *map(np.array, dims)], axis=0)
        return bool((counts <= ELEMENTS).all() and (counts > 0).all()) and len(dims) < 5

    def _axis(self, x: _Tensor) -> int | None:
        return int(self.rng.integers(x.rank)) if x.rank else None

    def _replaced(self, x: _Tensor, axis: int, dim: Sequence[int]) -> tuple[Dim, ...]:
        return (*x.dims[:axis], tuple(int(size) for size in dim), *x.dims[axis + 1 :])

    def _vector(self, *numbers: int) -> str:
        return self.sketch.constant(np.array(numbers, np.int64))

    def _size(self, x: _Tensor, axis: int) -> str:
        """A vector of one element, computed from the shape."""
        return self.sketch.node("Gather", self.sketch.node("Shape", x.name), self._vector(axis), axis=0)

    def _like(self, x: _Tensor) -> _Tensor | None:
        same = [value for value in self.values if value.dims == x.dims]
        return same[int(self.rng.integers(len(same)))] if same else None

    # -- operators -------------------------------------------------------------------------------------------

    def _make_unary(self, x: _Tensor) -> _Tensor:
        op = ("Tanh", "Sigmoid", "Abs", "Neg", "Relu", "Softplus")[int(self.rng.integers(6))]
        return _Tensor(self.sketch.node(op, x.name), x.dims)

    def _make_binary(self, x: _Tensor) -> _Tensor | None:
        other = self._like(x)
        op = ("Add", "Sub", "Mul", "Max")[int(self.rng.integers(4))]
        if other is None:
            return None
        made = self.sketch.node(op, x.name, other.name)
        return _Tensor(self.sketch.node("Tanh", made) if op == "Mul" else made, x.dims)

    def _make_broadcast(self, x: _Tensor) -> _Tensor | None:
        """With a value whose sizes are the last ones of x, or 1."""
        one = self._known(1)
        fitting = [
            value
            for value in self.values
            if 0 < value.rank < x.rank
            and all(
                mine in (one, theirs)
                for mine, theirs in zip(value.dims, x.dims[x.rank - value.rank :], strict=True)
            )
        ]
        if not fitting:
            return None
        other = fitting[int(self.rng.integers(len(fitting)))]
        return _Tensor(self.sketch.node("Add", x.name, other.name), x.dims)

    def _make_concat(self, x: _Tensor) -> _Tensor | None:
        """Sizes n + m and 2 n."""
        axis = self._axis(x)
        if axis is None:
            return None
        fitting = [
            value
            for value in self.values
            if value.rank == x.rank
            and all(a == b or at == axis for at, (a, b) in enumerate(zip(value.dims, x.dims, strict=True)))
        ]
        other = fitting[int(self.rng.integers(len(fitting)))]
        dims = self._replaced(x, axis, np.add(x.dims[axis], other.dims[axis]).tolist())
        if not self._fits(dims):
            return None
        return _Tensor(self.sketch.node("Concat", x.name, other.name, axis=axis), dims)

    def _make_longer(self, x: _Tensor) -> _Tensor | None:
        """Size n + 1: the first row once more."""
        axis = self._axis(x)
        if axis is None:
            return None
        first = self.sketch.node("Slice", x.name, self._vector(0), self._vector(1), self._vector(axis))
        dims = self._replaced(x, axis, np.add(x.dims[axis], 1).tolist())
        if not self._fits(dims):
            return None
        return _Tensor(self.sketch.node("Concat", x.name, first, axis=axis), dims)

    def _make_slice(self, x: _Tensor) -> _Tensor | None:
        """Sizes n - 1, (n + 1) // 2, and n // 2 of an end that is computed."""
        axis = self._axis(x)
        if axis is None:
            return None
        size, kind = np.array(x.dims[axis]), int(self.rng.integers(4))
        most = 2**31 - 1
        if kind == 0:
            given, made = (self._vector(0), self._vector(-1), self._vector(axis)), size - 1
        elif kind == 1:
            given, made = (self._vector(1), self._vector(most), self._vector(axis)), size - 1
        elif kind == 2:
            given = (self._vector(0), self._vector(most), self._vector(axis), self._vector(2))
            made = (size + 1) // 2
        else:
            half = self.sketch.node("Div", self._size(x, axis), self._vector(2))
            given, made = (self._vector(0), half, self._vector(axis)), size // 2
        dims = self._replaced(x, axis, made.tolist())
        if not self._fits(dims):
            return None
        return _Tensor(self.sketch.node("Slice", x.name, *given), dims)

    def _make_clamped(self, x: _Tensor) -> _Tensor | None:
        """The first or the last few rows, or all where there are not as many: which is decided by a guard."""
        axis = self._axis(x)
        if axis is None or not self.decides:
            return None
        found = sorted(set(x.dims[axis]))
        few = found[len(found) // 2]  # there are fewer in some runs, and more in others
        dims = self._replaced(x, axis, np.minimum(x.dims[axis], few).tolist())
        ends = (0, few) if self.rng.integers(2) else (-few, 2**31 - 1)
        return _Tensor(self.sketch.node("Slice", x.name, *map(self._vector, (*ends, axis))), dims)

    def _make_merge(self, x: _Tensor) -> _Tensor | None:
        """Size n m, by -1 or computed."""
        if x.rank < 2:
            return None
        axis = int(self.rng.integers(x.rank - 1))
        merged = tuple(np.multiply(x.dims[axis], x.dims[axis + 1]).tolist())
        dims = (*x.dims[:axis], merged, *x.dims[axis + 2 :])
        if self.rng.random() < 0.5:
            product = self.sketch.node("Mul", self._size(x, axis), self._size(x, axis + 1))
        else:
            product = self._vector(-1)
        parts = [self._size(x, at) for at in range(x.rank)]
        parts[axis : axis + 2] = [product]
        shape = self.sketch.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return _Tensor(self.sketch.node("Reshape", x.name, shape), dims)

    def _make_flatten(self, x: _Tensor) -> _Tensor | None:
        if not x.rank:
            return None
        axis = int(self.rng.integers(x.rank + 1))
        parts = [
            np.prod([np.ones(RUNS, np.int64), *map(np.array, half)], axis=0)
            for half in (x.dims[:axis], x.dims[axis:])
        ]
        dims = tuple(tuple(part.tolist()) for part in parts)
        return _Tensor(self.sketch.node("Flatten", x.name, axis=axis), dims)

    def _make_split(self, x: _Tensor) -> _Tensor | None:
        """A size that is a product, as two: by the sizes of a value that has them."""
        for value in reversed(self.values):
            for at in range(value.rank - 1):
                whole = tuple(np.multiply(value.dims[at], value.dims[at + 1]).tolist())
                if whole in x.dims and max(value.dims[at]) > 1 and max(value.dims[at + 1]) > 1:
                    axis = x.dims.index(whole)
                    dims = (*x.dims[:axis], *value.dims[at : at + 2], *x.dims[axis + 1 :])
                    if not self._fits(dims):
                        continue
                    parts = [self._size(x, each) for each in range(x.rank)]
                    parts[axis : axis + 1] = [self._size(value, at), self._size(value, at + 1)]
                    shape = self.sketch.node("Concat", *parts, axis=0)
                    return _Tensor(self.sketch.node("Reshape", x.name, shape), dims)
        return None

    def _make_transpose(self, x: _Tensor) -> _Tensor | None:
        if x.rank < 2:
            return None
        order = [int(axis) for axis in self.rng.permutation(x.rank)]
        made = self.sketch.node("Transpose", x.name, perm=tuple(order))
        return _Tensor(made, tuple(x.dims[axis] for axis in order))

    def _make_product(self, x: _Tensor) -> _Tensor | None:
        """x xᵀ, of n × n; or with weights where the last size is known."""
        if x.rank < 2:
            return None
        width = set(x.dims[-1])
        if len(width) == 1:
            [known] = width
            weight = self.rng.standard_normal((known, 4)).astype(np.float32) / 2
            made = self.sketch.node("MatMul", x.name, self.sketch.constant(weight))
            dims: tuple[Dim, ...] = (*x.dims[:-1], self._known(4))
        else:
            order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
            turned = self.sketch.node("Transpose", x.name, perm=order)
            made = self.sketch.node("MatMul", x.name, turned)
            dims = (*x.dims[:-1], x.dims[-2])
        if not self._fits(dims):
            return None
        small = self.sketch.node("Mul", made, self.sketch.constant(np.float32(0.05)))
        return _Tensor(self.sketch.node("Tanh", small), dims)

    def _make_attention(self, x: _Tensor) -> _Tensor | None:
        """softmax(x yᵀ) y, batches in front."""
        other = self._like(x)
        if other is None or x.rank < 2 or not self._fits((*x.dims[:-1], x.dims[-2])):
            return None
        order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
        scores = self.sketch.node("MatMul", x.name, self.sketch.node("Transpose", other.name, perm=order))
        scores = self.sketch.node("Softmax", self.sketch.node("Tanh", scores), axis=-1)
        return _Tensor(self.sketch.node("MatMul", scores, other.name), x.dims)

    def _make_half(self, x: _Tensor) -> _Tensor | None:
        """To float16 and back: of inputs, which are the same for whoever rounds."""
        if x.name not in self.inputs:
            return None
        return _Tensor(self.sketch.node("Cast", self.sketch.node("Cast", x.name, to=10), to=1), x.dims)

    def _make_norm(self, x: _Tensor) -> _Tensor | None:
        """Over everything in front of the last axis, in one row."""
        if x.rank < 2:
            return None
        axes = tuple(range(x.rank - 1))
        squares = self.sketch.node("ReduceSumSquare", x.name, axes=axes, keepdims=1)
        root = self.sketch.node("Sqrt", self.sketch.node("Add", squares, self.sketch.constant(np.float32(1))))
        return _Tensor(self.sketch.node("Div", x.name, root), x.dims)

    def _make_reduce(self, x: _Tensor) -> _Tensor | None:
        axis = self._axis(x)
        if axis is None or x.rank < 2:
            return None
        op = ("ReduceMean", "ReduceMax", "ReduceL2", "ReduceMin")[int(self.rng.integers(4))]
        keeps = bool(self.rng.integers(2))
        made = self.sketch.node(op, x.name, axes=(axis,), keepdims=int(keeps))
        kept = [self._known(1)] if keeps else []
        return _Tensor(made, (*x.dims[:axis], *kept, *x.dims[axis + 1 :]))

    def _make_softmax(self, x: _Tensor) -> _Tensor | None:
        axis = self._axis(x)
        return None if axis is None else _Tensor(self.sketch.node("Softmax", x.name, axis=axis), x.dims)

    def _make_gather(self, x: _Tensor) -> _Tensor | None:
        """One row, which is there at every size, or rows by the numbers 0 … n // 2."""
        axis = self._axis(x)
        if axis is None or x.rank < 2:
            return None
        if self.rng.random() < 0.4:
            made = self.sketch.node("Gather", x.name, self.sketch.constant(np.int64(-1)), axis=axis)
            return _Tensor(made, (*x.dims[:axis], *x.dims[axis + 1 :]))
        half = self.sketch.node("Div", self._size(x, axis), self._vector(2))
        dims = self._replaced(x, axis, np.floor_divide(x.dims[axis], 2).tolist())
        if not self._fits(dims):
            return None
        return _Tensor(self.sketch.node("Gather", x.name, self._numbers(half), axis=axis), dims)

    def _numbers(self, count: str) -> str:
        """0, 1, … of a vector's one element."""
        zero, one = (self.sketch.constant(np.int64(number)) for number in (0, 1))
        return self.sketch.node("Range", zero, self.sketch.node("Squeeze", count, self._vector(0)), one)

    def _make_where(self, x: _Tensor) -> _Tensor | None:
        """The first half of the last axis, and something else behind it."""
        other = self._like(x)
        if other is None or not x.rank:
            return None
        size = self._size(x, x.rank - 1)
        is_early = self.sketch.node(
            "Less", self._numbers(size), self.sketch.node("Div", size, self._vector(2))
        )
        negative = self.sketch.node("Neg", other.name)
        return _Tensor(self.sketch.node("Where", is_early, x.name, negative), x.dims)

    def _make_expand(self, x: _Tensor) -> _Tensor | None:
        """To a value with further axes in front."""
        larger = [v for v in self.values if v.rank > x.rank and v.dims[v.rank - x.rank :] == x.dims]
        if not larger:
            return None
        target = larger[int(self.rng.integers(len(larger)))]
        made = self.sketch.node("Expand", x.name, self.sketch.node("Shape", target.name))
        return _Tensor(made, target.dims)

    def _make_tile(self, x: _Tensor) -> _Tensor | None:
        """Size 2 n."""
        axis = self._axis(x)
        if axis is None:
            return None
        dims = self._replaced(x, axis, np.multiply(x.dims[axis], 2).tolist())
        if not self._fits(dims):
            return None
        times = [2 if at == axis else 1 for at in range(x.rank)]
        return _Tensor(self.sketch.node("Tile", x.name, self._vector(*times)), dims)

    def _make_pad(self, x: _Tensor) -> _Tensor | None:
        """Size n + 3."""
        axis = self._axis(x)
        if axis is None:
            return None
        dims = self._replaced(x, axis, np.add(x.dims[axis], 3).tolist())
        if not self._fits(dims):
            return None
        pads = [0] * (2 * x.rank)
        pads[axis], pads[x.rank + axis] = 1, 2
        return _Tensor(self.sketch.node("Pad", x.name, self._vector(*pads)), dims)

    def _make_unsqueeze(self, x: _Tensor) -> _Tensor | None:
        if x.rank > 3:
            return None
        axis = int(self.rng.integers(x.rank + 1))
        dims = (*x.dims[:axis], self._known(1), *x.dims[axis:])
        return _Tensor(self.sketch.node("Unsqueeze", x.name, self._vector(axis)), dims)

    def _make_ones(self, x: _Tensor) -> _Tensor | None:
        """Ones of the sizes n + 2 and others', and a sum with them."""
        axis = self._axis(x)
        if axis is None:
            return None
        parts = [self._size(x, at) for at in range(x.rank)]
        parts[axis] = self.sketch.node("Add", parts[axis], self._vector(2))
        dims = self._replaced(x, axis, np.add(x.dims[axis], 2).tolist())
        if not self._fits(dims):
            return None
        shape = self.sketch.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        ones = self.sketch.node("ConstantOfShape", shape)
        row = self.sketch.node("ReduceMean", x.name, axes=(axis,), keepdims=1)
        return _Tensor(self.sketch.node("Add", ones, row), dims)


def open_graph(seed: int) -> OpenGraph:
    """The graph of a seed; every fourth has sizes of 1, too, one sizes from 2 on, two sizes from 9 on."""
    generator = Generator(seed, least=(LARGE, 2, LARGE, 1)[seed % 4])
    return generator.grow(int(generator.rng.integers(4, 12)))


# -- running -------------------------------------------------------------------------------------------------


def open_plans(session: vkml.InferenceSession) -> list[Plan]:
    """A session's plans with open sizes."""
    return [plan for plan in session._runner.plans.kept.values() if plan.sizes is not None]


def check(opened: OpenGraph, device: str) -> list[list[str]]:
    """Runs a graph at all of its sizes in one session, and compares; the guards of its open plans.

    A plan is made for the first sizes alone; the second make an open one, which serves all others but those
    that its guards exclude: these make the next.
    """
    options = vkml.SessionOptions(guard_bytes=256, plan_cache_size=2 * RUNS)
    options.log_severity_level = 4
    with vkml.InferenceSession(save_graph(opened.graph), options, devices=device) as session:
        plans = session._runner.plans
        for run, binding in enumerate(opened.bindings):
            feed = opened.feed(run)
            shapes = [feed[value.name].shape for value in opened.graph.inputs]
            served = any(plan.values_of(shapes) is not None for plan in plans.kept.values())
            before = len(plans.kept)
            found = session.run(None, feed)
            assert len(plans.kept) == before + (not served), f"run {run}, {binding}: plans made needlessly"
            for value, mine, exact in zip(
                opened.graph.outputs, found, evaluate(opened.graph, feed), strict=True
            ):
                what = f"run {run}, {binding}, {value.name}"
                assert_close(mine, exact, rtol=3e-5, atol=3e-5, what=what)
        guards = [plan.sizes.guards() for plan in open_plans(session) if plan.sizes is not None]
        least = min(size for binding in opened.bindings for size in binding.values())
        assert not guards or not all(map(_pins, guards)), f"each plan is for one size: {guards}"
        if least > 1 and not plans._fixed:
            assert len(plans.kept) == 1 + len(guards)
        if least >= LARGE:
            assert not plans._fixed, "the graph is planned for each of its sizes"
            assert len(guards) <= MOST_PLANS, guards
        return guards


def _pins(guards: Sequence[str]) -> bool:
    """Whether one of a plan's guards is that a size is a certain number, other than 1 or the like."""
    found = (re.search(r"- (\d+) == 0$", guard) for guard in guards)
    return any(match is not None and int(match[1]) >= LARGE for match in found)


def main() -> int:
    from tests.fuzz.worker import device_name

    parser = argparse.ArgumentParser(prog="python -m tests.engine.open_graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--device", default="cpu", help="cpu, lavapipe, …")
    options = parser.parse_args()
    device, failed = device_name(options.device), 0
    for seed in range(options.first, options.first + options.graphs):
        opened = open_graph(seed)
        try:
            guards = check(opened, device)
        except (AssertionError, vkml.Error) as error:
            failed += 1
            print(f"seed {seed}: {' '.join(str(error).split())[:300]}", flush=True)
        else:
            print(
                f"seed {seed}: {len(guards)} open plans; {[g for each in guards for g in each]}", flush=True
            )
    print(f"{failed} of {options.graphs} graphs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
