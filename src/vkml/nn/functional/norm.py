"""Normalisations over batches, channels, groups and trailing axes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

from vkml.ir.dtypes import FLOAT16, FLOAT32, FLOAT64
from vkml.ir.gradients import converted
from vkml.ir.size import Size, integer
from vkml.nn.functional.arguments import require_floats, throughout
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute_later
from vkml.tracing import EMITTER, Traced, apply, apply_all


def _vector(given: Tensor | None, value: float, like: Tensor, dims: Sequence[int], what: str) -> Traced:
    """A factor or an addend, or a number throughout where there is none.

    Raises:
        RuntimeError: it has another shape.
    """
    if given is None:
        return throughout(value, like.dtype, dims)
    if tuple(given.shape) != tuple(dims):
        raise RuntimeError(f"{what} has the shape {list(given.shape)}, it must be {list(dims)}")
    return given.value


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel standardised by its batch's statistics, or by stored ones (Ioffe and Szegedy, 2015).

    Args:
        input: [batch, channels, ...].
        running_mean: [channels]; in training moved towards the batch's.
        running_var: [channels]; in training moved towards the batch's, its divisor less by 1.
        weight: [channels], a factor.
        bias: [channels], an addend.
        training: whether the batch's statistics are used.
        momentum: share of the batch's statistics in the stored ones.
        eps: what is added to variances.

    Raises:
        ValueError: a channel has one value only, in training.
        RuntimeError: shapes do not fit, or there are no statistics.
    """
    require_floats(input, "batch_norm")
    if input.ndim < 2:
        raise RuntimeError(f"batch_norm takes [batch, channels, ...], not the shape {list(input.shape)}")
    dims = [input.shape[1]]
    factor = _vector(weight, 1, input, dims, "batch_norm: the weight")
    addend = _vector(bias, 0, input, dims, "batch_norm: the bias")
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("batch_norm: running_mean and running_var must be defined in evaluation mode")
        mean = _vector(running_mean, 0, input, dims, "batch_norm: running_mean")
        variance = _vector(running_var, 0, input, dims, "batch_norm: running_var")
        made = apply("BatchNormalization", input.value, factor, addend, mean, variance, epsilon=float(eps))
        return Tensor(made)
    count = input.numel() // max(dims[0], 1)
    if count == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {list(input.shape)}"
        )
    for stored, what in ((running_mean, "running_mean"), (running_var, "running_var")):
        _vector(stored, 0, input, dims, f"batch_norm: {what}")
    # With a momentum of 0 what comes out as running statistics is the batch's.
    wide = FLOAT64 if input.dtype == FLOAT64 else FLOAT32
    nothing = throughout(0, wide, dims)
    outputs = 3 if running_mean is not None or running_var is not None else 1
    made, *found = apply_all(
        "BatchNormalization", [input.value, factor, addend, nothing, nothing], outputs,
        epsilon=float(eps), momentum=0.0, training_mode=1,
    )  # fmt: skip
    if found:
        with no_grad():
            batch_mean, batch_var = (Tensor(value).detach() for value in found)
            move_statistics(running_mean, batch_mean, momentum)
            if isinstance(count, Size):
                unbiased = op.div(op.mul(batch_var, count), count - 1)
            else:
                unbiased = op.mul(batch_var, count / max(count - 1, 1))
            move_statistics(running_var, unbiased, momentum)
    return Tensor(made)


def move_statistics(stored: Tensor | None, found: Tensor, momentum: float | Tensor) -> None:
    """Moves stored statistics towards those of a batch; gradients of what has read them do not mind."""
    if stored is not None:
        kept = op.mul(stored, op.sub(1.0, momentum) if isinstance(momentum, Tensor) else 1.0 - momentum)
        before = weakref.ref(stored), stored._traced
        moved = converted(EMITTER, op.add(kept, op.mul(found, momentum)).value, stored.dtype)
        stored._write(moved, start=0)
        compute_later(stored.value, before=before)


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel of each sample standardised (Ulyanov et al., 2016).

    Args:
        input: [batch, channels, *spatial].
        running_mean: [channels]; moved towards the mean over the batch.
        running_var: [channels]; likewise.
        weight: [channels], a factor.
        bias: [channels], an addend.
        use_input_stats: whether statistics are the input's; else the stored ones are used.
        momentum: share of the input's statistics in the stored ones.
        eps: what is added to variances.

    Raises:
        ValueError: a channel has one value only.
        RuntimeError: shapes do not fit, or there are no statistics.
    """
    require_floats(input, "instance_norm")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.ndim < 3 or math.prod(input.shape[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {list(input.shape)}"
        )
    dims = [input.shape[1]]
    factor = _vector(weight, 1, input, dims, "instance_norm: the weight")
    addend = _vector(bias, 0, input, dims, "instance_norm: the bias")
    if running_mean is not None or running_var is not None:
        with no_grad():
            axes = range(2, input.ndim)
            mean, variance = op.mean(input, axes), op.var(input, axes)
            move_statistics(running_mean, op.mean(mean, 0), momentum)
            move_statistics(running_var, op.mean(variance, 0), momentum)
    return Tensor(apply("InstanceNormalization", input.value, factor, addend, epsilon=float(eps)))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Groups of channels of each sample standardised (Wu and He, 2018).

    Args:
        input: [batch, channels, ...].
        num_groups: parts of the channels.
        weight: [channels], a factor.
        bias: [channels], an addend.
        eps: what is added to variances.

    Raises:
        RuntimeError: shapes do not fit.
    """
    require_floats(input, "group_norm")
    if input.ndim < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    channels = input.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    factor = _vector(weight, 1, input, [channels], "group_norm: the weight")
    addend = _vector(bias, 0, input, [channels], "group_norm: the bias")
    made = apply("GroupNormalization", input.value, factor, addend, num_groups=num_groups, epsilon=float(eps))
    return Tensor(made)


def _trailing(input: Tensor, normalized_shape: Sequence[int], name: str) -> tuple[int, ...]:
    require_floats(input, name)
    dims = tuple(map(integer, normalized_shape))
    if not dims or tuple(input.shape[-len(dims) :]) != dims:
        raise RuntimeError(
            f"{name}: given normalized_shape={list(dims)}, expected input with shape "
            f"[*, {', '.join(map(str, dims))}], but got input of size {list(input.shape)}"
        )
    return dims


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Trailing axes standardised (Ba et al., 2016).

    Args:
        input: [..., *normalized_shape].
        normalized_shape: the axes' sizes.
        weight: of these sizes, a factor.
        bias: of these sizes, an addend.
        eps: what is added to variances.

    Raises:
        RuntimeError: shapes do not fit.
    """
    dims = _trailing(input, normalized_shape, "layer_norm")
    given = [input.value, _vector(weight, 1, input, dims, "layer_norm: the weight")]
    if bias is not None:
        given.append(_vector(bias, 0, input, dims, "layer_norm: the bias"))
    return Tensor(apply("LayerNormalization", *given, axis=-len(dims), epsilon=float(eps)))


_SMALLEST_STEP = {FLOAT16: 2.0**-10, FLOAT32: 2.0**-23, FLOAT64: 2.0**-52}


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Trailing axes over the root of their mean square (Zhang and Sennrich, 2019).

    Args:
        input: [..., *normalized_shape].
        normalized_shape: the axes' sizes.
        weight: of these sizes, a factor.
        eps: what is added to the mean square; the element type's smallest step at 1 where left out.

    Raises:
        RuntimeError: shapes do not fit.
    """
    dims = _trailing(input, normalized_shape, "rms_norm")
    factor = _vector(weight, 1, input, dims, "rms_norm: the weight")
    epsilon = _SMALLEST_STEP.get(input.dtype, 2.0**-7) if eps is None else float(eps)
    return Tensor(apply("RMSNormalization", input.value, factor, axis=-len(dims), epsilon=epsilon))


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x over (k + α mean(x²))ᵝ, the mean being over neighbouring channels (Krizhevsky et al., 2012).

    Args:
        input: [batch, channels, ...].
        size: how many neighbours there are, the channel itself among them.
        alpha: times the mean of their squares, ...
        beta: ... the exponent ...
        k: ... and what is added to the base.

    Raises:
        ValueError: the input has less than three axes.
    """
    if input.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)")
    squares = op.reshape(op.mul(input, input), input.shape[0], 1, input.shape[1], -1)
    before, after = size // 2, (size - 1) // 2
    mean = Tensor(
        apply(
            "AveragePool",
            squares.value,
            kernel_shape=(size, 1),
            pads=(before, 0, after, 0),
            count_include_pad=1,
        )
    )
    base = op.add(op.mul(op.reshape(mean, *input.shape), alpha), k)
    return op.div(input, op.pow(base, beta))
