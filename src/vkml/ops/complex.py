"""Complex numbers and their parts: Conj, Real, Imag, Complex, Magnitude, Angle, Sgn, RoundParts.

ONNX has types of complex numbers and hardly any operator for them. These, and the arithmetic of ONNX that
takes complex numbers here, are computed by NumPy on the CPU. Gradients are PyTorch's: that of a real function
of z = x + iy is its derivative by x plus i times that by y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.ir.dtypes import COMPLEXES, FLOAT32, FLOAT64, DType, complex_of, real_of
from vkml.ir.gradients import Emitter, T, conjugate, converted, sum_to
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.broadcasting import broadcast_shapes, require_types
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size


def _number(build: Emitter[T], value: Any, like: T) -> T:
    return build.constant(value, build.type_of(like).dtype)


def _direction(build: Emitter[T], z: T) -> T:
    """z / |z|, and 0 of 0."""
    return build.apply("Sgn", z, domain="vkml")


class _Part(Operator):
    """A function of one complex number."""

    domain = "vkml"
    gives_real = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        dtype = require_types(node, [x], COMPLEXES)
        return [static(real_of(dtype) if self.gives_real else dtype, x.dims)]

    def compute(self, z: Array) -> Any:
        """The results for elements."""
        raise NotImplementedError

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(self.compute(present(inputs, 0)), order="C")]

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        """The cotangent of `z` from that of the result."""
        raise NotDifferentiable(f"{self.name} has no derivative")

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [self.gradient(build, present(inputs, 0), outputs[0], present(cotangents, 0))]


@operator("Conj")
class Conj(_Part):
    """x - iy."""

    gives_real = False

    def compute(self, z: Array) -> Any:
        return np.conj(z)

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        return conjugate(build, cotangent)


@operator("Real")
class Real(_Part):
    """x."""

    def compute(self, z: Array) -> Any:
        return z.real

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        return converted(build, cotangent, build.type_of(z).dtype)


@operator("Imag")
class Imag(_Part):
    """y."""

    def compute(self, z: Array) -> Any:
        return z.imag

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        zero = build.apply("Sub", cotangent, cotangent)
        return build.apply("Complex", zero, cotangent, domain="vkml")


@operator("Magnitude")
class Magnitude(_Part):
    """|z|; its gradient at 0 is 0."""

    def compute(self, z: Array) -> Any:
        return np.abs(z)

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        return build.apply("Mul", converted(build, cotangent, build.type_of(z).dtype), _direction(build, z))


@operator("Angle")
class Angle(_Part):
    """The angle of z to the axis of real numbers, in (-π, π]; its gradient at 0 is 0."""

    def compute(self, z: Array) -> Any:
        return np.angle(z)

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        size = build.apply("Magnitude", z, domain="vkml")
        is_zero = build.apply("Equal", size, _number(build, 0, size))
        size = build.apply("Where", is_zero, _number(build, 1, size), size)
        scale = converted(build, build.apply("Div", cotangent, size), build.type_of(z).dtype)
        turned = build.apply("Mul", _direction(build, z), _number(build, 1j, z))
        return build.apply("Mul", scale, turned)


@operator("Sgn")
class Sgn(_Part):
    """z / |z|, and 0 of 0, where its gradient is 0, too."""

    gives_real = False

    def compute(self, z: Array) -> Any:
        return np.where(z == 0, 0, z / np.abs(z)).astype(z.dtype)

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        # With s = z / |z|: (g - s Re(conj(s) g)) / |z|, what of g lies across z.
        size = build.apply("Magnitude", z, domain="vkml")
        is_zero = build.apply("Equal", size, _number(build, 0, size))
        size = build.apply("Where", is_zero, _number(build, 1, size), size)
        along = build.apply("Real", build.apply("Mul", conjugate(build, result), cotangent), domain="vkml")
        along = build.apply("Mul", result, converted(build, along, build.type_of(z).dtype))
        across = build.apply(
            "Div", build.apply("Sub", cotangent, along), converted(build, size, build.type_of(z).dtype)
        )
        return build.apply("Where", is_zero, _number(build, 0, z), across)


@operator("RoundParts")
class RoundParts(_Part):
    """Both parts rounded to the nearest whole number, the even one of two."""

    gives_real = False

    def compute(self, z: Array) -> Any:
        return np.rint(z)

    def gradient(self, build: Emitter[T], z: T, result: T, cotangent: T) -> T:
        return build.apply("Sub", cotangent, cotangent)


@operator("Complex")
class Complex(Operator):
    """x + iy of two floats of one type."""

    domain = "vkml"
    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, y = required(node, inputs, 0), required(node, inputs, 1)
        dtype: DType = require_types(node, [x, y], (FLOAT32, FLOAT64))
        return [check_size(node, complex_of(dtype), broadcast_shapes(node, x.dims, y.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, y = present(inputs, 0), present(inputs, 1)
        made = np.empty(np.broadcast_shapes(x.shape, y.shape), np.result_type(x.dtype, np.complex64))
        made.real, made.imag = x, y  # not x + 1j * y, which makes NaN of infinity
        return [made]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [
            sum_to(build, build.apply(part, present(cotangents, 0), domain="vkml"), build.type_of(x).dims)
            if x is not None and is_needed
            else None
            for part, x, is_needed in zip(("Real", "Imag"), inputs, needed, strict=True)
        ]
