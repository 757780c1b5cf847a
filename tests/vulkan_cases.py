"""Many small nodes in one model, run on a device and compared with the operators' own evaluation.

Every kernel costs some 50 ms of compiling, so a test puts all its cases into one model of independent nodes
and runs that once. Inputs may reach the node through a Transpose and a Slice, so that kernels meet strided
views.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

import vkml
import vkml.ops
from tests import comparing
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine import devices as device_registry
from vkml.engine.options import GraphOptimizationLevel, SessionOptions
from vkml.ir import Constant, Graph, Known, Node, TensorType, Value, dtypes, find, static
from vkml.ir.operator import normalise_attributes
from vkml.kernels.writer import NEEDS
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
OPSET = 23
GUARD_BYTES = 256


@dataclass(frozen=True)
class Fixed:
    """An input that is a constant of the model."""

    array: Array


Input = Array | Fixed | None


@dataclass
class Case:
    """One node and what it is given."""

    node: Node
    inputs: tuple[Input, ...]
    rtol: float | None
    atol: float | None
    may_fall_back: bool
    """Whether the device need not have a kernel for it."""
    expected: list[Array] = field(default_factory=list)


class Cases:
    """Cases under construction; `check` runs and compares them."""

    def __init__(self, seed: int = 0, opset: int = OPSET) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.cases: list[Case] = []

    def add(
        self,
        op: str,
        *inputs: Input,
        outputs: int = 1,
        rtol: float | None = None,
        atol: float | None = None,
        may_fall_back: bool = False,
        **attributes: Any,
    ) -> None:
        """Adds one node.

        Args:
            op: operator name.
            inputs: arrays that are fed, `Fixed` arrays, None where absent.
            outputs: how many outputs it has.
            rtol: relative tolerance for floats; None: a few units in the last place.
            atol: absolute tolerance; None: that of the largest expected magnitude.
            may_fall_back: whether the CPU may run it although the device has the element types.
            attributes: of the node; lists and arrays are converted.
        """
        number = len(self.cases)
        names = tuple("" if given is None else f"c{number}x{i}" for i, given in enumerate(inputs))
        outs = tuple(f"c{number}y{i}" for i in range(outputs))
        node = Node(op, names, outs, _attributes(attributes), f"case{number}", version=self.opset)
        self.cases.append(Case(node, inputs, rtol, atol, may_fall_back))

    # -- arrays ---------------------------------------------------------------------------------------------

    def array(self, dtype: Any, shape: Sequence[int], *, special: bool = False) -> Array:
        """Random elements that suit a dtype; `special` puts NaN, infinities, zeros, extremes among them."""
        kind = np.dtype(dtype)
        rng = self.random
        if kind.kind == "f":
            made = np.asarray(rng.standard_normal(shape) * 3).astype(kind)
            values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, float(np.finfo(kind).max)]
        elif kind.kind == "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
        else:
            info = np.iinfo(kind)
            made = np.asarray(rng.integers(max(info.min, -50), 51, shape)).astype(kind)
            values = [info.min, info.max, 0, 1, min(info.max, 2), max(info.min, -1)]
        if special and made.size:
            flat = made.reshape(-1)
            places = rng.permutation(made.size)[: len(values)]
            flat[places] = np.array(values[: places.size], kind)
        return made

    def shape(self, rank: int | None = None, low: int = 1, high: int = 7) -> tuple[int, ...]:
        """A random shape."""
        rank = int(self.random.integers(1, 5)) if rank is None else rank
        return tuple(int(size) for size in self.random.integers(low, high + 1, rank))

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A random shape that broadcasts to `shape`."""
        kept = tuple(size if self.random.random() < 0.6 else 1 for size in shape)
        return kept[int(self.random.integers(0, len(shape) + 1)) :] if self.random.random() < 0.5 else kept

    # -- running --------------------------------------------------------------------------------------------

    def check(self, device: str, *, is_strided: bool = False, level: int = 99) -> vkml.InferenceSession:
        """Runs all cases in one session and compares them.

        Args:
            device: name of the device; on the CPU all runs with each instruction set, then with NumPy alone.
            is_strided: feeds inputs transposed and with unused elements between, which the model undoes.
            level: graph optimisation level.

        Returns:
            The closed session, for looks at its report.
        """
        if device != "cpu":
            return self.check_once(device, is_strided, level)
        for instructions in cpu_variants():
            with patch("vkml.lowering.cpu.instruction_set", lambda chosen=instructions: chosen):
                session = self.check_once(device, is_strided, level, f", {instructions or 'NumPy'}")
        return session

    def check_once(
        self, device: str, is_strided: bool, level: int, variant: str = ""
    ) -> vkml.InferenceSession:
        """As `check`, without a choice of instruction sets; `variant` is put into messages."""
        graph, feed, wanted = self.graph(is_strided)
        options = SessionOptions(
            graph_optimization_level=GraphOptimizationLevel(level), guard_bytes=GUARD_BYTES
        )
        # What matrix units round to ten bits is judged in tests of these kernels.
        precision = "high" if device == "cpu" else "highest"
        session = vkml.InferenceSession(save_graph(graph), options, devices=device, precision=precision)
        with session:
            found = session.run(wanted, feed)
            misplaced = self._misplaced(session, device)
        results = dict(zip(wanted, found, strict=True))
        wrong = [*misplaced, *(text for case in self.cases for text in differences(case, results))]
        assert not wrong, "\n\n".join([f"{len(wrong)} of {len(self.cases)} cases{variant}", *wrong])
        return session

    def _misplaced(self, session: vkml.InferenceSession, device: str) -> list[str]:
        """Cases that ran on the CPU although the device has their element types."""
        reasons = dict(session.report().fallbacks)
        assert all(reasons.values()), f"a fallback without a reason: {reasons}"
        return [
            f"{describe(case)} fell back to the CPU: {reasons[case.node.label]}"
            for case in self.cases
            if case.node.label in reasons and not case.may_fall_back and has_types(case, device)
        ]

    def graph(self, is_strided: bool = False) -> tuple[Graph, dict[str, Array], list[str]]:
        """The model, a feed for it, and the outputs' names; fills in what the cases expect."""
        inputs: list[Value] = []
        outputs: list[Value] = []
        nodes: list[Node] = []
        constants: dict[str, Constant] = {}
        feed: dict[str, Array] = {}
        for case in self.cases:
            given = [_array(entry) for entry in case.inputs]
            final, case.expected, types = evaluate(case.node, given)
            for name, entry, position in zip(case.node.inputs, case.inputs, itertools.count()):
                if isinstance(entry, Fixed):
                    constants[name] = Constant(
                        dtypes.from_numpy(entry.array.dtype), entry.array.shape, entry.array
                    )
                elif entry is not None:
                    is_value = position in find(final).value_inputs
                    if is_strided and entry.ndim and not is_value:
                        fed, steps = _undone(name, entry, constants, self.opset)
                        nodes += steps
                        name = f"{name}~fed"
                    else:
                        fed = entry
                    feed[name] = fed
                    inputs.append(Value(name, static(dtypes.from_numpy(fed.dtype), fed.shape)))
            nodes.append(case.node)
            outputs += [Value(name, type_) for name, type_ in zip(case.node.outputs, types, strict=False)]
        graph = Graph(
            tuple(inputs), tuple(outputs), tuple(nodes), constants, name="cases", opsets={"": self.opset}
        )
        return graph, feed, [value.name for value in outputs]


def _array(entry: Input) -> Array | None:
    return entry.array if isinstance(entry, Fixed) else entry


def _undone(name: str, array: Array, constants: dict[str, Constant], opset: int) -> tuple[Array, list[Node]]:
    """What to feed so that a Slice and a Transpose give `array` as a strided view, and these nodes."""
    rank = array.ndim
    order = tuple(range(rank - 1, -1, -1))
    moved = array.transpose(order)
    fed = np.zeros((moved.shape[0] * 2 + 1, *moved.shape[1:]), array.dtype)
    fed[1 : 1 + 2 * moved.shape[0] : 2] = moved
    for key, value in (("starts", 1), ("ends", 1 + 2 * moved.shape[0]), ("axes", 0), ("steps", 2)):
        constants[f"{name}~{key}"] = Constant(dtypes.INT64, (1,), np.array([value], np.int64))
    listed = (f"{name}~fed", *(f"{name}~{key}" for key in ("starts", "ends", "axes", "steps")))
    return fed, [
        Node("Slice", listed, (f"{name}~cut",), {}, f"{name}~slice", version=opset),
        Node("Transpose", (f"{name}~cut",), (name,), {"perm": order}, f"{name}~transpose", version=opset),
    ]


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            made[key] = Constant(dtypes.from_numpy(value.dtype), value.shape, value)
        elif isinstance(value, list):
            made[key] = tuple(value)
        elif isinstance(value, float):
            made[key] = float(np.float32(value))
        elif value is not None:
            made[key] = value
    return made


def evaluate(node: Node, given: Sequence[Array | None]) -> tuple[Node, list[Array], list[TensorType]]:
    """The normalised node, its outputs by the operator's reference, and their types."""
    upgraded = find(node).upgrade(node)
    assert isinstance(upgraded, Node), f"{node.label}: use the newest opset in cases"
    spec = find(upgraded)
    final = replace(upgraded, attributes=normalise_attributes(upgraded, spec))
    known = [None if a is None else Known(static(dtypes.from_numpy(a.dtype), a.shape), a) for a in given]
    return final, spec.evaluate(final, given), spec.infer(final, known)


def describe(case: Case) -> str:
    """The case for messages."""
    shapes = ", ".join(
        "-" if (array := _array(entry)) is None else f"{array.dtype}{list(array.shape)}"
        for entry in case.inputs
    )
    attributes = {
        key: value for key, value in case.node.attributes.items() if not isinstance(value, Constant)
    }
    return f"{case.node.name} {case.node.op}({shapes}) {attributes or ''}"


def differences(case: Case, results: Mapping[str, Array]) -> list[str]:
    """What is wrong with a case's results."""
    found = []
    for index, (name, expected) in enumerate(zip(case.node.outputs, case.expected, strict=False)):
        try:
            assert_close(results[name], expected, case.rtol, case.atol, f"{describe(case)} output {index}")
        except AssertionError as error:
            found.append(str(error).strip())
    return found


def cpu_variants() -> list[InstructionSet | None]:
    """The instruction sets that machine code may use here, the best first; None, at the end, for NumPy."""
    best = instruction_set()
    return [*dict.fromkeys(chosen for chosen in (best, InstructionSet.AVX2) if best is not None), None]


def target(device: str) -> Any:
    """What lowering knows of a device."""
    [info] = [info for info in device_registry.devices() if info.name == device]
    return device_registry.target_of(info)


def has_types(case: Case, device: str) -> bool:
    """Whether the device stores the element types that the case's kernels touch."""
    used = {expected.dtype for expected in case.expected}
    used |= {
        array.dtype
        for position, entry in enumerate(case.inputs)
        if (array := _array(entry)) is not None and position not in find(case.node).value_inputs
    }
    needs = {need for dtype in used for need in NEEDS.get(dtypes.from_numpy(dtype), ())}
    return bool(needs <= target(device).capabilities)


def assert_close(
    found: Array, expected: Array, rtol: float | None = None, atol: float | None = None, what: str = ""
) -> None:
    """Asserts equal type, shape, values; floats within a tolerance, NaN and infinities in the same places."""
    if expected.dtype.kind != "f":
        comparing.assert_close(found, expected, rtol=0.0, atol=0.0, what=what)
        return
    limits = np.finfo(expected.dtype)
    usual = {"float16": float(limits.eps), "float32": 1e-5, "float64": 1e-12}
    relative = usual[expected.dtype.name] if rtol is None else rtol
    # Sums cancel: what counts is the error against the typical magnitude.
    typical = comparing.magnitude(expected, np.median, default=0.0)
    absolute = max(relative * typical * 0.1, float(limits.tiny)) if atol is None else atol
    comparing.assert_close(found, expected, rtol=relative, atol=absolute, what=what)
