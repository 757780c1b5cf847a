"""How far rounding may carry a result: evaluation repeated with every inexact step disturbed at random.

A step that IEEE 754 decides (a sum of two float32, a comparison, a movement) is not disturbed at all, so
chains of such steps must come out to the last bit; a step that devices may round otherwise is disturbed by
what it may differ, so that conditions, cancellation and jumps (a floor at an integer) show by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.tensors import HALVES, Array, is_computed_float
from vkml.ir import Node, dtypes, find
from vkml.ir.dtypes import DType

EXACT = frozenset(
    """
    Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    BitCast CenterCropPad Clip Compress Concat Constant ConstantOfShape DepthToSpace Dropout Equal
    Expand EyeLike Flatten Floor Gather GatherElements GatherND GlobalMaxPool Greater GreaterOrEqual
    Hardmax Identity IsInf IsNaN LeakyRelu Less LessOrEqual Max MaxPool MaxUnpool MaxRoiPool Min Mod Mul
    Neg NonMaxSuppression NonZero Not OneHot Or Pad
    PRelu ReduceMax ReduceMin Relu Reshape ReverseSequence Round Scatter Shape Shrink Sign Size Slice
    SpaceToDepth Split Squeeze Sub TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze
    Where Xor
    """.split()  # noqa: SIM905
)
"""Nothing is rounded, or IEEE 754 says how; a scatter without a reduction is one of them, too."""

ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "LeakyRelu", "PRelu", "Shrink", "Mod"}
)
MOVEMENTS = EXACT - ARITHMETIC
DECISIONS = frozenset(
    """
    ArgMax ArgMin Cast CastLike Ceil Equal Floor Greater GreaterOrEqual Hardmax Less LessOrEqual NonZero Round
    Sign TopK Unique
    """.split()  # noqa: SIM905
)
"""Exact as they are, they jump where their input crosses something, or is equal to another one."""
QUOTIENTS = frozenset({"Div", "Sqrt", "Reciprocal"})
"""What Vulkan allows 2.5 units in the last place and more for."""

LINEAR = frozenset(
    """
    AveragePool Col2Im Conv ConvTranspose CumSum Einsum Gemm GlobalAveragePool MatMul Mean ReduceL1
    ReduceMean ReduceSum ReduceSumSquare Resize Sum Upsample
    """.split()  # noqa: SIM905
)
"""Sums of products: the error is a multiple of what the same sum of absolute values comes to."""

FUNCTIONS: dict[str, tuple[float, float]] = {
    "Elu": (16, 4e-7), "Gelu": (16, 3e-5), "Celu": (16, 2e-6), "HardSwish": (8, 2e-6),
    "Pow": (70, 0),
    "Tan": (170, 0), "Sin": (16, 4e-7), "Cos": (16, 4e-7), "Selu": (32, 6e-7), "Softplus": (32, 0),
    "Acosh": (32, 0), "Swish": (32, 1e-36), "Mish": (32, 1e-36),
}  # fmt: skip
"""Units in the last place and absolute error that functions of one number may have; 16 and 0 for others.

Absolute errors are those of float32; in double they are as much smaller as its units are.
"""
EXPONENTIALS = frozenset({"Elu", "Selu", "Celu"})
"""Functions with a multiple of exp(x) - 1, which is known to an absolute error only: so many times."""
CHOICES = frozenset(
    {"Max", "Min", "Clip", "Relu", "Celu", "Selu", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"}
)
"""What chooses among numbers: of zeros with different signs either; or is a sum of which one part is zero."""

JITTERED = frozenset(
    """
    AffineGrid Attention BatchNormalization CausalConvWithState CumProd DeformConv Det DFT GlobalLpPool
    GridSample GroupNormalization GRU InstanceNormalization LayerNormalization LogSoftmax LpNormalization
    LpPool LRN LSTM MeanVarianceNormalization NegativeLogLikelihoodLoss ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceProd RMSNormalization RNN RoiAlign RotaryEmbedding ScatterElements ScatterND
    Softmax STFT
    """.split()  # noqa: SIM905
)
"""Formulas of many steps: their inputs are disturbed."""
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
LARGEST = {**dict.fromkeys((*HALVES, np.dtype(np.float32)), 1e17), np.dtype(np.float64): 1e150}
"""Beyond these, squares and powers in such formulas overflow in one form of them and not in another."""
FLUSHED = (np.dtype(np.float32), np.dtype(np.float64))
"""Types in whose registers devices may have no subnormal numbers; others are computed in these."""

CONTINUOUS = (LINEAR | JITTERED | {"Add", "Sub", "Sin", "Cos", "Log", "BatchNormalization"}) - {
    "GridSample", "RoiAlign", "ScatterElements", "ScatterND"
}  # fmt: skip
"""Where rounding may make one sign or the other, it may make zero."""

TURNS = 59
"""Every so manieth of open places is the greatest at a time; a prime, so that axes of any stride have one."""
ANYTHING = (np.nan, 0.0, np.inf, -np.inf, 1.0)
"""What may come of a sum or a product that overflows on the way: the same everywhere, or each its own."""


@dataclass(frozen=True)
class Traits:
    """What a device may do to numbers."""

    rough_quotients: bool = False
    flushes: bool = False
    """Whether subnormal float32 and float64 may count as zero."""
    winograd: bool = False
    unrounded_halves: bool = False
    """Whether a float of 16 bits may be known more precisely than it is stored."""
    unrounded_decisions: bool = False
    """Whether `DECISIONS` see it so, too."""
    scale: float = 1.0
    """Times the errors that functions and sums are allowed."""


class RandomDisturbance:
    """One sample; styles differ in how errors hang together."""

    STYLES = (
        *("each", "all up", "all down", "flushed", "signs"),
        *("zeros", "outwards", "inwards", "joined", "whole"),
    )
    """Errors of each element's own; of one sign, up to what is allowed in one sample and half as large in the
    next, so that somewhere they are a single unit; none but subnormals flushed; full ones of random sign;
    such that what may be zero is, and else what may be the very input; of all sizes again, away from zero and
    towards it, as those of odd functions are; such that what may be equal mostly is; and such that what may
    be whole is, step after step: the ends of tanh, of which other powers are no numbers."""

    def __init__(self, rng: np.random.Generator, traits: Traits, number: int) -> None:
        self.rng, self.traits = rng, traits
        self.style = self.STYLES[number % len(self.STYLES)]
        self.reach = 0.5 ** (number // len(self.STYLES) % 10)
        self.coin = number // 4 % 2 == 0
        self.turn = number
        self.anything = ANYTHING[number % len(ANYTHING)]
        self.flushes = traits.flushes and (self.style == "flushed" or bool(rng.random() < 0.3))
        self.plain: Mapping[str, Array] = {}
        """Values without disturbance, as far as known: what errors carry beyond something may meet it."""
        self.computed: set[str] = set()
        """Values of 16 bits that a fused chain need not have rounded."""

    def inputs(self, node: Node, arrays: list[Array | None], types: list[DType | None]) -> list[Array | None]:
        found = [
            self._flushed(array, dtype) if array is not None and dtype is not None else None
            for array, dtype in zip(arrays, types, strict=True)
        ]
        is_moved = node.op not in MOVEMENTS or (self.traits.unrounded_decisions and node.op in DECISIONS)
        if self.traits.unrounded_halves and is_moved:
            found = [
                self._moved(array, _unit(array)) if array is not None and array.dtype in HALVES else array
                for array in found
            ]
        if node.op in ("Cast", "CastLike"):
            found[0] = self._unrounded(node.inputs[0], found[0])
        if node.op not in JITTERED or node.domain or _is_plain_scatter(node):
            return found
        return [
            array
            if array is None or dtype not in dtypes.FLOATS
            else self._moved(
                array, np.abs(array.astype(np.float64)) * self.traits.scale * 4 * _epsilon(array.dtype)
            )
            for array, dtype in zip(found, types, strict=True)
        ]

    def outputs(
        self, node: Node, inputs: list[Array | None], arrays: list[Array], types: list[DType]
    ) -> list[Array]:
        found = []
        for number, (array, dtype) in enumerate(zip(arrays, types, strict=False)):
            if node.op in ("Cast", "CastLike") and dtype.is_integer and inputs[0] is not None:
                array = self._fitted(array, inputs[0])
            if dtype in dtypes.FLOATS:
                error = self._error(node, inputs, array, number)
                if error is not None:
                    array = self._moved(array, error)
                    if self.style == "zeros" and inputs and inputs[0] is not None:
                        array = _returned(array, inputs[0], error)
                array = self._flushed(array, dtype)
                if node.op in CONTINUOUS and self.turn % 3 == 2:
                    array = _met(array, self._plain(node.outputs[number], array))
                if node.op in CHOICES:
                    array = self._either_zero(node, inputs, array)
                if self._is_undecided(node, inputs, array):
                    array = self._anything(array.shape).astype(array.dtype)
                elif node.op in ("Sin", "Cos") and (is_open := self._has_any_angle(node, inputs[0])).any():
                    waves = np.sin(self.rng.uniform(-np.pi, np.pi, array.shape))
                    array = np.where(is_open, waves, array).astype(array.dtype)
                elif node.op == "Tan" and (at_pole := self._lies_at_a_pole(node, inputs[0])).any():
                    array = np.where(at_pole, array.dtype.type(self.anything), array)
                elif array.dtype in HALVES and self.coin:
                    # A fused chain of 16 bits rounds at its end: what overflows on the way may come back.
                    array = np.where(np.isinf(array), array.dtype.type(self.anything), array)
                if array.dtype in HALVES and (node.op not in MOVEMENTS or self.computed & set(node.inputs)):
                    self.computed.add(node.outputs[number])
            elif node.op == "Equal":
                array = array | self._may_be_equal(node, inputs)
            found.append(array)
        return found

    def _unrounded(self, name: str, array: Array | None) -> Array | None:
        """What a fused chain hands on, which need not be one of the numbers that 16 bits have."""
        if array is None or array.dtype not in HALVES or name not in self.computed:
            return array
        return self._moved(array.astype(np.float32), 0.5 * _unit(array).astype(np.float64))

    def _left_by_rounding(self, node: Node, inputs: list[Array | None]) -> Any:
        """How far a sum in a fused chain may be from that of rounded numbers."""
        return sum(
            0.5 * _unit(value).astype(np.float64)
            for name, value in zip(node.inputs, inputs, strict=True)
            if name in self.computed and value is not None and value.dtype in HALVES
        )

    def _plain(self, name: str, array: Array) -> Array:
        """A value without disturbance; the disturbed one where that is unknown."""
        plain = self.plain.get(name)
        return array if plain is None or plain.shape != array.shape else plain

    def _may_be_equal(self, node: Node, inputs: list[Array | None]) -> Any:
        """Where errors carry one number from below another to above it."""
        if self.turn % 3 != 2 or any(value is None or not is_computed_float(value) for value in inputs):
            return False
        given: list[Any] = [np.asarray(value, np.float64) for value in inputs]
        plain: list[Any] = [
            np.asarray(self._plain(name, value), np.float64)
            for name, value in zip(node.inputs, given, strict=True)
        ]
        with np.errstate(all="ignore"):
            return np.sign(given[0] - given[1]) * np.sign(plain[0] - plain[1]) < 0

    def _has_any_angle(self, node: Node, angle: Array | None) -> Any:
        """Where an angle of 16 bits, which a fused chain hands on unrounded, may be any within a turn."""
        assert angle is not None
        if angle.dtype not in HALVES or node.inputs[0] not in self.computed:
            return np.zeros((), bool)
        with np.errstate(all="ignore"):
            return np.isfinite(angle.astype(np.float64)) & (_unit(angle).astype(np.float64) > 0.5)

    def _lies_at_a_pole(self, node: Node, angle: Array | None) -> Any:
        """Where a tangent may come to infinity or to its other sign.

        A fused chain, to which 16 bits come unrounded, may take it of any angle nearby; and where there is a
        pole between the angle and the disturbed one, of an angle at the pole.
        """
        assert angle is not None
        plain, wide = self._plain(node.inputs[0], angle).astype(np.float64), angle.astype(np.float64)
        with np.errstate(all="ignore"):
            reach = 4 * _unit(angle).astype(np.float64) if angle.dtype in HALVES else 0.0
            low, high = np.minimum(plain, wide) - reach, np.maximum(plain, wide) + reach
            is_finite = np.isfinite(low) & np.isfinite(high)
            return is_finite & (np.floor(low / np.pi - 0.5) != np.floor(high / np.pi - 0.5))

    def _fitted(self, array: Array, source: Array) -> Array:
        """Integers made of floats: of those beyond the type ONNX leaves open what comes."""
        if source.dtype.kind not in "fV" or array.dtype.kind not in "iu" or array.shape != source.shape:
            return array
        info = np.iinfo(array.dtype)
        with np.errstate(all="ignore"):
            whole = np.trunc(source.astype(np.float64))
            fits = (whole >= info.min) & (whole < float(info.max) + 1)
        if self.turn % 3 == 0:  # what is left of a division may be anything then
            anything: Any = self.rng.integers(info.min, info.max, array.shape, array.dtype, endpoint=True)
        elif self.turn % 3 == 1:  # of NaN and infinity, devices make different ones
            ends = np.array([info.min, 0, info.max // 2 + 1, info.max], array.dtype)
            anything = self.rng.choice(ends, array.shape)
        else:
            anything = (info.min, info.max)[self.coin]
        return np.where(fits, array, anything).astype(array.dtype)

    def _error(self, node: Node, inputs: list[Array | None], array: Array, number: int) -> Any:
        """Absolute error that an output may have; None for none."""
        op, unit = node.op, _unit(array)
        scale = self.traits.scale
        if (
            op in EXACT
            or _is_plain_scatter(node)
            or (op == "Resize" and node.attributes["mode"] == "nearest")
        ):
            is_chosen = op in ("LeakyRelu", "PRelu") or (op in CHOICES and _has_subnormals(inputs))
            if self.traits.flushes and is_chosen and array.dtype in FLUSHED:
                # What counts as zero where it is compared may come out as it is.
                tiny = np.finfo(array.dtype).tiny
                return np.where(np.abs(array) < tiny, tiny, scale * unit if scale != 1 else 0)
            if array.dtype in HALVES and op in ARITHMETIC:
                # A chain of these may round once, at its end; what is left of many times a number that is not
                # rounded yet may be anything below it, and a difference of such numbers anything near it.
                if op in ("Add", "Sub"):
                    return unit + self._left_by_rounding(node, inputs)
                return np.where(_exceeds_many_times(inputs), np.abs(inputs[1]), unit) if op == "Mod" else unit
            return None if scale == 1 or op not in ARITHMETIC else unit
        if op in QUOTIENTS:
            units = 4 if self.traits.rough_quotients else 1 if array.dtype in HALVES else 0
            return None if not units else units * unit
        if op in LINEAR:
            error = scale * self._linear(node, inputs, array) + unit
            return error + self._left_by_rounding(node, inputs) if op in ("Sum", "Mean") else error
        if op == "BatchNormalization" and number == 0:
            return scale * (16 * unit + _folded_error(node, inputs, array))
        if op in RECURRENT:
            # Each step adds gates' errors, which are those of numbers around 1, whatever is left of the sum.
            size = np.max(np.abs(array[np.isfinite(array)]), initial=1.0)
            return scale * (16 * unit + 16 * _epsilon(array.dtype) * size)
        if op in JITTERED:
            return scale * (16 * unit + (4 * _epsilon(array.dtype) if "Log" in op else 0))
        if op == "HardSigmoid" and inputs[0] is not None:
            return scale * (unit + _clipped_error(node, inputs[0]))
        units, absolute = FUNCTIONS.get(op, (16, 0))
        if op in EXPONENTIALS:
            gain = abs(node.attributes["alpha"] * node.attributes.get("gamma", 1.0))
            absolute *= gain if math.isfinite(gain) else 1.0
        if op == "Swish" and 0 < abs(node.attributes["alpha"]) < 1:
            absolute /= abs(node.attributes["alpha"])  # times x, of which the sigmoid ends in zero or before
        # A function that ends in numbers subnormal in the type it is computed in may end in zero before.
        computed = np.float64 if array.dtype == np.float64 else np.float32
        tiny = float(np.finfo(computed).tiny)
        if array.dtype != np.float32:
            absolute *= min(_epsilon(array.dtype) / _epsilon(np.dtype(np.float32)), 1)
            return scale * (4 * unit + absolute + tiny)
        absolute += tiny
        return scale * (units * unit + absolute + (0 if scale == 1 else 1e-7))

    def _either_zero(self, node: Node, inputs: list[Array | None], array: Array) -> Array:
        """A result, some of whose zeros have the other sign, where zeros of both are among the inputs."""
        is_zero = array == 0
        if not is_zero.any():
            return array
        zeros = [value[value == 0] for value in inputs if value is not None and is_computed_float(value)]
        signs = {bool(sign) for value in zeros for sign in np.signbit(value)} | (
            {False} if node.op == "Relu" else {False, True} if node.op in ("Celu", "Selu") else set()
        )
        flipped = is_zero & (self.rng.random(array.shape) < 0.5)
        return np.where(flipped, -array, array) if len(signs) == 2 else array

    def _is_undecided(self, node: Node, inputs: list[Array | None], array: Array) -> bool:
        """Whether a formula may overflow on the way, or not, as it is put."""
        if node.op in ("Conv", "ConvTranspose"):
            # Whether zeros that pad an image meet an infinite weight, kernels decide.
            weight, is_padded = (
                inputs[1],
                any(node.attributes["pads"] or ()) or node.attributes["auto_pad"] != "NOTSET",
            )
            return bool(is_padded and weight is not None and not np.isfinite(weight).all())
        if node.op in ("Resize", "Upsample"):
            # Whether infinity meets a weight of zero, kernels decide, too.
            return node.attributes["mode"] != "nearest" and not np.isfinite(inputs[0]).all()  # type: ignore[type-var]
        if node.op not in JITTERED or node.op in ("Softmax", "LogSoftmax") or _is_plain_scatter(node):
            return False
        floats = [value for value in inputs if value is not None and is_computed_float(value)]
        if node.op in ("ReduceProd", "CumProd", "ScatterElements", "ScatterND"):
            with np.errstate(all="ignore"):
                logs = [np.abs(np.log2(np.abs(value[np.isfinite(value) & (value != 0)]))) for value in floats]
            return float(sum(entry.sum() for entry in logs)) > (120 if array.dtype != np.float64 else 1000)
        return any(
            np.abs(value[np.isfinite(value)]).max(initial=0) > LARGEST[value.dtype] for value in floats
        )

    def _linear(self, node: Node, inputs: list[Array | None], array: Array) -> Any:
        sizes = []
        for value in inputs:
            if value is not None and is_computed_float(value):
                size = np.where(np.isfinite(value), np.abs(value), 0).astype(value.dtype)
                sizes.append(size)
            else:
                sizes.append(value)
        signs = {key: abs(value) for key, value in node.attributes.items() if key in ("alpha", "beta")}
        with np.errstate(all="ignore"):
            total = find(node).evaluate(replace(node, attributes={**node.attributes, **signs}), sizes)[0]
        terms = max([1, *(value.size / max(array.size, 1) for value in inputs if value is not None)])
        if (
            node.op in ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "CumSum")
            and inputs[0] is not None
        ):
            terms = max([terms, *(max(value.shape, default=1) for value in inputs if value is not None)])
            if node.op == "Conv" and inputs[1] is not None:
                terms = math.prod(inputs[1].shape[1:])
        # Coordinates, and so weights, are float32 in every runtime.
        is_single = array.dtype in HALVES or node.op in ("Resize", "Upsample")
        epsilon = 1.2e-7 if is_single else _epsilon(array.dtype)
        error = (4 + 2 * math.sqrt(terms)) * epsilon * total.astype(np.float64)
        if node.op == "Conv" and self.traits.winograd and inputs[1].shape[2:] == (3, 3):  # type: ignore[union-attr]
            error = error + 3e-5 * np.max(total, initial=0)
        if self.traits.flushes and array.dtype in FLUSHED:
            error = error + terms * float(np.finfo(array.dtype).tiny)  # products that are flushed one by one
        if node.op == "Resize":
            error = error + 4 * epsilon * np.max(np.abs(sizes[0]), initial=0)
        return error

    def _moved(self, array: Array, error: Any) -> Array:
        """The array with errors added, up to the stated sizes."""
        wide = array.astype(np.float64)
        if self.style == "each":
            share: Any = self.rng.uniform(-1, 1, array.shape) * self.reach
        elif self.style == "signs":
            share = self.rng.choice([-1.0, 1.0], array.shape)
        elif self.style in ("zeros", "whole"):
            share = 0.0
        else:
            share = {"all down": -self.reach, "inwards": -self.reach, "flushed": 0.0}.get(
                self.style, self.reach
            )
            if self.style in ("outwards", "inwards"):
                share = share * np.sign(wide)
        with np.errstate(all="ignore"):
            step = np.where(np.isfinite(wide), share * error, 0)
            if self.style == "zeros":
                step = np.where(np.abs(wide) <= error, -wide, 0)
            elif self.style == "whole":
                missing = np.rint(wide) - wide
                step = np.where(np.isfinite(wide) & (np.abs(missing) <= error), missing, 0)
            elif self.style == "joined":
                # Neighbours have errors of nearly one size: a power of two is mostly the same for both.
                grid = 2.0 ** np.floor(np.log2(error) - self.turn // len(self.STYLES) % 3)
                is_moved = np.isfinite(wide) & (grid > 0) & (grid < np.inf)
                start = self.rng.random()
                step = np.where(is_moved, (np.rint(wide / grid + start) - start) * grid - wide, 0)
            if not np.isfinite(error).all():
                # Sums that overflow on the way, or do not: anything may come out.
                open_ = ~np.isfinite(error) & np.ones(array.shape, bool)
                wide, step = np.where(open_, self._anything(array.shape), wide), np.where(open_, 0, step)
            if array.dtype == np.float64:
                return np.asarray(array + step)
            # Beyond the largest number, infinity or not is a matter of the last rounding.
            return np.asarray(wide + step).astype(array.dtype)

    def _anything(self, shape: tuple[int, ...]) -> Array:
        """What is open: the same in all places, each its own, or a few above all others, in turn."""
        if self.turn % 3 == 0:
            return np.full(shape, self.anything)
        if self.turn % 3 == 1:
            return self.rng.choice(ANYTHING, shape)
        places = np.arange(math.prod(shape)).reshape(shape)
        return np.where(places % TURNS == self.turn // 3 % TURNS, np.inf, -np.inf)

    def _flushed(self, array: Array, dtype: DType) -> Array:
        if not self.flushes or dtype not in (dtypes.FLOAT32, dtypes.FLOAT64):
            return array
        is_tiny = _is_subnormal(array)
        return np.where(is_tiny, np.copysign(array.dtype.type(0), array), array) if is_tiny.any() else array


def _is_subnormal(array: Array) -> Any:
    return (np.abs(array) < np.finfo(array.dtype).tiny) & (array != 0)


def _has_subnormals(inputs: list[Array | None]) -> bool:
    return any(
        bool(_is_subnormal(array).any()) for array in inputs if array is not None and array.dtype in FLUSHED
    )


def _returned(array: Array, given: Array, error: Any) -> Array:
    """The result, but the input where it may be that: functions that end in their own argument."""
    if given.shape != array.shape or given.dtype != array.dtype:
        return array
    with np.errstate(all="ignore"):
        is_near = np.abs(given.astype(np.float64) - array.astype(np.float64)) <= error
    return np.where(is_near & (array != 0), given, array)


def _folded_error(node: Node, inputs: list[Array | None], array: Array) -> Any:
    """Error of a normalisation put as x times a factor plus an offset, which may be much larger than it."""
    x, scale, bias, mean, variance = (np.asarray(value, np.float64) for value in inputs[:5])
    lanes = (-1, *(1,) * (x.ndim - 2))
    with np.errstate(all="ignore"):
        if node.attributes["training_mode"] and x.size:
            axes = (0, *range(2, x.ndim))
            mean, variance = x.mean(axes), x.var(axes)
        factor = np.abs(scale) / np.sqrt(variance + node.attributes["epsilon"])
        size = factor.reshape(lanes) * (np.abs(x) + np.abs(mean).reshape(lanes)) + np.abs(bias).reshape(lanes)
    epsilon = 1.2e-7 if array.dtype in HALVES else _epsilon(array.dtype)
    return np.where(np.isfinite(size), 4 * epsilon * size, 0)


def _clipped_error(node: Node, x: Array) -> Any:
    """Error of max(0, min(1, alpha x + beta)), of which the product is rounded or is not."""
    alpha, beta = (x.dtype.type(node.attributes[name]).astype(np.float64) for name in ("alpha", "beta"))
    epsilon = 1.2e-7 if x.dtype in HALVES else _epsilon(x.dtype)
    with np.errstate(all="ignore"):
        product = alpha * x.astype(np.float64)
        error = epsilon * (np.abs(product) + np.abs(beta))
        least, greatest = (np.clip(product + beta + sign * error, 0, 1) for sign in (-1, 1))
        return np.where(np.isfinite(error), greatest - least, 0)


def _met(array: Array, plain: Array) -> Array:
    """The result, but zero where it has another sign than without disturbance."""
    crosses = (np.signbit(array) != np.signbit(plain)) & (array != 0) & (plain != 0)
    return np.where(crosses, array.dtype.type(0), array)


def _exceeds_many_times(inputs: list[Array | None]) -> Any:
    """Where a number of 16 bits has another one so many times in it that the other decides what is left."""
    number, divisor = (np.asarray(value, np.float64) for value in inputs[:2])
    with np.errstate(all="ignore"):
        return np.abs(number) > 512 * np.abs(divisor)


def _is_plain_scatter(node: Node) -> bool:
    return node.op in ("ScatterElements", "ScatterND") and node.attributes.get("reduction") in (
        "none",
        "max",
        "min",
    )


def _unit(array: Array) -> Array:
    """Of each number a unit in its last place; of what is no number, that of 1."""
    return np.spacing(np.where(np.isfinite(array), np.abs(array), array.dtype.type(1)))


def _epsilon(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).eps)
