"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.tensors.operands import wrap
from vkml.tracing import apply

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices, batches of them, or vectors."""
    if not x.ndim or not y.ndim:
        raise RuntimeError("both factors of a matrix product need at least one axis")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise RuntimeError(f"the shapes {list(x.shape)} and {list(y.shape)} cannot be multiplied")
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"factors of a matrix product have one type, not {x.dtype.numpy_name} and {y.dtype.numpy_name}"
        )
    return wrap(apply("MatMul", x.value, y.value))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
    """
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"linear: the input has {x.shape[-1]} features, the weight {list(weight.shape)} takes "
            f"{weight.shape[-1]}"
        )
    if x.ndim == 2:
        given = [x.value, weight.value] + ([] if bias is None else [bias.value])
        return wrap(apply("Gemm", *given, transB=1))
    found = apply("MatMul", x.value, apply("Transpose", weight.value, perm=(1, 0)))
    return wrap(found if bias is None else apply("Add", found, bias.value))
