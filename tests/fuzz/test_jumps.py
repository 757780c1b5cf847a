"""What is left open where errors carry numbers across poles and jumps of functions, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.fuzz.comparison import difference
from tests.fuzz.test_oracle import model, node, sampled

JUMPS = {
    "Tan": (1.5708, 120.4), "Reciprocal": (0.0, 900.0), "Log": (0.0, -9.0), "Floor": (1.0, 0.0),
    "Ceil": (0.0, 0.0), "Round": (0.5, 1.0), "Sign": (0.0, -1.0), "Atanh": (1.0, np.inf),
    "Sqrt": (0.0, np.nan),
}  # fmt: skip
"""Where functions have a pole, an end or a jump, and what they may come to there."""


@pytest.mark.parametrize("op", JUMPS)
def test_functions_of_what_cancels_are_open_on_both_sides_of_poles_and_jumps(op: str) -> None:
    """(x - c) + c of halves may be x, or a number of units of c from it; of float32 it is decided."""
    chain = [node("Sub", ["h", "c"], ["s"]), node("Add", ["s", "c"], ["d"]), node(op, ["d"], ["y"])]
    at, found = JUMPS[op]
    for kind, is_open in ((TensorProto.FLOAT16, True), (TensorProto.FLOAT, False)):
        nodes = [node("Cast", ["x"], ["h"], to=kind), *chain]
        constant = np.full(4, 1e4, "f2" if is_open else "f4")
        x = np.float32([at + 0.3, at - 0.3, 0.7, 20])
        expected, sample = sampled(model(nodes, {"c": constant}), x)
        wrong = difference(np.full_like(expected, found), expected, sample)
        assert (wrong is None or not wrong.mask[:2].any()) if is_open else wrong is not None


@pytest.mark.parametrize(
    "op, other, found",
    [("Equal", 1.1, [True, False]), ("Greater", 1.1, [True, False]), ("LessOrEqual", -0.3, [True, False]),
     ("Div", "d", [900, -900, np.inf]), ("Mod", 1.0, [0, 0.3, 0.99]), ("Pow", -1.0, [900, np.inf])],
)  # fmt: skip
def test_comparisons_and_divisions_of_what_cancels_are_open(op: str, other: Any, found: list[Any]) -> None:
    attributes = {"fmod": 1} if op == "Mod" else {}
    for constant, is_open in ((1e4, True), (2.0, False)):
        nodes = [
            node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            node("Sub", ["h", "c"], ["s"]),
            node("Add", ["s", "c"], ["d"]),
            node(op, ["c", "d"] if other == "d" else ["d", "o"], ["y"], **attributes),
        ]
        constants = {"c": np.full(4, constant, "f2"), "o": np.full(4, 0 if other == "d" else other, "f2")}
        expected, sample = sampled(model(nodes, constants), np.float32([1.3, 1.2, -2, 3]))
        wrong = [difference(np.full_like(expected, value), expected, sample) for value in found]
        assert not any(wrong) if is_open else any(wrong)


def test_a_pole_between_two_halves_is_left_open() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Tan", ["h"], ["y"])]
    expected, sample = sampled(model(nodes), np.float32([np.pi / 2, 1, -np.pi / 2, 0.5]))
    infinite = np.float16([-np.inf, 0, np.inf, 0])
    assert difference(np.where(infinite != 0, infinite, expected), expected, sample) is None
    assert difference(np.where(infinite == 0, np.float16(2), expected), expected, sample) is not None


def test_a_pole_between_disturbed_angles_is_left_open() -> None:
    """Of any type, and of those that lie between others only."""
    total = node("ReduceSum", ["x", "axes"], ["s"])
    x = np.float32([[1e7, 1.5703125 - 1e7 / 2, -1e7 / 2], [1e0, 0.5, -0.5]])
    nodes = [total, node("Tan", ["s"], ["y"])]
    expected, sample = sampled(model(nodes, {"axes": np.array([1])}, (2, 3)), x)
    for large in (3e4, -1e6, np.inf):
        assert difference(np.where([[True], [False]], np.float32(large), expected), expected, sample) is None
        found = np.where([[False], [True]], np.float32(5), expected)
        assert difference(found, expected, sample) is not None


def test_a_chain_hands_on_what_halves_lack() -> None:
    """10001 is none of them, nor are numbers near 0 that large ones and such leave."""
    x = np.float32([1.2, 1.3, -1.1, 2.2])
    half = node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16)
    less = node("Sub", ["c", "h"], ["s"])
    tails = (
        [node("Cast", ["s"], ["i"], to=TensorProto.INT32), node("Mod", ["i", "eight"], ["y"])],
        [node("Cast", ["s"], ["i"], to=TensorProto.INT32), node("BitwiseAnd", ["i", "eight"], ["y"])],
        [node("Cast", ["s"], ["f"], to=TensorProto.FLOAT), node("Mod", ["f", "whole"], ["y"], fmod=1)],
        [node("Sum", ["s", "negative"], ["d"]), node("Mod", ["d", "one"], ["y"], fmod=1)],
        [node("Mean", ["s", "negative"], ["d"]), node("Mod", ["d", "one"], ["y"], fmod=1)],
    )
    for tail in tails:
        for large, is_open in ((1e4, True), (8.0, False)):
            constants = {
                "c": np.full(4, large, "f2"), "negative": np.full(4, -large, "f2"),
                "eight": np.int32([7 if tail[-1].op_type == "BitwiseAnd" else 8]),
                "whole": np.float32([1]), "one": np.float16([1]),
            }  # fmt: skip
            expected, sample = sampled(model([half, less, *tail], constants), x)
            found = np.full_like(expected, 3 if expected.dtype == np.int32 else 0.5)
            wrong = difference(found, expected, sample)
            assert (wrong is None) == is_open, (tail, large)


def test_a_sigmoid_times_its_argument_ends_in_zero_or_before() -> None:
    """The sigmoid of -89 is 2e-39, or 0 where exp(89) has overflowed."""
    for alpha, x in ((1.0, -89.0), (1e-5, -89e5)):
        proto = model([node("Swish", ["x"], ["y"], alpha=alpha)])
        proto.opset_import[0].version = 24
        expected, sample = sampled(proto, np.float32([x, x / 2, 1, 2]))
        true = np.float32(x * np.exp(-89.0))
        for end in (0, true):
            assert difference(np.float32([end, *expected[1:]]), expected, sample) is None
        for end in (1e4 * true, expected[1]):
            assert difference(np.float32([end, *expected[1:]]), expected, sample) is not None
