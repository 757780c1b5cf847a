"""Products of matrices in machine code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.cpu.native import partial_sums, product, vector_product
from vkml.cpu.native.open_packing import open_packing
from vkml.cpu.native.open_product import open_product
from vkml.cpu.native.open_vector_product import open_vector_product
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size, typical
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import Ending, with_rows, without_batch
from vkml.lowering.native_layout import require_floats

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder


def matmul(build: NativeBuilder, a: View, b: View) -> list[View]:
    """[batch, m, k] times [batch, k, n]: packed panels, or in place where rows are few."""
    require_floats(a, b)
    a = build.widened(a)
    batch, m, k = a.shape
    n = b.shape[2]
    if k == 0:
        raise CannotLower("a product over nothing")
    result = build.result()
    ending = build.ending(
        result, lambda view: view.reshape((batch, m, n)), lambda view: n == 1 or view.strides[2] == 1
    )
    if is_open((a.shape, b.shape, a.strides, b.strides, ending.epilogue)):
        made = _open_product(build, a, build.widened(b), ending)
        if made is not None:
            return made
    is_thin = vector_product.fits(
        m=typical(m), k=typical(k), n=typical(n), b_strides=b.strides[1:], is_constant=b.buffer.is_constant
    )
    if is_thin and batch == 1:
        return _vector_product(build, a, build.widened(b), ending)
    shared = batch > 1 and b.strides[0] == 0
    width = product.panel_width(
        build.instructions, columns=typical(n), rows=typical(m), row_bytes=4 * typical(a.strides[1])
    )
    if b.buffer.is_constant and (batch == 1 or shared):
        matrix = replace(b, shape=b.shape[1:], strides=b.strides[1:])
        packed = build.materialised(matrix, f"columns{width}", lambda array: product.pack(array, width))
        stride = 0
    else:
        packed = _packed(build, replace(b, shape=(1, k, n)) if shared else b, width)
        stride = 0 if shared else packed.strides[0]
    launch = build.launch(
        product.product,
        batch=(batch,),
        height=1,
        width=m,
        columns=n,
        inner=k,
        taps=(0,),
        a=(a.strides[0], 0, a.strides[1], a.strides[2]),
        b=(stride,),
        panel=width,
        epilogue=with_rows(ending.epilogue),
        threads=build.threads,
    )
    return build.finish(launch, [a, packed], ending)


def _open_product(build: NativeBuilder, a: View, b: View, ending: Ending) -> list[View] | None:
    """A product of open sizes: of a few rows in place, else by tiles; None where operands are too many."""
    batch, m, k = a.shape
    n = b.shape[2]
    a_steps = (a.strides[0], a.strides[1], a.strides[2])
    thin = open_vector_product(
        build.instructions,
        batch=batch,
        rows=m,
        inner=k,
        columns=n,
        a=a_steps,
        b=(b.strides[0], b.strides[1], b.strides[2]),
        epilogue=ending.epilogue,
    )
    if thin is not None:
        return build.finish(thin, [a, b], ending)
    lanes = lanes_of(build.instructions)
    mark = build.mark()
    if b.buffer.is_constant and (batch == 1 or b.strides[0] == 0):
        panel = product.panel_width(
            build.instructions, columns=n, rows=typical(m), row_bytes=4 * typical(a.strides[1])
        )
        matrix = replace(b, shape=b.shape[1:], strides=b.strides[1:])
        right = build.materialised(matrix, f"columns{panel}", lambda array: product.pack(array, panel))
        b_steps, is_packed = (0, panel * k, panel), True
    elif b.strides[1] == 1 and b.strides[2] != 1:
        panel, is_packed = lanes, True
        panels = -(-n // lanes)
        right = build.scratch(TensorType(dtypes.FLOAT32, (batch, panels, k, lanes)))
        packing = open_packing(
            build.instructions, batch=batch, inner=k, columns=n, strides=(b.strides[0], b.strides[2])
        )
        build.enter(packing, [b], [right])
        b_steps = (panels * k * lanes, k * lanes, lanes)
    else:
        right = b if b.strides[2] == 1 else build.contiguous(b)
        whole = 1 if isinstance(n, Size) else -(-n // lanes)
        panel, is_packed = lanes * min(4 if lanes == 16 else 2, whole), False
        b_steps = (right.strides[0], panel, right.strides[1])
    launch = open_product(
        build.instructions,
        batch=batch,
        rows=m,
        columns=n,
        inner=k,
        a=a_steps,
        b=b_steps,
        panel=panel,
        is_packed=is_packed,
        epilogue=ending.epilogue,
    )
    if launch is None:
        build.rewind(mark)
        return None
    return build.finish(launch, [a, right], ending)


def _packed(build: NativeBuilder, matrices: View, width: int) -> View:
    """[batch, k, columns] rearranged to [batch, panel, k, lane] during the run.

    Lanes beyond the last column keep what was in memory: nothing that is stored depends on them.
    """
    batch, k, n = matrices.shape
    full, rest = divmod(n, width)
    packed = build.scratch(TensorType(dtypes.FLOAT32, (batch, full + (rest > 0), k, width)))
    step_b, step_k, step_n = matrices.strides
    for first, panels, lanes in ((0, full, width), (full, 1, rest)):
        if panels and lanes:
            source = replace(
                matrices,
                shape=(batch, panels, k, lanes),
                strides=(step_b, width * step_n, step_k, step_n),
                offset=matrices.offset + first * width * step_n,
            )
            build.copy(source, packed.slice((0, first, 0, 0), (1, 1, 1, 1), source.shape))
    return packed


def _vector_product(build: NativeBuilder, a: View, b: View, ending: Ending) -> list[View]:
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    a_steps, b_steps = (a.strides[1], a.strides[2]), (b.strides[1], b.strides[2])
    epilogue = without_batch(ending.epilogue)
    pieces = vector_product.pieces_of_inner(
        rows=m, inner=typical(k), columns=typical(n), b=b_steps, threads=build.threads
    )
    if pieces > 1:
        parts = build.scratch(TensorType(dtypes.FLOAT32, (pieces, m, n)))
        first = build.launch(
            vector_product.partial_products, rows=m, inner=k, columns=n, a=a_steps, b=b_steps, pieces=pieces
        )
        build.enter(first, [a, b], [parts])
        second = build.launch(
            partial_sums.sum_of_parts,
            pieces=pieces,
            rows=m,
            columns=n,
            epilogue=epilogue,
            threads=build.threads,
        )
        return build.finish(second, [parts], ending)
    launch = build.launch(
        vector_product.vector_product,
        rows=m,
        inner=k,
        columns=n,
        a=a_steps,
        b=b_steps,
        epilogue=epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [a, b], ending)
