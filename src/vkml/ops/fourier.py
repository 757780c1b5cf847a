"""Discrete Fourier transforms along an axis, by NumPy on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import COMPLEXES, FLOAT32, FLOAT64, complex_of, real_of
from vkml.ir.gradients import Emitter, T, padded
from vkml.ir.graph import Node
from vkml.ir.operator import INT, REQUIRED, STRING, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import normalise_axis, present, required
from vkml.ops.limits import check_size

_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_Norm = Literal["backward", "ortho", "forward"]


class _Transform(Operator):
    """A transform along ``axis``, divided as ``norm`` says: by n going backward or forward, or by √n."""

    domain = "vkml"
    attributes = {"axis": REQUIRED, "inverse": 0, "norm": "backward"}
    attribute_types = {"axis": INT, "inverse": INT, "norm": STRING}

    def _along(self, node: Node, x: Known) -> int:
        if node.attributes["norm"] not in _SWAPPED:
            raise InvalidGraph(f"{node.label}: norm must be one of {', '.join(_SWAPPED)}")
        axis = normalise_axis(node, int(node.attributes["axis"]), x.rank)
        if not x.dims[axis]:
            raise ShapeError(f"{node.label}: a transform of no elements, the shape is {list(x.dims)}")
        return axis

    def _norm(self, node: Node) -> _Norm:
        found: _Norm = node.attributes["norm"]
        return found


@operator("Fourier")
class Fourier(_Transform):
    """That of complex numbers."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_types(node, [x], COMPLEXES)
        self._along(node, x)
        return [x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        act = np.fft.ifft if node.attributes["inverse"] else np.fft.fft
        return [np.asarray(act(x, axis=node.attributes["axis"], norm=self._norm(node)), x.dtype, order="C")]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """Of a linear map the adjoint one, which goes the other way and divides as this one."""
        stated = node.attributes
        norm = _SWAPPED[stated["norm"]]
        inverse = 1 - stated["inverse"]
        cotangent = present(cotangents, 0)
        return [
            build.apply("Fourier", cotangent, domain="vkml", axis=stated["axis"], inverse=inverse, norm=norm)
        ]


@operator("RealFourier")
class RealFourier(_Transform):
    """The first half of that of n real numbers, n // 2 + 1: the others are conjugates of these."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        dtype = require_types(node, [x], (FLOAT32, FLOAT64))
        axis = self._along(node, x)
        return [static(complex_of(dtype), (*x.dims[:axis], x.dims[axis] // 2 + 1, *x.dims[axis + 1 :]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        found = np.fft.rfft(x, axis=node.attributes["axis"], norm=self._norm(node))
        return [np.asarray(found, np.result_type(x.dtype, np.complex64), order="C")]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        dims = build.type_of(present(inputs, 0)).dims
        axis = normalise_axis(node, int(node.attributes["axis"]), len(dims))
        ends = [0] * len(dims)
        ends[axis] = dims[axis] - (dims[axis] // 2 + 1)
        whole = padded(build, present(cotangents, 0), [0] * len(dims), ends)
        norm = _SWAPPED[node.attributes["norm"]]
        back = build.apply("Fourier", whole, domain="vkml", axis=axis, inverse=1, norm=norm)
        return [build.apply("Real", back, domain="vkml")]


@operator("FourierReal")
class FourierReal(_Transform):
    """The n real numbers whose transform begins with n // 2 + 1 complex ones: `RealFourier`, back."""

    attributes = {**_Transform.attributes, "inverse": 1, "n": REQUIRED}
    attribute_types = {**_Transform.attribute_types, "n": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        dtype = require_types(node, [x], COMPLEXES)
        axis, n = self._along(node, x), node.attributes["n"]
        if n < 1 or x.dims[axis] != n // 2 + 1:
            raise ShapeError(f"{node.label}: {n} numbers are not made of {x.dims[axis]} of a transform")
        return [check_size(node, real_of(dtype), (*x.dims[:axis], n, *x.dims[axis + 1 :]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, n = present(inputs, 0), node.attributes["n"]
        found = np.fft.irfft(x, n, axis=node.attributes["axis"], norm=self._norm(node))
        return [np.asarray(found, x.real.dtype, order="C")]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, n = present(inputs, 0), node.attributes["n"]
        type_ = build.type_of(x)
        axis = normalise_axis(node, int(node.attributes["axis"]), type_.rank)
        norm = _SWAPPED[node.attributes["norm"]]
        made = build.apply("RealFourier", present(cotangents, 0), domain="vkml", axis=axis, norm=norm)
        # All but the first, and the middle one of an even count, stand for their conjugates, too.
        weights = np.full(n // 2 + 1, 2.0)
        weights[0] = 1
        if n % 2 == 0:
            weights[-1] = 1
        shape = [1] * type_.rank
        shape[axis] = -1
        return [build.apply("Mul", made, build.constant(weights.reshape(shape), type_.dtype))]
