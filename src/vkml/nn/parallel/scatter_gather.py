"""A batch shared out over devices, and results brought together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.engine.ort_value import device_of
from vkml.errors import InvalidArgument
from vkml.nn.parallel.speeds import tensors_in
from vkml.tensors import Tensor
from vkml.tensors.capture import captures, is_capturing
from vkml.tensors.operations import cat, stack
from vkml.tensors.tensor import device_name
from vkml.tracing import value_of
from vkml.tracing.moves import moved


def sent(tensor: Tensor, device: Any, bucket_bytes: int | None = None) -> Tensor:
    """A tensor on a device, recorded like any other operation: nothing waits for it here.

    Args:
        tensor: of any device.
        device: where to.
        bucket_bytes: see `vkml.tracing.moves.moved`.
    """
    name = device_name(device)
    if tensor.device == name:
        return tensor
    value, there = tensor.value, device_of(name)
    if isinstance(value.data, np.ndarray) and not value.tracks and not is_capturing():
        return Tensor(value_of(value.data, there))  # the host still has it
    if value.is_free:
        return tensor.to(name)
    return Tensor(moved(value, there, bucket_bytes))


def sizes_of(count: int, shares: Sequence[float]) -> list[int]:
    """How many of so many samples each device takes.

    Args:
        count: samples.
        shares: of the devices, whose sum is 1.

    Returns:
        Whole numbers whose sum is `count`, each less than 1 from its share.
    """
    exact = [count * share for share in shares]
    sizes = [int(number) for number in exact]
    # What is left goes to those that have lost most, the first of them where several have.
    order = sorted(range(len(shares)), key=lambda at: (round(sizes[at] - exact[at], 9), at))
    for at in order[: count - sum(sizes)]:
        sizes[at] += 1
    return sizes


def scatter(
    inputs: Any, target_gpus: Sequence[Any], dim: int = 0, shares: Sequence[float] | None = None
) -> list[Any]:
    """Shares tensors out over devices; whatever else there is goes to all of them.

    Args:
        inputs: a tensor, or tensors and other things in tuples, lists and mappings.
        target_gpus: the devices.
        dim: the axis that is cut, of samples.
        shares: of each device, whose sum is 1; equal ones where left out.

    Returns:
        What each of the devices is given; none for devices behind the last sample. Of devices in the middle
        whose share has no sample, it is None.

    Raises:
        ValueError: two tensors have not as many samples.
    """
    counts = {_samples(tensor, dim) for tensor in tensors_in(inputs)}
    if len(counts) > 1:
        raise InvalidArgument(
            f"the tensors have {sorted(counts)} samples along axis {dim}: they are cut in the same way"
        )
    even = [1 / len(target_gpus)] * len(target_gpus)
    if not counts:
        return [inputs]
    sizes = sizes_of(counts.pop(), shares or even)
    if not any(sizes):
        sizes[0] = 0
        return [_part(inputs, 0, 0, target_gpus[0], dim)]
    ends = np.cumsum(sizes).tolist()
    parts = [
        _part(inputs, end - size, size, device, dim) if size else None
        for device, size, end in zip(target_gpus, sizes, ends, strict=True)
    ]
    while parts[-1] is None:
        parts.pop()
    return parts


def _samples(tensor: Tensor, dim: int) -> int:
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InvalidArgument(f"a tensor of shape {list(tensor.shape)} has no axis {dim} to be cut along")
    return tensor.shape[dim]


def _part(inputs: Any, start: int, size: int, device: Any, dim: int) -> Any:
    """One device's share of something nested."""
    if isinstance(inputs, Tensor):
        return _tensor_part(inputs, start, size, device, dim)
    if isinstance(inputs, dict):
        return type(inputs)((key, _part(item, start, size, device, dim)) for key, item in inputs.items())
    if isinstance(inputs, tuple) and hasattr(inputs, "_fields"):
        return type(inputs)(*(_part(item, start, size, device, dim) for item in inputs))
    if isinstance(inputs, list | tuple):
        return type(inputs)(_part(item, start, size, device, dim) for item in inputs)
    return inputs


def _tensor_part(tensor: Tensor, start: int, size: int, device: Any, dim: int) -> Tensor:
    if size == tensor.shape[dim]:
        return sent(tensor, device)
    index = (*[slice(None)] * (dim % tensor.ndim), slice(start, start + size))
    value, there = tensor.value, device_of(device_name(device))
    if isinstance(value.data, np.ndarray) and not value.tracks and not value.is_free:
        latest = captures.latest
        if latest is None:
            return Tensor(value_of(np.ascontiguousarray(value.data[index]), there))
        if value.device is None:
            return Tensor(latest.part(value, index, there))
    return sent(tensor[index], device)


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Brings what devices have made together on one, in the order of the devices.

    Args:
        outputs: of each device: tensors, which are joined along an axis (single numbers become a vector), or
            tuples, lists and mappings of them.
        target_device: where to.
        dim: the axis.

    Raises:
        TypeError: something else that differs from device to device.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        there = [sent(output, target_device) for output in outputs]
        if not first.ndim:
            return stack(there)
        return cat(there, dim) if len(there) > 1 else there[0]
    if isinstance(first, dict):
        return type(first)((key, gather([o[key] for o in outputs], target_device, dim)) for key in first)
    if isinstance(first, list | tuple):
        items = [gather(each, target_device, dim) for each in zip(*outputs, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if any(output is not first and output != first for output in outputs):
        raise TypeError(
            f"results of type {type(first).__name__} differ from device to device: return tensors"
        )
    return first
