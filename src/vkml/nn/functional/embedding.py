"""Tables: rows by number, sums of rows, products of two inputs."""

from __future__ import annotations

from vkml.ir.dtypes import INT64
from vkml.ir.gradients import expanded
from vkml.nn.functional.arguments import throughout
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import arange
from vkml.tensors.index_checks import require_from_front
from vkml.tracing import EMITTER, apply, number

linear, one_hot = op.linear, op.one_hot


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Rows of a table.

    Args:
        input: numbers of rows, of any shape.
        weight: [rows, features].
        padding_idx: a row that gets no gradient.
        max_norm: rows that are read, and whose norm is greater, are scaled to it in place.
        norm_type: which norm that is.
        scale_grad_by_freq: whether gradients are divided by how often their row is read.
        sparse: has to be False: gradients have all rows.

    Raises:
        RuntimeError: the input is not of integers.
        IndexError: a row does not exist (when it is computed), or its number is negative (where the host has
            it).
    """
    if sparse:
        raise NotImplementedError("embedding: gradients are dense, sparse=True is not supported")
    _check_rows(input, weight, "embedding")
    require_from_front(input, "embedding")
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise AssertionError(
                f"padding_idx must be within num_embeddings, {padding_idx} is not within {rows}"
            )
        padding_idx %= rows
    if max_norm is not None:
        _limit_norms(input, weight, max_norm, norm_type)
    found = Tensor(apply("Gather", weight.value, input.value, axis=0))
    if padding_idx is not None:
        is_padding = op.unsqueeze(op.eq(input, padding_idx), -1)
        found = op.where(is_padding, found.detach(), found)
    if scale_grad_by_freq:
        counts = op.index_select(_counted(input, rows), 0, op.reshape(input, -1))
        share = op.reshape(op.div(1.0, counts.to(weight.dtype)), *input.shape, 1)
        # What it is, and a gradient times the share.
        found = op.add(found.detach(), op.mul(op.sub(found, found.detach()), share))
    return found


def _check_rows(input: Tensor, weight: Tensor, name: str) -> None:
    if input.dtype.name not in ("int32", "int64"):
        raise RuntimeError(f"{name}: indices are of int64 or int32, not of {input.dtype.numpy_name}")
    if weight.ndim != 2:
        raise RuntimeError(f"{name}: 'weight' must be 2-D, not of the shape {list(weight.shape)}")


def _counted(input: Tensor, rows: int) -> Tensor:
    """How often each row is read."""
    flat = op.reshape(input, -1)
    ones = throughout(1, INT64, flat.shape)
    none = throughout(0, INT64, [rows])
    return Tensor(apply("ScatterElements", none, flat.value, ones, axis=0, reduction="add"))


@no_grad()
def _limit_norms(input: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    norms = op.norm(weight, norm_type, 1, True)
    is_long = op.logical_and(
        op.gt(op.unsqueeze(_counted(input, weight.shape[0]), 1), 0), op.gt(norms, max_norm)
    )
    weight.copy_(op.where(is_long, op.mul(weight, op.div(max_norm, op.add(norms, 1e-7))), weight))


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Sums, means or maxima of bags of rows of a table.

    Args:
        input: numbers of rows, [bags, rows of each], or [rows] with `offsets`.
        weight: [rows, features].
        offsets: [bags], where bags begin; they end where the next one does.
        max_norm: as for `embedding`.
        norm_type: as for `embedding`.
        scale_grad_by_freq: as for `embedding`; not of maxima.
        mode: "sum", "mean" or "max".
        sparse: has to be False.
        per_sample_weights: of the input's shape, factors of the rows of a sum.
        include_last_offset: whether the last offset is the end of the last bag.
        padding_idx: a row that counts in no bag.

    Returns:
        [bags, features]; zeros for empty bags.

    Raises:
        ValueError: shapes or arguments do not go together.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError("embedding_bag: per_sample_weights is supported for mode='sum' only")
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({list(per_sample_weights.shape)}) is not None, it "
            "must have the "
            f"same shape as the input ({list(input.shape)})"
        )
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if input.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if (offsets is None) != (input.ndim == 2):
        raise ValueError("embedding_bag: offsets are given for an input of one axis, and for no other")
    if offsets is not None and offsets.ndim != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    rows = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        rows = op.mul(rows, op.unsqueeze(per_sample_weights, -1))
    counts = None if padding_idx is None else op.ne(input, padding_idx % weight.shape[0])
    if offsets is None:
        return _of_rows(rows, counts, mode)
    starts = offsets[:-1] if include_last_offset else offsets
    places = op.unsqueeze(arange(input.shape[0], device=input.device), 1)
    bags = op.sub(op.sum(op.ge(places, starts), 1), 1)
    return _of_bags(rows, counts, bags, starts.shape[0], mode)


def _of_rows(rows: Tensor, counts: Tensor | None, mode: str) -> Tensor:
    """Bags of equally many rows [bags, rows, features]."""
    if not rows.shape[1]:
        return Tensor(throughout(0, rows.dtype, (rows.shape[0], rows.shape[2])))
    if counts is None:
        return {"sum": op.sum, "mean": op.mean, "max": op.amax}[mode](rows, 1)
    there = op.unsqueeze(counts, -1)
    if mode == "max":
        found = op.amax(op.where(there, rows, float("-inf")), 1)
        return op.where(op.any(there, 1), found, 0.0)
    total = op.sum(op.where(there, rows, 0.0), 1)
    return total if mode == "sum" else op.div(total, op.clamp(op.sum(there.to(rows.dtype), 1), min=1.0))


def _of_bags(rows: Tensor, counts: Tensor | None, bags: Tensor, many: int, mode: str) -> Tensor:
    """Bags of rows [rows, features] by their numbers."""
    there = (
        Tensor(throughout(1, rows.dtype, (rows.shape[0], 1)))
        if counts is None
        else counts.to(rows.dtype).unsqueeze(1)
    )
    empty = expanded(EMITTER, number(0, rows.dtype), (many, 1))
    numbers = op.unsqueeze(bags, 1).value
    amounts = Tensor(apply("ScatterND", empty, numbers, there.value, reduction="add"))
    if mode == "max":
        lowest = throughout(float("-inf"), rows.dtype, (many, rows.shape[1]))
        offered = rows if counts is None else op.where(op.unsqueeze(counts, 1), rows, float("-inf"))
        found = Tensor(apply("ScatterND", lowest, numbers, offered.value, reduction="max"))
        return op.where(op.gt(amounts, 0), found, 0.0)
    nothing = throughout(0, rows.dtype, (many, rows.shape[1]))
    offered = rows if counts is None else op.where(op.unsqueeze(counts, 1), rows, 0.0)
    total = Tensor(apply("ScatterND", nothing, numbers, offered.value, reduction="add"))
    return total if mode == "sum" else op.div(total, op.clamp(amounts, min=1.0))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W x₂ + b for each output.

    Args:
        input1: [..., inputs1].
        input2: [..., inputs2].
        weight: [outputs, inputs1, inputs2].
        bias: [outputs].

    Raises:
        RuntimeError: shapes do not fit.
    """
    if input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(
            f"bilinear(): input batch dimensions do not match: got {list(input1.shape)} and "
            f"{list(input2.shape)}"
        )
    if weight.ndim != 3 or weight.shape[1:] != (input1.shape[-1], input2.shape[-1]):
        raise RuntimeError(
            f"bilinear(): a weight {list(weight.shape)} does not take {input1.shape[-1]} and "
            f"{input2.shape[-1]} features"
        )
    outputs, one, two = weight.shape
    left, right = op.reshape(input1, -1, one), op.reshape(input2, -1, two)
    # [outputs · inputs1, inputs2] by x₂, then by x₁.
    half = op.reshape(op.linear(right, op.reshape(weight, outputs * one, two)), -1, outputs, one)
    made = op.squeeze(op.matmul(half, op.unsqueeze(left, 2)), 2)
    if bias is not None:
        made = op.add(made, bias)
    return op.reshape(made, *input1.shape[:-1], outputs)
