"""Padding: numbers, mirror images, edges or the other end around a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir.dtypes import INT64
from vkml.ir.size import integer, is_number
from vkml.tensors import Tensor
from vkml.tracing import apply, constant, number

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""PyTorch's names and ONNX's."""


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """A tensor with more elements around it, or less where numbers are negative.

    Args:
        input: of any shape; for modes other than "constant" with channels in front of the padded axes.
        pad: how many in front of the last axis and behind it, then of the axis before it, and so on.
        mode: "constant", "reflect" (without the edge once more), "replicate" or "circular".
        value: what is added in mode "constant"; 0 where left out.

    Raises:
        RuntimeError: there are more numbers than axes, or more is added than the mode has.
        NotImplementedError: the mode does not exist, or not for so many axes.
        ValueError: a value is given for another mode.
    """
    if mode not in _MODES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if len(pad) % 2 or len(pad) // 2 > input.ndim:
        raise RuntimeError(
            f"pad has two numbers for each axis that is padded, {len(pad)} do not fit the shape "
            f"{list(input.shape)}"
        )
    begins, ends = [0] * input.ndim, [0] * input.ndim
    for at in range(len(pad) // 2):
        begins[-1 - at], ends[-1 - at] = integer(pad[2 * at]), integer(pad[2 * at + 1])
    if mode != "constant":
        if value:
            raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
        _check_mode(input, len(pad) // 2, begins, ends, mode)
    for size, begin, end in zip(input.shape, begins, ends, strict=True):
        if size + begin + end < 0:
            raise RuntimeError(
                f"pad {list(pad)} leaves an axis of the shape {list(input.shape)} a negative size"
            )
    if not any(not is_number(count) or count for count in (*begins, *ends)):
        return input.clone()
    given = [input.value, constant([*begins, *ends], INT64)]
    if value:
        given.append(number(value, input.dtype))
    return Tensor(apply("Pad", *given, mode=_MODES[mode]))


def _check_mode(x: Tensor, axes: int, begins: Sequence[int], ends: Sequence[int], mode: str) -> None:
    if not 1 <= axes <= 3 or x.ndim not in (axes + 1, axes + 2):
        raise NotImplementedError(
            f"mode {mode!r} pads one, two or three axes behind channels, with or without a batch: not "
            f"{axes} of "
            f"the shape {list(x.shape)}"
        )
    for size, begin, end in zip(x.shape, begins, ends, strict=True):
        most = {"reflect": size - 1, "circular": size}.get(mode)
        if most is not None and max(begin, end) > most:
            raise RuntimeError(
                f"padding size should be at most {most} for mode {mode!r} along an axis of {size}, not "
                f"{max(begin, end)}"
            )
        if (begin or end) and not size:
            raise RuntimeError(f"mode {mode!r} has nothing to repeat in the shape {list(x.shape)}")
