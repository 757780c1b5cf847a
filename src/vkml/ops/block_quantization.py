"""Weights of few bits with a scale for each block: MatMulNBits and GatherBlockQuantized of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, NotImplemented, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT32, INT64, UINT4, UINT8, UINT32, DType
from vkml.ir.gradients import Emitter, T, expression, reshaped, sliced, transposed
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, given
from vkml.ir.operator import INT, REQUIRED, Array, Operator, operator
from vkml.ir.packing import unpacked
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import normalise_axis, optional, present, require_dtype, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened

_REAL = (FLOAT32, FLOAT16, BFLOAT16)


@operator()
class MatMulNBits(Operator):
    """Product with a matrix of N columns of K numbers, in blocks of `bits` bits with a scale each.

    B is [N, blocks, block_size * bits / 8]; scales are [N, blocks] or flat, zero points flat: packed like B's
    numbers, each column's in bytes of its own, or floats. Without, they are half of what the bits count to.
    With an `accuracy_level` of 4 kernels may round A to 8 bits, each block of a row with a scale of its own.
    """

    domain = "com.microsoft"
    inputs = (3, 6)
    attributes = {
        "K": REQUIRED,
        "N": REQUIRED,
        "accuracy_level": 0,
        "bits": 4,
        "block_size": REQUIRED,
        "weight_prepacked": 0,
    }
    attribute_types = {"K": INT, "N": INT, "block_size": INT}
    is_stepwise = True
    is_anchor = True

    def check(self, node: Node) -> None:
        if node.attributes["weight_prepacked"]:
            raise NotImplemented(
                f"{node.label}: weights in an order of a device's (weight_prepacked) are unknown"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b, scales = (required(node, inputs, at) for at in range(3))
        require_dtype(node, a, _REAL, "A")
        require_dtype(node, b, (UINT8,), "B")
        require_same_dtype(node, a, scales, "the scales")
        inner, columns, bits, block = (node.attributes[key] for key in ("K", "N", "bits", "block_size"))
        if bits not in (2, 4, 8) or inner < 1 or columns < 1 or block < 1 or block * bits % 8:
            raise InvalidGraph(
                f"{node.label}: bits={bits}, block_size={block}, K={inner}, N={columns}; bits are 2, 4 or 8, "
                "blocks whole bytes"
            )
        if not a.rank or a.dims[-1] != inner:
            raise ShapeError(f"{node.label}: A has the shape {list(a.dims)}, its last axis must be K={inner}")
        blocks = -(-inner // block)
        counts = {1: columns * blocks * block * bits // 8, 2: columns * blocks}
        zeros: Known | None = optional(inputs, 3)
        if zeros is not None:
            require_dtype(node, zeros, (UINT8, a.dtype), "the zero points")
            is_packed = zeros.dtype == UINT8
            counts[3] = columns * (-(-blocks * bits // 8) if is_packed else blocks)
        groups: Known | None = optional(inputs, 4)
        if groups is not None:
            require_dtype(node, groups, (INT32,), "g_idx")
            counts[4] = groups.dims[0] if groups.dims in ((inner,), (blocks * block,)) else inner
        bias: Known | None = optional(inputs, 5)
        if bias is not None:
            require_same_dtype(node, a, bias, "the bias")
            counts[5] = columns
        for at, count in counts.items():
            found = required(node, inputs, at)
            if found.type.elements != count:
                raise ShapeError(
                    f"{node.label}: input {at} has {found.type.elements} elements; {count} are needed for "
                    f"K={inner}, N={columns}, bits={bits}, block_size={block}"
                )
        return [check_size(node, a.dtype, (*a.dims[:-1], columns))]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * int(node.attributes["K"])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, bias = present(inputs, 0), optional(inputs, 5)
        product = np.asarray(np.matmul(widened(a), _matrix(node, inputs).T))
        if bias is not None:
            product = product + widened(bias).reshape(-1)
        return [product.astype(a.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        a, data, scales = (given(inputs, at) for at in range(3))
        zeros, groups, bias = (optional(inputs, at) for at in (3, 4, 5))
        if groups is not None:
            raise CannotLower("weights whose rows are put in groups have no kernel")
        inner, columns, bits, block = (node.attributes[key] for key in ("K", "N", "bits", "block_size"))
        blocks = -(-inner // block)
        if zeros is not None:
            zeros = build.reshape(zeros, (columns, zeros.type.elements // columns))
        if bias is not None:
            addend = build.reshape(bias, (columns,)).expand(build.result().dims)
            build.before_epilogue(build.result(), addend=addend)
        return build.block_matmul(
            build.reshape(a, (a.type.elements // inner, inner)),
            build.reshape(data, (columns, blocks * block * bits // 8)),
            build.reshape(scales, (columns, blocks)),
            zeros,
            bits,
            block,
            rounds=node.attributes["accuracy_level"] == 4,
        )

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        a, bias = present(inputs, 0), optional(inputs, 5)
        inner, columns, bits, block = (node.attributes[key] for key in ("K", "N", "bits", "block_size"))
        dtype, blocks = build.type_of(a).dtype, -(-inner // block)
        data = reshaped(build, present(inputs, 1), (columns, blocks, block * bits // 8))
        codes, scales = _codes(build, data, bits), reshaped(build, present(inputs, 2), (columns, blocks))
        zeros: T | None = optional(inputs, 3)
        if zeros is not None and build.type_of(zeros).dtype == UINT8:
            zeros = _codes(build, reshaped(build, zeros, (columns, -1)), bits)
            zeros = sliced(build, zeros, 1, 0, blocks)
        elif zeros is not None:
            zeros = reshaped(build, zeros, (columns, blocks))
        groups = optional(inputs, 4)
        if groups is None:
            # Each block beside its scale.
            factors = [
                None if x is None else reshaped(build, x, (columns, blocks, 1)) for x in (scales, zeros)
            ]
        else:
            codes = sliced(build, reshaped(build, codes, (columns, blocks * block)), 1, 0, inner)
            rows = sliced(build, groups, 0, 0, inner)
            factors = [None if x is None else build.apply("Gather", x, rows, axis=1) for x in (scales, zeros)]
        matrix = _numbers(build, codes, present(factors, 0), factors[1], bits, dtype)
        if groups is None:
            matrix = sliced(build, reshaped(build, matrix, (columns, blocks * block)), 1, 0, inner)
        product = build.apply("MatMul", a, transposed(build, matrix, (1, 0)))
        return [product if bias is None else build.apply("Add", product, bias)]


def _codes(build: Emitter[T], packed: T, bits: int) -> T:
    """Numbers of `bits` bits, lowest first, along the last axis of bytes: a byte each."""
    if bits == 8:
        return packed
    dims = build.type_of(packed).dims
    byte = scalar.argument(0, UINT8)
    wide = scalar.convert(byte, UINT32)
    parts = []
    for place in range(0, 8, bits):
        part = scalar.binary("right_shift", wide, place) & scalar.constant((1 << bits) - 1, UINT32)
        found = expression(build, scalar.convert(part, UINT8), [packed], UINT8)
        parts.append(reshaped(build, found, (*dims, 1)))
    return reshaped(build, build.apply("Concat", *parts, axis=len(dims)), (*dims[:-1], dims[-1] * 8 // bits))


def _numbers(
    build: Emitter[T], codes: T, scales: T, zeros: T | None, bits: int, dtype: DType, middle: bool = True
) -> T:
    """(code - zero point) * scale, of operands that broadcast.

    Args:
        build: the emitter.
        codes: integers.
        scales: floats.
        zeros: integers or floats; None for what the bits count to, halved, or for 0.
        bits: of a code.
        dtype: of the result.
        middle: whether it is the former.
    """
    values = [codes, scales, *([] if zeros is None else [zeros])]
    code, scale, *zero = (
        scalar.convert(scalar.argument(at, build.type_of(value).dtype), FLOAT32)
        for at, value in enumerate(values)
    )
    centre: scalar.Scalar | float = zero[0] if zero else float(1 << (bits - 1)) if middle else 0.0
    return expression(build, (code - centre) * scale, values, dtype)


def _matrix(node: Node, inputs: Sequence[Array | None]) -> Array:
    """The weights [N, K] as float32."""
    inner, columns, bits, block = (node.attributes[key] for key in ("K", "N", "bits", "block_size"))
    blocks = -(-inner // block)
    codes = unpacked(present(inputs, 1).reshape(columns, -1), bits, inner).astype(np.float32)
    scales = present(inputs, 2).reshape(columns, blocks).astype(np.float32)
    given, groups = optional(inputs, 3), optional(inputs, 4)
    if given is None:
        zeros = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    elif given.dtype == np.uint8:
        zeros = unpacked(given.reshape(columns, -1), bits, blocks).astype(np.float32)
    else:
        zeros = given.reshape(columns, blocks).astype(np.float32)
    of_block = np.arange(inner) // block if groups is None else groups[:inner]
    if of_block.min() < 0 or of_block.max() >= blocks:
        raise IndexOutOfRange(f"{node.label}: g_idx names a group outside of 0 … {blocks - 1}")
    return (codes - zeros[:, of_block]) * scales[:, of_block]


@operator()
class GatherBlockQuantized(Operator):
    """Gathers from quantised data, and dequantises what was gathered.

    Bytes hold 8 / `bits` numbers of the last axis; scales and zero points have data's shape, but for one
    number a block along `quantize_axis`.
    """

    domain = "com.microsoft"
    inputs = (3, 4)
    attributes = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
    is_stepwise = True

    def _dims(self, node: Node, data: Sequence[int], is_packed: bool) -> tuple[int, ...]:
        """The shape of data in numbers."""
        return (*data[:-1], data[-1] * (8 // node.attributes["bits"])) if is_packed else tuple(data)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data, indices, scales = (required(node, inputs, at) for at in range(3))
        require_dtype(node, data, (INT4, UINT4, UINT8), "the data")
        require_dtype(node, indices, (INT32, INT64), "the indices")
        require_dtype(node, scales, _REAL, "the scales")
        bits, block = node.attributes["bits"], node.attributes["block_size"]
        is_packed = data.dtype == UINT8
        if bits not in ((2, 4, 8) if is_packed else (4,)) or block < 1 or not data.rank:
            raise InvalidGraph(f"{node.label}: {data.dtype.name} in blocks of {block} with bits={bits}")
        dims = self._dims(node, data.dims, is_packed)
        gathered = normalise_axis(node, node.attributes["gather_axis"], data.rank)
        axis = normalise_axis(node, node.attributes["quantize_axis"], data.rank)
        if gathered == axis or (is_packed and axis != data.rank - 1):
            raise InvalidGraph(
                f"{node.label}: quantize_axis is {axis}, gather_axis {gathered}: they must differ, and the "
                "first be the last axis of packed data"
            )
        wanted = tuple(-(-size // block) if at == axis else size for at, size in enumerate(dims))
        zeros: Known | None = optional(inputs, 3)
        if scales.dims != wanted:
            raise ShapeError(f"{node.label}: the scales are {list(scales.dims)}; {list(wanted)} is needed")
        if zeros is not None:
            require_same_dtype(node, data, zeros, "the zero points")
            lanes = 8 // bits if is_packed else 1
            packed = tuple(-(-size // lanes) if at == axis else size for at, size in enumerate(wanted))
            if zeros.dims != packed:
                raise ShapeError(
                    f"{node.label}: the zero points are {list(zeros.dims)}; {list(packed)} is needed"
                )
        return [check_size(node, scales.dtype, (*dims[:gathered], *indices.dims, *dims[gathered + 1 :]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data, indices, scales = (present(inputs, at) for at in range(3))
        zeros, bits, block = optional(inputs, 3), node.attributes["bits"], node.attributes["block_size"]
        gathered = normalise_axis(node, node.attributes["gather_axis"], data.ndim)
        axis = normalise_axis(node, node.attributes["quantize_axis"], data.ndim)
        count = data.shape[gathered]
        if indices.size and (indices.min() < -count or indices.max() >= count):
            raise IndexOutOfRange(f"{node.label}: an index is outside of {-count} … {count - 1}")
        is_packed = data.dtype == np.uint8
        size = self._dims(node, data.shape, is_packed)[axis]

        def taken(array: Array, numbers: int) -> Array:
            """What is gathered of an array, as float32, repeated to `numbers` along the quantised axis."""
            part = np.take(np.moveaxis(array, axis, -1), indices, gathered - (gathered > axis))
            if is_packed and array.dtype == np.uint8:
                part = unpacked(part, bits, numbers)
            return (
                part.astype(np.int8).astype(np.float32) if array.dtype in _SMALL else part.astype(np.float32)
            )

        blocks = scales.shape[axis]
        of_block = np.arange(size) // block
        steps = taken(data, size)
        if zeros is not None:
            steps = steps - taken(zeros, blocks)[..., of_block]
        elif is_packed:
            steps = steps - np.float32(1 << (bits - 1))
        result = steps * taken(scales, blocks)[..., of_block]
        behind = axis + (indices.ndim - 1 if axis > gathered else 0)
        return [np.moveaxis(result, -1, behind).astype(scales.dtype)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        data, indices, scales = (present(inputs, at) for at in range(3))
        zeros, bits, block = optional(inputs, 3), node.attributes["bits"], node.attributes["block_size"]
        type_, ranks = build.type_of(data), build.type_of(indices).rank
        gathered = normalise_axis(node, node.attributes["gather_axis"], type_.rank)
        axis = normalise_axis(node, node.attributes["quantize_axis"], type_.rank)
        is_packed = type_.dtype == UINT8
        size, blocks = self._dims(node, type_.dims, is_packed)[axis], build.type_of(scales).dims[axis]
        behind = axis + (ranks - 1 if axis > gathered else 0)

        def taken(x: T) -> T:
            part = build.apply("Gather", x, indices, axis=gathered)
            return _codes(build, part, bits) if is_packed and build.type_of(x).dtype == UINT8 else part

        of_block = build.constant(np.arange(size) // block, INT64)
        factors: list[T | None] = [build.apply("Gather", taken(scales), of_block, axis=behind), None]
        if zeros is not None:
            found = sliced(build, taken(zeros), behind, 0, blocks)
            factors[1] = build.apply("Gather", found, of_block, axis=behind)
        dtype = build.type_of(scales).dtype
        return [_numbers(build, taken(data), present(factors, 0), factors[1], bits, dtype, is_packed)]


_SMALL = (INT4.storage, UINT4.storage)
