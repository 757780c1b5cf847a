"""Windows for short-time transforms and the weights of mel filters: tensors that numbers alone decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ModelError, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64, NUMBERS, DType, from_code, from_numpy
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import has_unknown_value, present, require_dtype, required, unknown_shape
from vkml.ops.limits import check_size

_COEFFICIENTS = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Of cosines of multiples of an angle that goes once round."""


class _OfNumbers(Operator):
    """A tensor that the values of scalar inputs decide."""

    def _result(self, node: Node) -> DType:
        code = int(node.attributes["output_datatype"])
        try:
            found = from_code(code)
        except ModelError as error:
            raise type(error)(f"{node.label}: {error}") from None
        if found not in NUMBERS:
            raise InvalidGraph(f"{node.label}: output_datatype {found.name} is no type of numbers")
        return found

    def _scalar(self, node: Node, inputs: Sequence[Known | None], at: int, allowed: Sequence[DType]) -> None:
        what = f"input {at}"
        found = required(node, inputs, at)
        require_dtype(node, found, allowed, what)
        if found.type.elements != 1:
            raise ShapeError(f"{node.label}: {what} must be a scalar, its shape is {list(found.dims)}")

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        arrays = [None if found is None else build.elements_of(found) for found in inputs]
        if any(array is None or array.dtype == object for array in arrays):
            return None
        [made] = self.evaluate(node, arrays)
        return [build.constant(made, from_numpy(made.dtype))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [None] * len(inputs)  # numbers decide it, and are constants


@operator(*_COEFFICIENTS)
class Window(_OfNumbers):
    """A sum of cosines over `size` elements: Hann's, Hamming's or Blackman's window."""

    attributes = {"output_datatype": FLOAT32.code, "periodic": 1}
    value_inputs = (0,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dtype = self._result(node)
        self._scalar(node, inputs, 0, (INT32, INT64))
        if has_unknown_value(inputs, (0,)):
            return [unknown_shape(dtype, 1)]
        [size] = np.asarray(required(node, inputs, 0).value).reshape(-1)
        return [check_size(node, dtype, (size,))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        size = int(present(inputs, 0).reshape(-1)[0])
        # A symmetric window of one element is 1, the middle.
        around = size if node.attributes["periodic"] else size - 1
        angle = np.arange(size) * (2 * np.pi / around) if around else np.full(size, np.pi)
        found = sum(c * np.cos(n * angle) for n, c in enumerate(_COEFFICIENTS[node.op]))
        return [np.asarray(found).astype(self._result(node).storage)]


@operator()
class MelWeightMatrix(_OfNumbers):
    """Triangular filters [dft_length // 2 + 1, num_mel_bins], evenly apart on the mel scale.

    Inputs: num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz.
    """

    inputs = (5, 5)
    attributes = {"output_datatype": FLOAT32.code}
    value_inputs = (0, 1, 2, 3, 4)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dtype = self._result(node)
        for at in range(5):
            self._scalar(node, inputs, at, (INT32, INT64) if at < 3 else FLOATS)
        if has_unknown_value(inputs, self.value_inputs):
            return [unknown_shape(dtype, 2)]
        values = [np.asarray(required(node, inputs, at).value).reshape(-1)[0] for at in range(5)]
        bins, length, rate, low, high = values
        if bins < 1 or length < 1 or rate < 1 or not 0 <= float(low) <= float(high) <= rate / 2:
            raise ShapeError(
                f"{node.label}: {bins} filters from {low} to {high} Hz of a transform of {length} elements "
                f"at {rate} a second"
            )
        return [check_size(node, dtype, (length // 2 + 1, bins))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        bins, length, rate = (int(present(inputs, at).reshape(-1)[0]) for at in range(3))
        low, high = (2595 * np.log10(1 + float(present(inputs, at).reshape(-1)[0]) / 700) for at in (3, 4))
        # ONNX divides by two more than there are filters, so the last one ends below the upper edge.
        mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
        edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
        left, middle, right = edges[:-2], edges[1:-1], edges[2:]
        place = np.arange(length // 2 + 1)[:, None]
        with np.errstate(all="ignore"):
            rising = np.where(left == middle, place == middle, (place - left) / (middle - left))
            falling = (right - place) / (right - middle)
        found = np.where((place >= left) & (place <= middle), rising, 0)
        found = np.where((place >= middle) & (place < right), falling, found)
        return [found.astype(self._result(node).storage)]
