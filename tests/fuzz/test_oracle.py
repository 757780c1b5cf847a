"""What counts as wrong: chains that IEEE 754 decides to the last bit, the rest within its condition."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.campaign import signature
from tests.fuzz.case import Case, Run
from tests.fuzz.comparison import difference
from tests.fuzz.disturbances import RandomDisturbance, Traits
from tests.fuzz.driver import Finding
from tests.fuzz.evaluation import Evaluation
from tests.fuzz.limits import limit_of
from tests.fuzz.operators import ORT_TRAITS
from tests.fuzz.oracle import judge
from tests.fuzz.tensors import Array, random_tensor
from tests.fuzz.trusted import Onnxruntime, laid_open


def model(
    nodes: Sequence[Any], constants: dict[str, Array] | None = None, shape: Sequence[int] = (4,)
) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_empty_tensor_value_info(nodes[-1].output[0])],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def sampled(proto: Any, x: Array, traits: Traits = Traits()) -> tuple[Array, Any]:  # noqa: B008
    """The undisturbed result of a model, and what gives disturbed ones."""
    evaluation = Evaluation(proto.SerializeToString())
    name = proto.graph.output[0].name

    def sample(number: int) -> Array:
        disturbance = RandomDisturbance(np.random.default_rng(number), traits, number)
        return evaluation.run({"x": x}, disturbance)[name]

    return evaluation.run({"x": x})[name], sample


node = helper.make_node
X = np.array([0.1, 1.7, -3.3, 40.25], np.float32)


def test_sums_that_ieee_decides_are_compared_to_the_last_bit() -> None:
    proto = model(
        [node("Add", ["x", "c"], ["a"]), node("Sub", ["a", "c"], ["y"])], {"c": np.float32([1e4] * 4)}
    )
    expected, sample = sampled(proto, X, Traits(rough_quotients=True, flushes=True))
    assert difference(expected, expected, sample) is None
    # What a compiler makes of (x + c) - c.
    wrong = difference(X, expected, sample)
    assert wrong is not None and wrong.mask.sum() >= 3


def test_nan_and_infinity_are_told_apart() -> None:
    proto = model([node("Sub", ["x", "x"], ["y"])])
    expected, sample = sampled(proto, np.float32([np.nan, np.inf, 1, -np.inf]))
    assert difference(np.float32([np.nan, np.nan, 0, np.nan]), expected, sample) is None
    wrong = difference(np.float32([0, 0, 0, np.nan]), expected, sample)
    assert wrong is not None and wrong.mask.tolist() == [True, True, False, False]


def test_nan_and_infinity_that_functions_and_sums_hand_on_are_not_left_open() -> None:
    x = np.float32([np.nan, np.inf, 1, -np.inf])
    for nodes in ([node("Exp", ["x"], ["y"])], [node("Mean", ["x", "x", "x"], ["y"])]):
        expected, sample = sampled(model(nodes), x)
        wrong = difference(np.nan_to_num(expected), expected, sample)
        assert wrong is not None and wrong.mask[0] and wrong.mask[1]


def test_functions_may_differ_in_their_last_places_and_no_more() -> None:
    expected, sample = sampled(model([node("Sigmoid", ["x"], ["y"])]), X)
    assert difference(expected * np.float32(1 + 1e-6), expected, sample) is None
    assert difference(expected * np.float32(1 + 1e-5), expected, sample) is not None


def test_errors_are_carried_through_what_follows() -> None:
    """A difference of two sums: its own relative error is large, and allowed."""
    x = (np.random.default_rng(0).standard_normal((3, 200)) * 100).astype(np.float32)
    nodes = [
        node("ReduceSum", ["x", "axes"], ["s"]),
        node("Sub", ["s", "c"], ["y"]),
    ]
    total = x.sum(1, keepdims=True)
    proto = model(nodes, {"axes": np.array([1]), "c": total + np.float32(0.001)}, (3, 200))
    expected, sample = sampled(proto, x)
    other = (x[:, ::-1].cumsum(1)[:, -1:] - (total + np.float32(0.001))).astype(np.float32)
    assert np.abs(other / expected - 1).max() > 1e-3
    assert difference(other, expected, sample) is None
    assert difference(expected + np.float32(0.5), expected, sample) is not None


def test_an_equality_that_a_single_unit_decides_is_left_open() -> None:
    """Gelu may be off by many units; that one of them is the number compared with must be seen."""
    x = np.linspace(5, 5.6, 64, dtype=np.float32)
    proto = model([node("Gelu", ["x"], ["g"]), node("Equal", ["g", "c"], ["y"])], {"c": x}, (64,))
    expected, sample = sampled(proto, x)
    assert difference(np.ones(64, bool), expected, sample) is None
    proto = model([node("Gelu", ["x"], ["g"]), node("Equal", ["g", "c"], ["y"])], {"c": x + 1}, (64,))
    expected, sample = sampled(proto, x)
    assert difference(np.ones(64, bool), expected, sample) is not None


def test_a_plain_scatter_leaves_nothing_open() -> None:
    """Whatever the numbers, of which products may overflow."""
    nodes = [node("ScatterElements", ["x", "i", "u"], ["y"])]
    x = np.float32([1e30] * 8)
    proto = model(nodes, {"i": np.array([1]), "u": np.float32([5])}, (8,))
    expected, sample = sampled(proto, x)
    assert difference(expected, expected, sample) is None
    assert difference(np.zeros_like(expected), expected, sample) is not None


@pytest.mark.parametrize("training", [0, 1])
def test_a_normalisation_may_be_a_factor_and_an_offset(training: int) -> None:
    """As large as the input over a small deviation, however small the result is."""
    parameters = {"s": [1], "b": [-0.14677747], "m": [1], "v": [0]}
    made = node("BatchNormalization", ["x", *parameters], ["y"], training_mode=training)
    proto = model([made], {name: np.float32(value) for name, value in parameters.items()}, (1, 1, 1))
    expected, sample = sampled(proto, np.float32([[[1]]]))
    assert difference(np.float32([[[-0.14677747]]]), expected, sample) is None
    assert difference(np.float32([[[-0.16]]]), expected, sample) is not None


def test_sums_that_overflow_on_the_way_are_open_one_by_one() -> None:
    """Of two of these, either may be the first that is no number."""
    weight = np.float32([[3e38, -3e38, 3e38, -3e38]] * 3).T
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("ArgMax", ["m"], ["y"], axis=1, keepdims=0)]
    proto = model(nodes, {"w": weight}, (1, 4))
    expected, sample = sampled(proto, np.float32([[3, 3, 3, 3]]))
    for place in range(3):
        assert difference(np.array([place]), expected, sample) is None


def test_any_of_many_open_sums_may_be_the_greatest() -> None:
    weight = np.full((4, 40), 3e38, np.float32) * np.float32([[1], [-1], [1], [-1]])
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Hardmax", ["m"], ["y"], axis=1)]
    proto = model(nodes, {"w": weight}, (1, 4))
    expected, sample = sampled(proto, np.float32([[3, 3, 3, 3]]))
    for place in range(40):
        assert difference(np.eye(40, dtype=np.float32)[[place]], expected, sample) is None
    assert difference(np.full((1, 40), 9, np.float32), expected, sample) is not None


def test_formulas_that_overflow_on_the_way_are_open_one_by_one() -> None:
    parameters = {"s": [1] * 3, "b": [0] * 3, "m": [0] * 3, "v": [1] * 3}
    normalise = node("BatchNormalization", ["x", *parameters], ["n"])
    nodes = [normalise, node("ArgMax", ["n"], ["y"], axis=1, keepdims=0)]
    proto = model(nodes, {name: np.float32(value) for name, value in parameters.items()}, (1, 3))
    for size, is_open in ((3e38, True), (3, False)):
        expected, sample = sampled(proto, np.float32([[size, size, size / 2]]))
        assert (difference(np.array([2]), expected, sample) is None) == is_open


def test_jumps_that_rounding_may_decide_are_left_open() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("Floor", ["e"], ["y"])]
    x = np.float32([0.0, 1.0, 2.0, 0.5])  # e^0 lies at a jump
    expected, sample = sampled(model(nodes), x)
    assert difference(expected - np.float32([1, 0, 0, 0]), expected, sample) is None
    assert difference(expected - np.float32([0, 1, 0, 0]), expected, sample) is not None


def test_ends_of_functions_are_met_again_and_again() -> None:
    """(-1)⁻¹ is -1, as often as one likes; of a number just below or above it no such power is one."""
    nodes = [node("Tanh", ["x"], ["t"]), node("Pow", ["t", "t"], ["p"]), node("Pow", ["p", "p"], ["y"])]
    expected, sample = sampled(model(nodes), np.float32([-8.5, -3, 3, 4]))
    assert np.isnan(expected[:2]).all()
    assert difference(np.where([1, 0, 0, 0], np.float32(-1), expected), expected, sample) is None
    assert difference(np.where([0, 1, 0, 0], np.float32(-1), expected), expected, sample) is not None


def test_tiny_numbers_may_be_flushed_where_the_device_says_so() -> None:
    proto = model([node("Mul", ["x", "x"], ["y"])])
    x = np.float32([1e-20, 1, 2, 3])
    expected, sample = sampled(proto, x, Traits(flushes=True))
    assert expected[0] > 0
    flushed = np.where(expected < 1e-38, np.float32(0), expected)
    assert difference(flushed, expected, sample) is None
    _, strict = sampled(proto, x)
    assert difference(flushed, expected, strict) is not None
    x = np.float32([-1e-38, 1, -2, 3])
    expected, sample = sampled(model([node("LeakyRelu", ["x"], ["y"])]), x, Traits(flushes=True))
    assert difference(np.float32([-1e-38, 1, -0.02, 3]), expected, sample) is None
    assert difference(np.float32([-1e-38, 1, -0.020001, 3]), expected, sample) is not None


def test_tiny_doubles_may_be_flushed_where_the_device_says_so() -> None:
    nodes = [
        node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        node("Mul", ["d", "c"], ["m"]),
        node("Sign", ["m"], ["y"]),
    ]
    proto = model(nodes, {"c": np.float64(1e-280)})
    for traits, is_open in ((Traits(flushes=True), True), (Traits(), False)):
        expected, sample = sampled(proto, np.float32([1e-32, 2, 3, 4]), traits)
        assert expected.tolist() == [1, 1, 1, 1]
        assert (difference(np.float64([0, 1, 1, 1]), expected, sample) is None) == is_open
        assert difference(np.float64([1, 0, 1, 1]), expected, sample) is not None


def test_what_counts_as_zero_may_be_the_greater_of_two() -> None:
    x = np.float32([-1e-40, 1, -2, 0])
    for other, is_open in ((-0.0, True), (3, False)):
        proto = model([node("Max", ["x", "c"], ["y"])], {"c": np.float32(other)})
        expected, sample = sampled(proto, x, Traits(flushes=True))
        assert difference(np.where(x < 0, x, expected), expected, sample) is not None
        found = np.where([1, 0, 0, 0], x, expected)
        assert (difference(found, expected, sample) is None) == is_open


def test_products_may_be_flushed_one_by_one() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"w": np.full((4, 1), 5e-39, np.float32)}, (1, 4))
    x = np.ones((1, 4), np.float32)
    expected, sample = sampled(proto, x, Traits(flushes=True))
    assert expected > np.finfo(np.float32).tiny
    assert difference(np.zeros_like(expected), expected, sample) is None
    assert difference(np.full_like(expected, 1e-35), expected, sample) is not None
    _, strict = sampled(proto, x)
    assert difference(np.zeros_like(expected), expected, strict) is not None


def test_halves_that_overflow_on_the_way_may_come_back() -> None:
    """A chain that knows them as float32 finds a cosine, where a stored infinity has none."""
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("Mul", ["h", "h"], ["m"]),
        node("Cos", ["m"], ["y"]),
    ]
    expected, sample = sampled(model(nodes), np.float32([300, 1, 2, 3]))
    assert np.isnan(expected[0])
    found = np.where(np.isnan(expected), np.float16(-0.966), expected)
    assert difference(found, expected, sample) is None
    assert difference(np.full_like(expected, np.nan), expected, sample) is not None


def test_what_is_left_of_many_times_an_unrounded_half_is_open() -> None:
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("Sinh", ["h"], ["s"]),
        node("Mod", ["c", "s"], ["y"], fmod=1),
    ]
    x = np.float32([1.945, 1.945, 3, 4])
    expected, sample = sampled(model(nodes, {"c": np.float16([-6e4, 4, -6e4, 1])}), x)
    assert difference(expected + np.float16([2.2, 0, 3, 0]), expected, sample) is None
    assert difference(expected + np.float16([0, 0.1, 0, 0]), expected, sample) is not None
    # Beyond 16 bits both are numbers in such a chain, and one infinity elsewhere.
    nodes = [nodes[0], node("Cosh", ["h"], ["s"]), node("Mod", ["s", "s"], ["y"], fmod=1)]
    expected, sample = sampled(model(nodes), np.float32([47, 1, 2, 3]))
    assert np.isnan(expected[0])
    assert difference(np.zeros_like(expected), expected, sample) is None
    assert difference(np.ones_like(expected), expected, sample) is not None


def test_bfloat16_is_rounded_like_other_floats() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), node("Gelu", ["h"], ["y"])]
    expected, sample = sampled(model(nodes), np.float32([-4.34375, 1, 2, 3]))
    assert difference(expected + np.spacing(expected), expected, sample) is None
    assert difference(expected + 20 * np.spacing(expected), expected, sample) is not None


def test_infinity_times_a_weight_of_zero_is_left_open() -> None:
    resize = node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="asymmetric", mode="linear")
    proto = model([resize], {"s": np.float32([2])})
    for x, is_open in (([1, np.inf, 2, 3], True), ([1, 5, 2, 3], False)):
        expected, sample = sampled(proto, np.float32(x))
        found = np.where(np.arange(8) == 0, np.float32(np.nan), expected)
        assert (difference(found, expected, sample) is None) == is_open


def test_what_is_cast_beyond_its_type_is_open_after_a_division() -> None:
    """The greatest and the least uint64 are both multiples of 3; what a device makes of 1e20 need not be."""
    nodes = [node("Cast", ["x"], ["u"], to=TensorProto.UINT64), node("Mod", ["u", "three"], ["y"])]
    expected, sample = sampled(model(nodes, {"three": np.uint64([3, 3, 3, 3])}), np.float32([1e20, 7, -1, 8]))
    for left in range(3):
        found = np.uint64([left, expected[1], left, expected[3]])
        assert difference(found, expected, sample) is None
    assert difference(np.uint64([3, 1, 0, 2]), expected, sample) is not None
    assert difference(np.uint64([0, 2, 0, 2]), expected, sample) is not None


def test_sums_of_several_casts_beyond_their_type_are_open() -> None:
    """Devices make the least, the greatest or zero of NaN and infinity, and of each its own."""
    nodes = [node("Cast", ["x"], ["i"], to=TensorProto.INT32), node("ReduceSum", ["i"], ["y"], keepdims=0)]
    proto = model(nodes)
    expected, sample = sampled(proto, np.float32([np.nan, np.inf, 700, 5]))
    for ends in ((0, 2**31 - 1), (-(2**31), 0), (2**31 - 1, 2**31 - 1)):
        found = np.array(sum(ends) + 705, np.int64).astype(np.int32)
        assert difference(found, expected, sample) is None
    expected, sample = sampled(proto, np.float32([0, 1, 700, 5]))
    assert difference(expected + np.int32(1), expected, sample) is not None


def test_bfloat16_ends_in_subnormal_numbers_or_zero_before() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), node("Sigmoid", ["h"], ["y"])]
    expected, sample = sampled(model(nodes), np.float32([-89.5, -80, 1, 2]))
    found = expected.copy()
    found[0] = 1.37e-39
    assert difference(found, expected, sample) is None
    found[0] = 1e-37
    assert difference(found, expected, sample) is not None


def test_doubles_end_in_subnormal_numbers_or_zero_before() -> None:
    nodes = [node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE), node("Sigmoid", ["d"], ["y"])]
    expected, sample = sampled(model(nodes), np.float32([-719, -80, 1, 2]))
    for least, is_allowed in ((4e-313, True), (0, True), (1e-306, False)):
        found = np.where(np.arange(4) == 0, least, expected)
        assert (difference(found, expected, sample) is None) == is_allowed


def test_type_and_shape_are_compared() -> None:
    expected, sample = sampled(model([node("Relu", ["x"], ["y"])]), X)
    assert difference(expected.astype(np.float64), expected, sample) is not None
    assert difference(expected.reshape(2, 2), expected, sample) is not None


def test_samples_are_kept_of_what_differs_only() -> None:
    """A Tile may make megabytes; 240 samples of these would be more than a child may take."""
    expected = np.zeros(2_000_000, np.float32)
    found = expected.copy()
    found[7] = 1
    tracemalloc.start()
    wrong = difference(found, expected, lambda number: expected.copy())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert wrong is not None and np.flatnonzero(wrong.mask).tolist() == [7]
    assert peak < 5 * expected.nbytes


def test_texts_and_integers_are_compared_exactly() -> None:
    def same(number: int) -> Array:
        return np.array(["b", "1.0"], object)

    def never(number: int) -> Array:
        return np.array([1, 2])

    expected = same(0)
    assert difference(expected, expected, same) is None
    for wrong in (["a", "1.0"], ["b", "1.00"], ["b", "1.0000001"]):
        assert difference(np.array(wrong, object), expected, same) is not None
    assert difference(np.array([1, 3]), np.array([1, 2]), never) is not None


def test_texts_of_numbers_differ_as_the_numbers_may() -> None:
    proto = model([node("Sigmoid", ["x"], ["a"]), node("Cast", ["a"], ["y"], to=TensorProto.STRING)])
    expected, sample = sampled(proto, X)

    def moved(share: float) -> Array:
        numbers = expected.astype(np.float32) * np.float32(1 + share)
        return np.array([str(number) for number in numbers], object)

    assert (moved(1e-6) != expected).all()
    assert difference(moved(1e-6), expected, sample) is None
    assert difference(moved(1e-4), expected, sample) is not None
    assert difference(np.array([f"<{text}>" for text in expected], object), expected, sample) is not None


def test_a_shape_that_rounding_decides_may_be_what_rounding_makes_of_it() -> None:
    """Elu of tiny numbers is zero for those who subtract 1 from their exponential."""
    proto = model([node("Elu", ["x"], ["e"]), node("NonZero", ["e"], ["y"])])
    expected, sample = sampled(proto, np.float32([1, -1e-25, -1e-25, 2]))
    assert expected.shape == (1, 4)
    assert difference(np.array([[0, 3]]), expected, sample) is None
    assert difference(np.array([[0]]), expected, sample) is not None
    assert difference(np.array([0, 3]), expected, sample) is not None
    proto = model([node("Neg", ["x"], ["e"]), node("NonZero", ["e"], ["y"])])
    expected, sample = sampled(proto, X)
    assert difference(np.array([[0, 1, 3]]), expected, sample) is not None


def test_results_that_rounding_may_make_equal_are_left_open() -> None:
    """Of two rows, each normalised, in one of which all numbers are a third of the other's."""
    x = np.float32([[0.1, 0.2, 0.4, 0.9, 1.1], [0.3, 0.6, 1.2, 2.7, 3.3]])
    parameters = {"s": np.float32([1.5428601503372192] * 5)}
    nodes = [node("LayerNormalization", ["x", "s"], ["n"], epsilon=0.0), node("Unique", ["n"], ["y"])]
    expected, sample = sampled(model(nodes, parameters, x.shape), x)
    for apart in range(5, 11):
        assert difference(np.resize(expected, apart), expected, sample) is None
    for wrong in (4, 11):
        assert difference(np.resize(expected, wrong), expected, sample) is not None


def test_equal_results_of_odd_functions_may_differ_on_both_sides_of_zero() -> None:
    proto = model([node("Erf", ["x"], ["e"]), node("Unique", ["e"], ["y"])])
    expected, sample = sampled(proto, np.float32([4, 8, -4, -8]))
    for found in ([-1, 1], [-1, -0.99999994, 0.99999994, 1]):
        assert difference(np.float32(found), expected, sample) is None
    assert difference(np.float32([1]), expected, sample) is not None


def test_multiples_of_exponentials_have_multiples_of_their_errors() -> None:
    x = np.float32([-1e-7, -1e-6, 1, 2])
    for alpha, is_open in ((100.0, True), (1.0, False)):
        expected, sample = sampled(model([node("Elu", ["x"], ["y"], alpha=alpha)]), x)
        found = expected - np.float32([2e-5, 0, 0, 0])
        assert (difference(found, expected, sample) is None) == is_open


def test_a_product_within_a_clipped_sum_may_be_rounded() -> None:
    x = np.float32([-0.996135, -0.5, -0.9, -1.01])
    for factor, is_open in ((100.0, True), (1.0, False)):
        proto = model([node("HardSigmoid", ["x"], ["y"], alpha=factor, beta=factor)])
        expected, sample = sampled(proto, x)
        assert (difference(expected + np.float32([3.8e-6, 0, 0, 0]), expected, sample) is None) == is_open
        # What is far beyond the ends is decided.
        wrong = difference(expected + np.float32([0, 3.8e-6, 3.8e-6, 3.8e-6]), expected, sample)
        assert wrong is not None and wrong.mask.tolist() == [False, True, True, True]


def test_a_difference_that_only_small_errors_make_zero_is_left_open() -> None:
    x = np.float32([2**-11, 1, 2, 3])
    expected, sample = sampled(
        model([node("Tanh", ["x"], ["t"]), node("Sub", ["x", "t"], ["d"]), node("Reciprocal", ["d"], ["y"])]),
        x,
    )
    assert difference(np.where(x < 1, np.float32(np.inf), expected), expected, sample) is None
    assert difference(np.where(x < 2, np.float32(np.inf), expected), expected, sample) is not None


def test_the_sign_of_the_greater_of_two_zeros_is_left_open() -> None:
    nodes = [node("Max", ["x", "c"], ["m"]), node("Reciprocal", ["m"], ["y"])]
    x = np.float32([0, 1, -1, -0.0])
    for other, is_open in ((-0.0, True), (-5, False)):
        expected, sample = sampled(model(nodes, {"c": np.float32([other] * 4)}), np.abs(x))
        found = expected * np.float32([-1, 1, 1, 1])
        assert (difference(found, expected, sample) is None) == is_open


def test_what_others_excusably_shape_otherwise_excuses_what_follows() -> None:
    """onnxruntime resizes to what it would before cropping; ONNX's text crops first, so nothing is left."""
    roi, scales = np.float32([1, 1, 1, 1]), np.float32([1, 1])
    resize = node(
        "Resize", ["x", "roi", "scales"], ["r"], coordinate_transformation_mode="tf_crop_and_resize"
    )
    nodes = [resize, node("Add", ["r", "ones"], ["y"])]
    proto = model(nodes, {"roi": roi, "scales": scales, "ones": np.ones((2, 2), np.float32)}, (2, 2))
    x = np.ones((2, 2), np.float32)
    verdict = judge(Case(proto.SerializeToString(), ({"x": x},), (Run(0),)), "cpu")
    assert verdict.counts["raised"] + verdict.counts["refused"] == 1
    assert not verdict.findings, verdict.findings


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_a_right_case_is_found_right(kind: str) -> None:
    proto = model([node("Softmax", ["x"], ["a"]), node("Mul", ["a", "x"], ["y"])])
    case = Case(proto.SerializeToString(), ({"x": X},), (Run(0), Run(0, "misaligned")))
    verdict = judge(case, "cpu")
    assert not verdict.findings
    assert verdict.counts["operators compared"] == 2 and verdict.counts["compared"] == 2


def test_texts_go_through_onnxruntime() -> None:
    graph = helper.make_graph(
        [node("Unsqueeze", ["x", "axes"], ["a"]), node("Identity", ["a"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.STRING, (2,))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    found = Onnxruntime(laid_open(proto)).run({"x": np.array(["é", ""], object)})
    assert found["a"].tolist() == [["é", ""]]


def test_what_others_make_of_old_operators_is_known_by_the_opset() -> None:
    """Gemm is upgraded; onnx's evaluator forgets the beta of the old one."""
    proto = model([node("Gemm", ["x", "x", "x"], ["y"], beta=2.0)], shape=(2, 2))
    x = np.float32([[1, 2], [3, 4]])
    proto.opset_import[0].version = 6
    verdict = judge(Case(proto.SerializeToString(), ({"x": x},), (Run(0),)), "cpu")
    assert verdict.counts["compared"] == 1 and not verdict.findings, verdict.findings


@pytest.mark.parametrize("old", [b"middle", b"Relu"])
def test_names_that_are_no_text_make_no_model(old: bytes) -> None:
    """protobuf reads them, and hands them out as bytes."""
    proto = model([node("Relu", ["x"], ["middle"]), node("Neg", ["middle"], ["y"])])
    data = proto.SerializeToString().replace(old, old[:-1] + b"\x80")
    case = Case(data, ({"x": X},), (Run(0),))
    assert case.proto() is None
    verdict = judge(case, "cpu")
    assert verdict.counts["refused"] == 1 and not verdict.findings, verdict.findings


def test_a_feed_of_another_type_is_no_contradiction_of_operators() -> None:
    proto = model([node("Trilu", ["x"], ["y"])], shape=(2, 2))
    case = Case(proto.SerializeToString(), ({"x": np.ones((2, 2), np.int64)},), (Run(0),))
    verdict = judge(case, "cpu")
    assert verdict.counts["raised"] == 1 and not verdict.findings


def test_a_refusal_that_others_share_is_none() -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"])], {"s": np.array([3])})
    case = Case(proto.SerializeToString(), ({"x": X},), (Run(0),))
    verdict = judge(case, "cpu")
    assert verdict.counts["refused"] == 1 and not verdict.findings


def test_what_is_only_measured_need_not_be_computed() -> None:
    wrong = node("Gather", ["x", "i"], ["g"])
    lasts = (
        (node("Size", ["g"], ["y"]), 0),
        (node("CastLike", ["x", "g"], ["y"]), 0),
        (node("Neg", ["g"], ["y"]), 1),
    )
    for last, count in lasts:
        proto = model([wrong, last], {"i": np.array([7])})
        case = Case(proto.SerializeToString(), ({"x": X},), (Run(0),))
        verdict = judge(case, "cpu")
        assert not verdict.findings
        assert verdict.counts["measured only"] == 1 - count
        assert verdict.counts["refused"] + verdict.counts["raised"] == count


def test_limits_are_those_of_the_node_concerned() -> None:
    pools = [
        node("MaxPool", ["x"], ["a"], "down", kernel_shape=[2]),
        node("MaxPool", ["a"], ["y"], "up", ceil_mode=1),
    ]
    proto = model(pools)
    assert limit_of("MaxPool node 'down': a window of 2 is larger than spatial axis 0", proto)
    assert limit_of("MaxPool node 'up': a window of 2 is larger than spatial axis 0", proto) is None


@pytest.mark.parametrize(
    "op, message, excusing, plain",
    [
        ("Resize", "nearest_mode '?' is not one of floor", {"mode": "linear"}, {"mode": "nearest"}),
        ("Resize", "nearest_mode '?' is not one of floor", {"mode": "cubic"}, {}),
        ("Reshape", "cannot reshape [2] to [0]: 2 elements against 0", {"allowzero": 7}, {"allowzero": 1}),
    ],
)
def test_limits_of_what_others_do_not_read(
    op: str, message: str, excusing: dict[str, Any], plain: dict[str, Any]
) -> None:
    for attributes, is_limit in ((excusing, True), (plain, False)):
        proto = model([node(op, ["x"], ["y"], **attributes)])
        assert bool(limit_of(f"{op} node 'y': {message}", proto)) == is_limit


def test_limits_are_found_whatever_the_names_are() -> None:
    message = "Constant node 'a\nb': the attribute 'axis' is not one of Constant's"
    assert limit_of(message, model([node("Relu", ["x"], ["y"])]))


def test_an_array_of_one_complex_number_is_an_array() -> None:
    assert isinstance(random_tensor(np.random.default_rng(0), TensorProto.COMPLEX128, ()), np.ndarray)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_type_of_a_scale_is_that_of_a_normalised_result(kind: str) -> None:
    """Which onnx's evaluator gets wrong."""
    normalise = node("RMSNormalization", ["h", "s"], ["y"])
    proto = model(
        [node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), normalise],
        {"s": np.float32([1]).astype(kind)},
    )
    proto.opset_import[0].version = 23
    verdict = judge(Case(proto.SerializeToString(), ({"x": X},), (Run(0),)), "cpu")
    assert verdict.counts["operators compared"] == 2 and not verdict.findings, verdict.findings


def test_onnxruntime_may_decide_by_halves_that_are_not_rounded_yet() -> None:
    """The least of these probabilities are one number in float16, and none of them is in float32."""
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("Softmax", ["h"], ["s"]),
        node("Unique", ["s"], ["y"], sorted=0),
    ]
    x = np.float32([-2, 18, 14, 70])
    verdict = judge(Case(model(nodes).SerializeToString(), ({"x": x},), (Run(0),)), "cpu")
    assert verdict.counts["onnxruntime ran"] == 1 and not verdict.findings, verdict.findings
    # What a model is fed has been rounded.
    for traits, is_open in ((Traits(unrounded_halves=True), False), (ORT_TRAITS, True)):
        unique = [nodes[0], node("Unique", ["h"], ["y"])]
        expected, sample = sampled(model(unique), np.float32([1, 1, 2, 2]), traits)
        found = np.float16([1, 1.001, 2])
        assert (difference(found, expected, sample) is None) == is_open


def test_findings_of_one_cause_have_one_signature() -> None:
    def refused(message: str) -> str:
        return signature(Finding("refused", "Add", message))

    assert refused("Add node 'a': shape [1, 2] and 3") == refused("Add node 'bc': shape [4] and 17")
    assert refused("Add node 'a': shape [1]") != refused("Add node 'a': type [1]")
