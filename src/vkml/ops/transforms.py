"""DFT and STFT: discrete Fourier transforms of tensors whose last axis holds real and imaginary parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import FLOATS, INT32, INT64
from vkml.ir.gradients import Emitter, T, converted, padded, reshaped, sliced, transposed, widened
from vkml.ir.graph import Node
from vkml.ir.operator import INT, Array, Operator, operator
from vkml.ir.size import Size
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import (
    has_unknown_value,
    normalise_axis,
    optional,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened as wide_array
from vkml.ops.upgrading import attributes_to_inputs, renew

_LARGEST_FACTOR = 64
"""Transforms of so many elements are one product; longer ones are made of several where they have factors."""
_LARGEST_PRIME = 2048
"""A transform of a prime number of elements is a product with as many rows: 32 MiB of float32 here."""


def _whole_number(node: Node, found: Known, what: str) -> int | None:
    """The one element of an integer input; None where it is not known yet."""
    require_dtype(node, found, (INT32, INT64), what)
    if found.type.elements != 1:
        raise ShapeError(f"{node.label}: {what} must be a scalar, its shape is {list(found.dims)}")
    return None if found.value is None else int(found.value.reshape(-1)[0])


def _check_parts(node: Node, dims: Sequence[int]) -> None:
    if dims[-1] not in (1, 2):
        raise ShapeError(
            f"{node.label}: the last axis holds 1 number (real) or 2 (complex), the shape is {list(dims)}"
        )


def _number(inputs: Sequence[Array | None], index: int) -> int | None:
    found = optional(inputs, index)
    return None if found is None else int(found.reshape(-1)[0])


@operator()
class DFT(Operator):
    """The transform of `dft_length` elements along an axis, cut or followed by zeros to be so many.

    With ``onesided`` the first half alone, ``n // 2 + 1``, of a transform; of an inverse one that half is
    what is given, and n real numbers come of it.
    """

    inputs = (1, 3)
    attributes = {"inverse": 0, "onesided": 0}
    attribute_types = {"axis": INT}
    value_inputs = (1, 2)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 20:
            return node
        stated = renew(node, attributes={"axis": node.attributes.get("axis", 1)})
        return attributes_to_inputs(stated, [("axis", 2, INT64)])

    def _along(self, node: Node, rank: int, stated: int | None) -> int:
        axis = normalise_axis(node, -2 if stated is None else stated, rank)
        if axis == rank - 1:
            raise ShapeError(f"{node.label}: axis {stated} holds the parts of numbers, not the numbers")
        return axis

    def _length(self, node: Node, size: int, stated: int | None) -> int:
        back = node.attributes["inverse"] and node.attributes["onesided"]
        length = stated if stated is not None else 2 * (size - 1) if back else size
        if not isinstance(length, Size) and length < 1:
            raise ShapeError(f"{node.label}: a transform of {length} elements")
        return length

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 2)
        _check_parts(node, x.dims)
        length, axis = (
            None if found is None else _whole_number(node, found, what)
            for found, what in ((optional(inputs, 1), "dft_length"), (optional(inputs, 2), "axis"))
        )
        if has_unknown_value(inputs, self.value_inputs):
            return [unknown_shape(x.dtype, x.rank)]
        at = self._along(node, x.rank, axis)
        count, is_real = self._length(node, x.dims[at], length), False
        if node.attributes["onesided"]:
            is_real = bool(node.attributes["inverse"])
            count = count if is_real else count // 2 + 1
        dims = [*x.dims[:-1], 1 if is_real else 2]
        dims[at] = count
        return [check_size(node, x.dtype, dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        axis = self._along(node, x.ndim, _number(inputs, 2))
        length = self._length(node, x.shape[axis], _number(inputs, 1))
        wide = wide_array(x)
        values = _complex(wide[..., 0], wide[..., 1]) if x.shape[-1] == 2 else wide[..., 0]
        if node.attributes["inverse"] and node.attributes["onesided"]:
            return [np.fft.irfft(values, length, axis)[..., None].astype(x.dtype)]
        found = np.asarray((np.fft.ifft if node.attributes["inverse"] else np.fft.fft)(values, length, axis))
        if node.attributes["onesided"]:
            found = found.take(range(length // 2 + 1), axis)
        return [np.stack([found.real, found.imag], -1).astype(x.dtype)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        length, axis = (
            None if found is None else int(np.asarray(build.elements_of(found)).reshape(-1)[0])
            for found in (optional(inputs, 1), optional(inputs, 2))
        )
        at = self._along(node, type_.rank, axis)
        count = self._length(node, type_.dims[at], length)
        if isinstance(count, Size) or _greatest_prime(count) > _LARGEST_PRIME:
            return None
        inverse, onesided = bool(node.attributes["inverse"]), bool(node.attributes["onesided"])
        order = [a for a in range(type_.rank - 1) if a != at]
        rows = transposed(build, widened(build, x), [type_.rank - 1, *order, at])
        read = count // 2 + 1 if inverse and onesided else count
        rows = _fitted(build, rows, read)
        parts = [_part(build, rows, p) for p in range(type_.dims[-1])]
        if inverse and onesided:
            parts = _mirrored(build, parts, count)
        made = _transformed(build, parts, count, -1 if inverse else 1)
        if inverse:
            made = [build.apply("Div", p, build.constant(count, build.type_of(p).dtype)) for p in made]
        if onesided and not inverse:
            made = [sliced(build, p, len(order), 0, count // 2 + 1) for p in made]
        if onesided and inverse:
            made = made[:1]
        rank = type_.rank
        lines = [reshaped(build, p, (*build.type_of(p).dims, 1)) for p in made]
        joined = build.apply("Concat", *lines, axis=rank - 1) if len(lines) > 1 else lines[0]
        back = [*order, at, rank - 1]
        joined = transposed(build, joined, [back.index(a) for a in range(rank)])
        return [converted(build, joined, type_.dtype)]


def _complex(real: Array, imaginary: Array) -> Array:
    """Numbers of two parts; their type has the parts' precision, in which NumPy transforms them."""
    found = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    found.real, found.imag = real, imaginary
    return found


def _fitted(build: Emitter[T], x: T, count: int) -> T:
    """`x` cut, or followed by zeros, to have so many elements along the last axis."""
    dims = build.type_of(x).dims
    ends = [0] * len(dims)
    ends[-1] = count - dims[-1]
    return (
        sliced(build, x, len(dims) - 1, 0, count)
        if count < dims[-1]
        else padded(build, x, [0] * len(dims), ends)
    )


def _part(build: Emitter[T], x: T, part: int) -> T:
    """The real or the imaginary part, of [parts, ...]."""
    return reshaped(build, sliced(build, x, 0, part, part + 1), build.type_of(x).dims[1:])


def _mirrored(build: Emitter[T], parts: Sequence[T], count: int) -> list[T]:
    """A whole transform from its first half: the others are conjugates of these, in reverse order."""
    last = build.type_of(parts[0]).rank - 1
    places = np.arange(count)
    read = np.where(places <= count // 2, places, count - places)
    made = [build.apply("Gather", part, build.constant(read, INT64), axis=last) for part in parts]
    if len(made) > 1:
        # The imaginary part of the first, and of the middle one, is none of a real sequence's.
        signs = np.where(places <= count // 2, 1.0, -1.0) * (2 * places % count != 0)
        made[1] = build.apply("Mul", made[1], build.constant(signs, build.type_of(made[1]).dtype))
    return made


def _transformed(build: Emitter[T], parts: Sequence[T], count: int, sign: int) -> list[T]:
    """Real and imaginary parts of the transform along the last axis, which has `count` elements.

    One of ``a · b`` elements is ``b`` of ``a``, turned, and ``a`` of ``b`` (J. Cooley and J. Tukey, 1965).

    Args:
        build: applies operators.
        parts: the real part, and the imaginary one where there is one.
        count: of elements.
        sign: 1 forward, -1 for the sum of an inverse transform.
    """
    factor = _factor(count)
    if factor == count:
        return _product(build, parts, count, sign)
    rest = count // factor
    dims = build.type_of(parts[0]).dims
    outer, rank = dims[:-1], len(dims)
    # Element rest · i + j: the first transform runs over i.
    columns = [
        transposed(build, reshaped(build, p, (*outer, factor, rest)), [*range(rank - 1), rank, rank - 1])
        for p in parts
    ]
    turned = _product(build, columns, factor, sign)
    angles = -2j * np.pi * sign / count * np.outer(np.arange(rest), np.arange(factor))
    dtype = build.type_of(turned[0]).dtype
    cosine, sine = (build.constant(p, dtype) for p in (np.exp(angles).real, np.exp(angles).imag))
    real = build.apply("Sub", build.apply("Mul", turned[0], cosine), build.apply("Mul", turned[1], sine))
    imaginary = build.apply("Add", build.apply("Mul", turned[0], sine), build.apply("Mul", turned[1], cosine))
    lines = [transposed(build, p, [*range(rank - 1), rank, rank - 1]) for p in (real, imaginary)]
    made = _transformed(build, lines, rest, sign)
    # [factor, rest] holds element k + factor · l of the result at (k, l).
    return [
        reshaped(build, transposed(build, p, [*range(rank - 1), rank, rank - 1]), (*outer, count))
        for p in made
    ]


def _product(build: Emitter[T], parts: Sequence[T], count: int, sign: int) -> list[T]:
    """A transform as a product with its matrix, of real and imaginary parts beside each other."""
    places = np.arange(count)
    matrix = np.exp(-2j * np.pi * sign / count * (np.outer(places, places) % count))
    rows = [np.concatenate([matrix.real, matrix.imag], 1), np.concatenate([-matrix.imag, matrix.real], 1)]
    last = build.type_of(parts[0]).rank - 1
    joined = build.apply("Concat", *parts, axis=last) if len(parts) > 1 else parts[0]
    dtype = build.type_of(joined).dtype
    made = build.apply("MatMul", joined, build.constant(np.concatenate(rows[: len(parts)]), dtype))
    return [sliced(build, made, last, at * count, (at + 1) * count) for at in range(2)]


def _factor(count: int) -> int:
    """The greatest factor up to `_LARGEST_FACTOR`; the smallest one where all are larger."""
    if count <= _LARGEST_FACTOR:
        return count
    found = max(f for f in range(1, _LARGEST_FACTOR + 1) if count % f == 0)
    return (
        found
        if found > 1
        else min((f for f in range(2, int(count**0.5) + 1) if count % f == 0), default=count)
    )


def _greatest_prime(count: int) -> int:
    greatest, factor = 1, 2
    while factor * factor <= count:
        while count % factor == 0:
            greatest, count = factor, count // factor
        factor += 1
    return max(greatest, count)


@operator()
class STFT(Operator):
    """Transforms of frames of a signal [batch, length, 1 or 2], times a window: [batch, frames, bins, 2]."""

    inputs = (2, 4)
    attributes = {"onesided": 1}
    value_inputs = (1, 3)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        signal, step = required(node, inputs, 0), required(node, inputs, 1)
        window, length = optional(inputs, 2), optional(inputs, 3)
        require_dtype(node, signal, FLOATS, "the signal")
        require_rank(node, signal, 2, 3, "the signal")
        if signal.rank == 3:
            _check_parts(node, signal.dims)
        if window is not None:
            require_same_dtype(node, signal, window, "the window")
            require_rank(node, window, 1, 1, "the window")
        hop = _whole_number(node, step, "frame_step")
        stated = None if length is None else _whole_number(node, length, "frame_length")
        if has_unknown_value(inputs, self.value_inputs):
            return [unknown_shape(signal.dtype, 4)]
        assert hop is not None
        frames, bins = self._counts(
            node, signal.dims[1], hop, None if window is None else window.dims[0], stated
        )
        return [check_size(node, signal.dtype, (signal.dims[0], frames, bins, 2))]

    def _counts(
        self, node: Node, size: int, hop: int, window: int | None, stated: int | None
    ) -> tuple[int, int]:
        """Frames and bins."""
        length = stated if stated is not None else size if window is None else window
        if hop < 1 or length < 1 or length > size:
            raise ShapeError(f"{node.label}: frames of {length}, each {hop} later, of a signal of {size}")
        if window is not None and window != length:
            raise ShapeError(f"{node.label}: a window of {window} for frames of {length}")
        return 1 + (size - length) // hop, length // 2 + 1 if node.attributes["onesided"] else length

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        signal, window, hop = present(inputs, 0), optional(inputs, 2), _number(inputs, 1)
        assert hop is not None
        wide = wide_array(signal)
        is_complex = signal.ndim == 3 and signal.shape[2] == 2
        values = _complex(wide[..., 0], wide[..., 1]) if is_complex else wide.reshape(signal.shape[:2])
        frames, bins = self._counts(
            node, signal.shape[1], hop, None if window is None else len(window), _number(inputs, 3)
        )
        length = _number(inputs, 3) or (signal.shape[1] if window is None else len(window))
        places = np.arange(frames)[:, None] * hop + np.arange(length)
        shares = wide.dtype.type(1) if window is None else wide_array(window)
        found = np.fft.fft(values[:, places] * shares)[..., :bins]
        return [np.stack([found.real, found.imag], -1).astype(signal.dtype)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        signal, window = present(inputs, 0), optional(inputs, 2)
        type_ = build.type_of(signal)
        batch, size = type_.dims[:2]
        if isinstance(size, Size):
            return None
        hop, stated = (
            None if found is None else int(np.asarray(build.elements_of(found)).reshape(-1)[0])
            for found in (inputs[1], optional(inputs, 3))
        )
        assert hop is not None
        of_window = None if window is None else build.type_of(window).dims[0]
        frames, _ = self._counts(node, size, hop, of_window, stated)
        length = stated or of_window or size
        places = np.arange(frames)[:, None] * hop + np.arange(length)
        lines = reshaped(
            build, widened(build, signal), (batch, size, type_.dims[2] if type_.rank == 3 else 1)
        )
        found = build.apply("Gather", lines, build.constant(places, INT64), axis=1)
        if window is not None:
            found = build.apply("Mul", found, reshaped(build, widened(build, window), (length, 1)))
        axis = build.constant(2, INT64)
        made = build.apply("DFT", found, None, axis, onesided=node.attributes["onesided"])
        return [converted(build, made, type_.dtype)]
