"""All parameters of a model in a row, and back."""

from __future__ import annotations

from collections.abc import Iterable

from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.operations import cat


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Parameters in a row: a vector through which gradients flow to them.

    Args:
        parameters: of one device.

    Raises:
        TypeError: they are on several devices.
    """
    found = list(parameters)
    _check_devices(found)
    return cat([parameter.reshape(-1) for parameter in found], 0)


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Gives parameters the elements of a vector, in order.

    Args:
        vec: as many elements as they have together.
        parameters: of one device; they are written.

    Raises:
        TypeError: `vec` is no tensor, or they are on several devices.
        ValueError: its length is not that of all of them.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected a tensor, but got {type(vec).__name__}")
    found = list(parameters)
    _check_devices(found)
    count = sum(parameter.numel() for parameter in found)
    if vec.numel() != count:
        raise ValueError(f"the vector has {vec.numel()} elements, the parameters {count}")
    at = 0
    for parameter in found:
        parameter.copy_(vec[at : at + parameter.numel()].reshape(*parameter.shape))
        at += parameter.numel()


def _check_devices(parameters: list[Tensor]) -> None:
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        raise TypeError(f"parameters in a row are on one device, not on {', '.join(sorted(devices))}")
