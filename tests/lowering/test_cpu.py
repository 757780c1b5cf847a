"""CPU programs against the operators' own `evaluate`, node by node, over random geometry."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from tests import comparing
from tests.patience import patience
from vkml.cpu.native.executable import instruction_set
from vkml.errors import IndexOutOfRange, RuntimeException
from vkml.ir import Constant, Graph, Known, Node, TensorType, Value, dtypes, find, static
from vkml.ir.operator import normalise_attributes
from vkml.lowering.cpu import CpuProgram, compile_cpu
from vkml.passes.fuse import fuse

Array = np.ndarray[Any, Any]


class Net:
    """Builds normalised nodes with inferred types, and evaluates them as reference."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}
        self.feed: dict[str, Array] = {}

    def input(self, *shape: int, dtype: Any = np.float32, value: Array | None = None) -> str:
        array = self.rng.standard_normal(shape).astype(dtype) if value is None else value
        name = f"in{len(self.feed)}"
        self.feed[name] = array
        self.types[name] = static(dtypes.from_numpy(array.dtype), array.shape)
        return name

    def constant(self, *shape: int, dtype: Any = np.float32, value: Any = None, scale: float = 1.0) -> str:
        array = np.asarray(
            (self.rng.standard_normal(shape) * scale).astype(dtype) if value is None else value
        )
        name = f"c{len(self.constants)}"
        self.constants[name] = Constant(dtypes.from_numpy(array.dtype), array.shape, array)
        self.types[name] = self.constants[name].type
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        node = Node(op, inputs, (f"t{len(self.nodes)}",), attributes, f"{op}{len(self.nodes)}", version=23)
        node = Node(op, inputs, node.outputs, normalise_attributes(node, find(node)), node.name, version=23)
        known = [
            Known(self.types[name], self.constants[name].array if name in self.constants else None)
            if name
            else None
            for name in inputs
        ]
        self.types[node.outputs[0]] = find(node).infer(node, known)[0]
        self.nodes.append(node)
        return node.outputs[0]

    def reference(self, wanted: Sequence[str]) -> dict[str, Array]:
        values: dict[str, Array | None] = {"": None, **self.feed}
        values.update({name: constant.array for name, constant in self.constants.items()})
        for node in self.nodes:
            with np.errstate(all="ignore"):
                values[node.outputs[0]] = find(node).evaluate(node, [values[name] for name in node.inputs])[0]
        return {name: values[name] for name in wanted}  # type: ignore[misc]

    def graph(self, wanted: Sequence[str]) -> Graph:
        inputs = tuple(Value(name, self.types[name]) for name in self.feed)
        outputs = tuple(Value(name, self.types[name]) for name in wanted)
        return Graph(inputs, outputs, tuple(self.nodes), self.constants, self.types)

    def compile(
        self, wanted: Sequence[str], threads: int = 2, fused: bool = True, is_plain: bool = False
    ) -> CpuProgram:
        """Machine code where there is some, or, where it is to be plain, `evaluate` alone."""
        graph = self.graph(wanted)
        if fused:
            graph = fuse(graph)
        outputs = None if is_plain else tuple(wanted)
        inputs = tuple(self.feed)
        return compile_cpu(
            graph.nodes, graph.types, graph.constants, threads=threads, inputs=inputs, outputs=outputs
        )

    def check(self, *wanted: str, rtol: float = 2e-5, fused: bool = True) -> None:
        """Compares for one and several threads; the error is relative to the largest expected magnitude."""
        expected = self.reference(wanted)
        for threads in (1, 2):
            program = self.compile(wanted, threads, fused)
            for _ in range(2):
                assert_close(program.run(self.feed, wanted), expected, rtol)


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array], rtol: float) -> None:
    assert list(found) == list(expected)
    for name, right in expected.items():
        left = found[name]
        assert left.flags.c_contiguous
        greatest = comparing.magnitude(right, np.max, default=1.0) if right.dtype.kind == "f" else 0.0
        comparing.assert_close(left, right, rtol=rtol, atol=rtol * greatest, what=name)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 30, 61), (8, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    ((2, 24, 13, 14), (40, 24, 1, 1), {}),
    ((1, 24, 13, 14), (40, 24, 1, 1), {"strides": (2, 2)}),
    ((2, 24, 13, 14), (24, 1, 3, 3), {"group": 24, "pads": (1, 1, 1, 1)}),
    (
        (1, 24, 15, 14),
        (24, 1, 5, 3),
        {"group": 24, "strides": (2, 2), "dilations": (1, 2)},
    ),
    ((2, 32, 28, 27), (24, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 32, 14, 14), (24, 32, 3, 3), {"auto_pad": "SAME_UPPER"}),
    ((2, 16, 12, 12), (24, 8, 3, 3), {"group": 2, "pads": (0, 1, 2, 1)}),
    ((2, 12, 40), (6, 12, 5), {"dilations": (3,), "pads": (4, 2)}),
    ((1, 12, 7, 8, 9), (6, 12, 3, 1, 3), {"strides": (2, 1, 1)}),
    ((1, 256, 7, 7), (96, 256, 3, 3), {"pads": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize(("x", "weight", "attributes"), CONVOLUTIONS)
def test_convolutions_with_tails(
    x: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    net = Net()
    source = net.input(*x)
    first = net.op("Conv", source, net.constant(*weight, scale=0.1), net.constant(weight[0]), **attributes)
    residual = net.input(*net.types[first].dims)
    total = net.op("Add", net.op("Relu", first), residual)
    scaled = net.op("Mul", total, net.constant(weight[0], *(1,) * (len(x) - 2)))
    net.op("Softmax", scaled, axis=1)
    net.check(net.nodes[-1].outputs[0], scaled, rtol=5e-5)


@pytest.mark.parametrize("weight_is_input", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_convolution_types_and_computed_weights(dtype: Any, weight_is_input: bool) -> None:
    net = Net()
    make = net.input if weight_is_input else net.constant
    y = net.op(
        "Conv", net.input(1, 16, 9, 9, dtype=dtype), make(20, 16, 3, 3, dtype=dtype), pads=(1, 1, 1, 1)
    )
    net.check(net.op("Sigmoid", y), y, rtol={2: 2e-3, 4: 2e-5, 8: 1e-12}[np.dtype(dtype).itemsize])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools(op: str, seed: int) -> None:
    net = Net(seed)
    rank = int(net.rng.integers(1, 4))
    x = net.op("Relu", net.input(2, 5, *(int(n) for n in net.rng.integers(5, 20, rank))))
    kernel = tuple(int(k) for k in net.rng.integers(2, 4, rank))
    pads = tuple(int(p) for p in net.rng.integers(0, 2, 2 * rank))
    extra = {"count_include_pad": int(net.rng.integers(2))} if op == "AveragePool" else {}
    strides = tuple(int(s) for s in net.rng.integers(1, 3, rank))
    ceil = int(net.rng.integers(2))
    y = net.op(op, x, kernel_shape=kernel, pads=pads, strides=strides, ceil_mode=ceil, **extra)
    net.check(net.op("Neg", y), y)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_an_old_opset_over_no_axes_is_over_one_element(op: str) -> None:
    net = Net()
    x = net.input(3, dtype=np.float64)
    y = net.op(op, x, axis=1, is_flattened=1)
    assert (net.reference([y])[y] == (1 if op == "Softmax" else 0)).all()
    net.check(y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clip_without_a_bound(dtype: Any) -> None:
    net = Net()
    x = net.input(value=np.array([np.inf, -np.inf, np.nan, 3], dtype))
    zero = net.constant(value=np.array(0, dtype))
    open_ = net.op("Clip", net.op("Abs", x))
    net.check(net.op("Neg", open_), net.op("Clip", net.op("Neg", x), zero), net.op("Clip", x, "", zero))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_pools_of_doubles_keep_their_precision(op: str) -> None:
    net = Net(7)
    x = net.op("Relu", net.input(2, 5, 9, 9, dtype=np.float64))
    window = {} if op == "GlobalAveragePool" else {"kernel_shape": (3, 3), "strides": (2, 2)}
    net.check(net.op("Neg", net.op(op, x, **window)), rtol=1e-14)


def test_a_small_network_in_channels_last_memory() -> None:
    net = Net(4)
    x = net.input(2, 3, 32, 32)
    x = net.op("Relu", net.op("Conv", x, net.constant(16, 3, 3, 3, scale=0.2), pads=(1, 1, 1, 1)))
    left = net.op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    right = net.op("Conv", x, net.constant(16, 16, 1, 1, scale=0.2), strides=(2, 2))
    both = net.op("Concat", left, right, axis=1)
    up = net.op("Resize", both, "", net.constant(value=np.array([1, 1, 2, 2], np.float32)), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    wide = net.op("Concat", up, x, axis=1)
    y = net.op("Conv", wide, net.constant(8, 48, 3, 3, scale=0.05), net.constant(8), pads=(1, 1, 1, 1))
    gate = net.op("Mul", y, net.op("Sigmoid", y))
    mean = net.op("GlobalAveragePool", gate)
    flat = net.op("Flatten", mean)
    end = net.op("Gemm", flat, net.constant(10, 8), net.constant(10), transB=1)
    net.check(end, wide, gate, flat)


PRODUCTS = [
    ((5, 7), (7, 3)),
    ((1, 300), (300, 400)),
    ((2, 150, 64), (64, 96)),
    ((400, 96), (96, 130)),
    ((3, 4, 50, 20), (3, 4, 20, 30)),
    ((3, 1, 50, 20), (4, 20, 30)),
    ((6,), (6, 4)),
    ((4, 6), (6,)),
    ((2, 4, 6), (6,)),
    ((2, 1, 6), (2, 6, 5)),
]


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
@pytest.mark.parametrize("constant", [False, True])
def test_matmul_with_tails(a: tuple[int, ...], b: tuple[int, ...], constant: bool) -> None:
    net = Net()
    y = net.op("MatMul", net.input(*a), net.constant(*b) if constant else net.input(*b))
    dims = net.types[y].dims
    shifted = net.op("Add", y, net.constant(*dims[-1:]))
    masked = net.op("Add", shifted, net.constant(*(1 if axis % 2 else n for axis, n in enumerate(dims))))
    net.check(net.op("Tanh", masked), y)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("shift", [(), (30,), (1, 30), (200, 1), (200, 30)])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_gemm(transposed: tuple[int, int], shift: tuple[int, ...], alpha: float) -> None:
    net = Net()
    a = net.input(*((40, 200) if transposed[0] else (200, 40)))
    b = net.constant(*((30, 40) if transposed[1] else (40, 30)))
    y = net.op("Gemm", a, b, net.constant(*shift), transA=transposed[0], transB=transposed[1], alpha=alpha)
    net.check(net.op("Relu", y))


@pytest.mark.parametrize("shape", [(3, 4, 40, 50), (2, 700), (6,)])
def test_row_operators(shape: tuple[int, ...]) -> None:
    net = Net()
    x = net.input(*shape)
    soft = net.op("Softmax", x, axis=-1)
    log = net.op("LogSoftmax", x, axis=-1)
    normal = net.op("LayerNormalization", x, net.constant(shape[-1]), net.constant(shape[-1]), axis=-1)
    added = net.op("Add", normal, x)
    square = net.op("RMSNormalization", x, net.constant(shape[-1]), axis=-1)
    net.check(soft, log, normal, added, square)


def test_attention_over_views() -> None:
    net = Net()
    x = net.input(2, 20, 48)

    def head(order: Sequence[int]) -> str:
        projected = net.op("Add", net.op("MatMul", x, net.constant(48, 48, scale=0.2)), net.constant(48))
        split = net.op("Reshape", projected, net.constant(value=np.array([2, 20, 4, 12])))
        return net.op("Transpose", split, perm=tuple(order))

    scores = net.op("MatMul", head((0, 2, 1, 3)), head((0, 2, 3, 1)))
    scaled = net.op("Div", scores, net.constant(value=np.float32(3.4)))
    weights = net.op("Softmax", net.op("Add", scaled, net.constant(1, 1, 20, 20)), axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", weights, head((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    flat = net.op("Reshape", mixed, net.constant(value=np.array([2, 20, 48])))
    net.check(net.op("MatMul", flat, net.constant(48, 48)), mixed)


UNARY = (
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Erf", "Floor", "Ceil", "Reciprocal"),
    *(
        "Sin",
        "Cos",
        "HardSwish",
        "HardSigmoid",
        "LeakyRelu",
        "Gelu",
        "Softplus",
        "Elu",
        "Mish",
        "Sign",
        "Round",
    ),
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("op", UNARY)
def test_unary_operators(op: str, dtype: Any) -> None:
    net = Net()
    special = np.array([0, -0.0, 1, -1, 0.5, 30, -30, np.inf, -np.inf, np.nan, 2.5, 1e-4])
    values = np.concatenate([special, net.rng.standard_normal(500) * 4]).astype(dtype)
    x = net.input(value=values)
    net.check(net.op(op, x), rtol={2: 2e-3, 4: 2e-6, 8: 1e-12}[np.dtype(dtype).itemsize], fused=False)


def test_gelu_with_tanh() -> None:
    net = Net()
    net.check(net.op("Gelu", net.input(1000), approximate="tanh"), rtol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.uint8])
def test_binary_operators(dtype: Any) -> None:
    net = Net()
    a = net.input(value=net.rng.integers(1, 100, (3, 4, 5)).astype(dtype))
    b = net.input(value=net.rng.integers(1, 9, (4, 1)).astype(dtype))
    made = [net.op(op, a, b) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")]
    made += [net.op("Pow", a, b)] if dtype != np.uint8 else []
    less = net.op("Less", a, b)
    equal = net.op("Equal", a, b)
    flags = net.op("Xor", net.op("Not", less), net.op("Or", equal, less))
    chosen = net.op("Where", flags, a, b)
    cast = [net.op("Cast", a, to=code) for code in (1, 6, 7, 9, 10, 11)]
    low, high = net.constant(value=np.array(3, dtype)), net.constant(value=np.array(40, dtype))
    clipped = [net.op("Clip", a, low, high), net.op("Clip", a, "", high), net.op("Clip", a, low)]
    net.check(*made, less, flags, chosen, *cast, *clipped)
    net.check(*made, less, flags, chosen, *cast, *clipped, fused=False)


@pytest.mark.parametrize("seed", range(25))
def test_random_pointwise_graphs(seed: int) -> None:
    net = Net(seed)
    shape = (3, 70, 1, 120) if seed % 3 == 0 else (2, 5, 4)
    masks = net.rng.integers(0, 2, (5, len(shape)))
    names = [net.input(*shape)]
    names += [net.input(*(n if keep else 1 for n, keep in zip(shape, mask, strict=True))) for mask in masks]
    names += [net.constant(shape[-1]), net.constant(value=np.float32(0.5))]
    for _ in range(int(net.rng.integers(2, 14))):
        first, second = (str(n) for n in net.rng.choice(names[-5:] + names[:2], 2))
        op = str(net.rng.choice(["Add", "Mul", "Sub", "Max", "Sigmoid", "Tanh", "Relu"]))
        names.append(net.op(op, first) if op in ("Sigmoid", "Tanh", "Relu") else net.op(op, first, second))
    made = [node.outputs[0] for node in net.nodes]
    wanted = [str(n) for n in net.rng.choice(made, min(len(made), 3), replace=False)]
    net.check(*wanted, made[-1]) if made[-1] not in wanted else net.check(*wanted)


def test_a_body_of_other_names() -> None:
    """Body inputs and outputs correspond to the node's by position; constants need not be scalars."""
    type_ = static(dtypes.FLOAT32, (4, 6))
    row = Constant(dtypes.FLOAT32, (6,), np.arange(6, dtype=np.float32))
    body = Graph(
        (Value("p", type_), Value("q", type_)),
        (Value("r", type_),),
        (Node("Add", ("p", "k"), ("s",)), Node("Mul", ("s", "q"), ("r",))),
        {"k": row},
        {"s": type_},
    )
    node = Node("Fused", ("x", "y"), ("z",), {"body": body}, domain="vkml")
    program = compile_cpu([node], {name: type_ for name in "xyz"}, {})
    x, y = np.ones((4, 6), np.float32), np.full((4, 6), 2, np.float32)
    np.testing.assert_array_equal(program.run({"x": x, "y": y}, ["z"])["z"], (x + row.array) * 2)


def test_results_share_memory_with_nothing() -> None:
    net = Net()
    x, c = net.input(4, 6), net.constant(6, 2)
    same = net.op("Identity", x)
    view = net.op("Reshape", x, net.constant(value=np.array([24])))
    fixed = net.op("Identity", c)
    made = net.op("Add", x, x)
    again = net.op("Reshape", made, net.constant(value=np.array([2, 12])))
    unread = net.input(3)
    wanted = [same, view, fixed, made, again, x, unread, c]
    program = net.compile(wanted)
    kept = {name: array.copy() for name, array in net.reference(wanted).items()}
    results = program.run(net.feed, wanted)
    for name, array in results.items():
        array += 1000
        for other, unchanged in results.items():
            assert other == name or not np.shares_memory(array, unchanged)
    assert_close(program.run(net.feed, wanted), kept, 0)
    np.testing.assert_array_equal(net.feed[x], kept[same])
    np.testing.assert_array_equal(net.feed[unread], kept[unread])


def test_results_survive_the_next_run() -> None:
    net = Net()
    x = net.input(200, 200)
    y = net.op("MatMul", x, net.constant(200, 200))
    program = net.compile([y])
    first = program.run(net.feed, [y])[y]
    before = first.copy()
    program.run({x: net.feed[x] * 2}, [y])
    np.testing.assert_array_equal(first, before)


def test_several_threads_may_run_one_program() -> None:
    net = Net()
    x = net.input(1, 24, 40, 40)
    y = net.op("Relu", net.op("Conv", x, net.constant(24, 24, 3, 3, scale=0.1), pads=(1, 1, 1, 1)))
    z = net.op("Softmax", net.op("Mul", y, net.op("Sigmoid", y)), axis=-1)
    program = net.compile([z], is_plain=True)
    feeds = [{x: net.rng.standard_normal((1, 24, 40, 40)).astype(np.float32)} for _ in range(4)]
    expected = [program.run(feed, [z])[z].copy() for feed in feeds]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(10):
            if not np.array_equal(program.run(feeds[i], [z])[z], expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert not wrong


def test_the_profile_names_every_node() -> None:
    net = Net()
    y = net.op("Softmax", net.op("MatMul", net.input(4, 5), net.constant(5, 6)), axis=-1)
    profile: list[tuple[tuple[str, ...], float]] = []
    net.compile([y], fused=False, is_plain=True).run(net.feed, [y], profile)
    assert [labels for labels, _ in profile] == [("MatMul node 'MatMul0'",), ("Softmax node 'Softmax1'",)]
    assert all(seconds > 0 for _, seconds in profile)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int) -> None:
    net = Net()
    table = net.constant(9, 5, 7)
    size = (9, 5, 7)[axis]
    places = net.input(value=net.rng.integers(-size, size, (2, 3)))
    net.check(net.op("Gather", table, places, axis=axis))


def test_gather_from_a_table_at_an_odd_address() -> None:
    net = Net()
    raw = np.zeros(9 * 5 * 4 + 1, np.uint8)
    raw[1:] = np.frombuffer(net.rng.standard_normal((9, 5)).astype(np.float32).tobytes(), np.uint8)
    table = net.constant(value=raw[1:].view(np.float32).reshape(9, 5))
    assert not net.constants[table].array.flags.aligned
    y = net.op("Gather", table, net.input(value=np.array([[-1, 3], [0, 8]])))
    net.check(net.op("MatMul", y, net.constant(5, 4)))


def test_an_index_outside_is_an_error_that_says_where() -> None:
    net = Net()
    y = net.op("Gather", net.constant(9, 5), net.input(value=np.array([1, 12])))
    program = net.compile([y], is_plain=True)
    with pytest.raises(
        IndexOutOfRange, match=r"Gather node 'Gather0': index 12 at \[1\] is outside axis 0 of size 9"
    ):
        program.run(net.feed, [y])


def test_a_failure_leaves_the_program_usable() -> None:
    net = Net()
    x = net.input(60, 50)
    y = net.op("MatMul", x, net.constant(50, 7))
    program = net.compile([y], is_plain=True)
    with pytest.raises(RuntimeException, match="MatMul0"):
        program.run({x: np.zeros((3, 3), np.float32)}, [y])
    assert_close(program.run(net.feed, [y]), net.reference([y]), 1e-6)


def test_empty_tensors() -> None:
    net = Net()
    x = net.input(0, 4)
    y = net.op("Relu", net.op("Add", x, net.constant(4)))
    net.check(y, net.op("MatMul", y, net.constant(4, 3)))


def test_a_refused_group_is_cut_where_it_is_refused() -> None:
    """What NumPy must do takes no neighbours along; values may pass from any part to any other."""
    net = Net()
    x = net.input(3, 40, dtype=np.float64)
    first = net.op("Add", x, x)
    second = net.op("Mul", first, x)
    grown = net.op("Exp", second)
    third = net.op("Sub", grown, first)
    last = net.op("Add", third, second)
    program = net.compile([last, second])
    if instruction_set() is not None:
        done = {node.op: form.variant for node, form in program.forms if node.op != "Fused"}
        assert done == {"Exp": "numpy"}
        reasons = [form.reason for _, form in program.forms if form.reason]
        assert reasons == ["exp of double has no machine code"]
    net.check(last, second, rtol=1e-15)


def test_bodies_that_share_names_stay_apart_when_they_are_cut() -> None:
    type_ = static(dtypes.FLOAT64, (4, 6))
    body = Graph(
        (Value("p", type_),),
        (Value("r", type_),),
        (Node("Add", ("p", "k"), ("s",)), Node("Exp", ("s",), ("t",)), Node("Mul", ("t", "s"), ("r",))),
        {"k": Constant(dtypes.FLOAT64, (), np.array(0.5))},
        {"s": type_, "t": type_},
    )
    nodes = [
        Node("Fused", ("x",), ("y",), {"body": body}, domain="vkml"),
        Node("Fused", ("y",), ("z",), {"body": body}, domain="vkml"),
    ]
    x = np.random.default_rng(0).standard_normal((4, 6)) / 4
    expected = x
    for _ in range(2):
        expected = np.exp(expected + 0.5) * (expected + 0.5)
    for outputs in (None, ("z",)):
        program = compile_cpu(nodes, dict.fromkeys("xyz", type_), {}, inputs=("x",), outputs=outputs)
        np.testing.assert_array_equal(program.run({"x": x}, ["z"])["z"], expected)
