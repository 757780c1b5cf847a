"""Products of matrices in machine code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.cpu.native import partial_sums, product, vector_product
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.kernels.views import View
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
    if (
        vector_product.fits(m=m, k=k, n=n, b_strides=b.strides[1:], is_constant=b.buffer.constant is not None)
        and batch == 1
    ):
        return _vector_product(build, a, build.widened(b), ending)
    shared = batch > 1 and b.strides[0] == 0
    width = product.panel_width(build.instructions, columns=n, rows=m, row_bytes=4 * a.strides[1])
    if b.buffer.constant is not None and (batch == 1 or shared):
        matrix = replace(b, shape=b.shape[1:], strides=b.strides[1:])
        packed = build.materialised(matrix, f"columns{width}", lambda array: product.pack(array, width))
        stride = 0
    else:
        packed = _packed(build, replace(b, shape=(1, k, n)) if shared else b, width)
        stride = 0 if shared else packed.strides[0]
    launch = product.product(
        build.instructions,
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
    pieces = vector_product.pieces_of_inner(rows=m, inner=k, columns=n, b=b_steps, threads=build.threads)
    if pieces > 1:
        parts = build.scratch(TensorType(dtypes.FLOAT32, (pieces, m, n)))
        first = vector_product.partial_products(
            build.instructions, rows=m, inner=k, columns=n, a=a_steps, b=b_steps, pieces=pieces
        )
        build.enter(first, [a, b], [parts])
        second = partial_sums.sum_of_parts(
            build.instructions, pieces=pieces, rows=m, columns=n, epilogue=epilogue, threads=build.threads
        )
        return build.finish(second, [parts], ending)
    launch = vector_product.vector_product(
        build.instructions,
        rows=m,
        inner=k,
        columns=n,
        a=a_steps,
        b=b_steps,
        epilogue=epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [a, b], ending)
