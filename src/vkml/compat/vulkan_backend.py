"""The functions of plain Vulkan bindings for NumPy: ``vulkan_add(a, b, c)`` writes a + b into c.

A script that was written for such a module needs one changed import:

    from vkml.compat import vulkan_backend

Arrays are float32, flat or shaped, in C order; the last array of a call is written. Images lie as
[height, width, channels], kernels as [outputs, height, width, channels]. Everything runs on the device that
`init_vulkan` chose, at once; buffers and plans are kept from call to call (see `vkml.ops`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkml.array_functions.calls import Function, run
from vkml.engine.devices import devices
from vkml.errors import NoDevice, OperandError, RuntimeException
from vkml.nn import functional
from vkml.tensors import Tensor
from vkml.tensors import operations as op

Array = np.ndarray[Any, Any]


class NotInitialized(RuntimeException, RuntimeError):
    """`init_vulkan` has not been called."""


class _State:
    device: str | None = None


_state = _State()


def init_vulkan(device: str | None = None) -> bool:
    """Chooses the device that everything runs on.

    Args:
        device: a name of `vkml.devices()`; the best where left out, which is the CPU where there is no other.

    Returns:
        Whether there is one.
    """
    if device is None:
        _state.device = devices()[0].name
        return True
    try:
        run(_ADD, (np.zeros(1, np.float32), np.zeros(1, np.float32)), device=device)
    except NoDevice:
        return False
    _state.device = device
    return True


def cleanup_vulkan() -> None:
    """Lets go of the device; buffers are given back when the program ends, or by `vkml.close_devices`."""
    _state.device = None


def is_vulkan_initialized() -> bool:
    """Whether `init_vulkan` has been called."""
    return _state.device is not None


# -- element by element --------------------------------------------------------------------------------------

_ADD, _SUB, _MUL, _DIV = (
    Function(f"vulkan_{name}", getattr(op, name)) for name in ("add", "sub", "mul", "div")
)


def vulkan_add(input_a: Any, input_b: Any, output: Array) -> None:
    """Writes a + b."""
    _elementwise(_ADD, output, input_a, input_b)


def vulkan_sub(input_a: Any, input_b: Any, output: Array) -> None:
    """Writes a - b."""
    _elementwise(_SUB, output, input_a, input_b)


def vulkan_mul(input_a: Any, input_b: Any, output: Array) -> None:
    """Writes a b, element by element."""
    _elementwise(_MUL, output, input_a, input_b)


def vulkan_div(input_a: Any, input_b: Any, output: Array) -> None:
    """Writes a / b."""
    _elementwise(_DIV, output, input_a, input_b)


_RELU, _SIGMOID, _TANH = (
    Function(f"vulkan_{name}", getattr(op, name)) for name in ("relu", "sigmoid", "tanh")
)
_GELU = Function("vulkan_gelu", functional.gelu)


def vulkan_relu(input: Any, output: Array) -> None:
    """Writes max(x, 0)."""
    _elementwise(_RELU, output, input)


def vulkan_sigmoid(input: Any, output: Array) -> None:
    """Writes 1 / (1 + exp(-x))."""
    _elementwise(_SIGMOID, output, input)


def vulkan_tanh(input: Any, output: Array) -> None:
    """Writes the hyperbolic tangent of x."""
    _elementwise(_TANH, output, input)


def vulkan_gelu(input: Any, output: Array) -> None:
    """Writes x Φ(x)."""
    _elementwise(_GELU, output, input)


def vulkan_dropout(input: Any, output: Array, probability: float = 0.5, seed: int = 0) -> None:
    """Writes x with a share of the elements 0 and the others over 1 - `probability`, drawn by a seed."""
    x = _input("vulkan_dropout", "input", input)
    if not 0 <= probability <= 1:
        raise OperandError(f"vulkan_dropout: a probability is from 0 to 1, not {probability}")
    kept = np.random.default_rng(seed).random(x.size, np.float32) >= probability
    scale = np.float32(0 if probability == 1 else 1 / (1 - probability))
    _elementwise(_MUL, output, x, kept.astype(np.float32) * scale)


# -- products, rows ------------------------------------------------------------------------------------------

_MATMUL = Function("vulkan_matmul", op.matmul)


def vulkan_matmul(
    input_a: Any,
    input_b: Any,
    output: Array,
    m: int | None = None,
    k: int | None = None,
    n: int | None = None,
) -> None:
    """Writes the product of matrices.

    Args:
        input_a: [m, k].
        input_b: [k, n].
        output: [m, n].
        m: rows of a, which may be left out where the arrays are matrices, as the other two.
        k: columns of a.
        n: columns of b.
    """
    name = "vulkan_matmul"
    a, b = _input(name, "input_a", input_a), _input(name, "input_b", input_b)
    if m is None or k is None or n is None:
        if a.ndim != 2 or b.ndim != 2:
            raise OperandError(f"{name}: m, k and n are needed where the arrays are no matrices")
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
    _run(_MATMUL, [_as(name, "input_a", a, m, k), _as(name, "input_b", b, k, n)], output, (m, n))


_SOFTMAX = Function("vulkan_softmax", lambda x: op.softmax(x, -1))


def vulkan_softmax(input: Any, output: Array) -> None:
    """Writes exp(x) over its sum: that of all elements of a flat array, of each row of a shaped one."""
    x = _input("vulkan_softmax", "input", input)
    _run(_SOFTMAX, [x if x.ndim else x.reshape(1)], output, x.shape or (1,))


def _standardised(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)


_NORM = Function("vulkan_layernorm", _standardised)


def vulkan_batchnorm(
    input: Any, gamma: Any, beta: Any, output: Array, size: int, epsilon: float = 1e-5
) -> None:
    """Writes γ (x - mean) / √(variance + ε) + β, the statistics being those of all `size` elements."""
    name = "vulkan_batchnorm"
    arrays = [_as(name, what, _input(name, what, x), size) for what, x in _named(input, gamma, beta)]
    _run(_NORM, arrays, output, (size,), float(epsilon))


def vulkan_layernorm(
    input: Any, gamma: Any, beta: Any, output: Array, size: int, epsilon: float = 1e-5
) -> None:
    """As `vulkan_batchnorm` for each row of `size` elements; γ and β are of one row."""
    name = "vulkan_layernorm"
    (_, x), *others = ((what, _input(name, what, given)) for what, given in _named(input, gamma, beta))
    if size < 1 or x.size % size:
        raise OperandError(f"{name}: {x.size} elements are no rows of {size}")
    rows = x.size // size
    arrays = [x.reshape(rows, size), *(_as(name, what, given, size) for what, given in others)]
    _run(_NORM, arrays, output, (rows, size), float(epsilon))


def _named(x: Any, gamma: Any, beta: Any) -> list[tuple[str, Any]]:
    return [("input", x), ("gamma", gamma), ("beta", beta)]


# -- images --------------------------------------------------------------------------------------------------


def _on_planes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of [1, channels, height, width] as one of [height, width, channels]."""

    def act(x: Tensor, *others: Any) -> Tensor:
        made = function(op.unsqueeze(op.permute(x, 2, 0, 1), 0), *others)
        return op.permute(op.squeeze(made, 0), 1, 2, 0)

    return act


def _convolved(x: Tensor, kernel: Tensor, padding: int, stride: int) -> Tensor:
    return functional.conv2d(x, op.permute(kernel, 0, 3, 1, 2), None, stride, padding)


_CONV2D = Function("vulkan_conv2d", _on_planes(_convolved))
_MAXPOOL = Function("vulkan_maxpool", _on_planes(lambda x, size, step: functional.max_pool2d(x, size, step)))
_AVGPOOL = Function("vulkan_avgpool", _on_planes(lambda x, size, step: functional.avg_pool2d(x, size, step)))


def vulkan_conv2d(
    input: Any, kernel: Any, output: Array, input_width: int, input_height: int, input_channels: int,
    output_channels: int, kernel_size: int, padding: int = 0, stride: int = 1,
) -> None:  # fmt: skip
    """Writes a convolution with square kernels.

    Args:
        input: [input_height, input_width, input_channels].
        kernel: [output_channels, kernel_size, kernel_size, input_channels].
        output: [height, width, output_channels], height and width as they follow.
        input_width: of the image.
        input_height: of the image.
        input_channels: of the image.
        output_channels: of the result.
        kernel_size: height and width of a kernel.
        padding: zeros round the image.
        stride: from window to window.
    """
    name = "vulkan_conv2d"
    x = _as(name, "input", _input(name, "input", input), input_height, input_width, input_channels)
    k = _input(name, "kernel", kernel)
    k = _as(name, "kernel", k, output_channels, kernel_size, kernel_size, input_channels)
    made = [_windows(name, size + 2 * padding, kernel_size, stride) for size in (input_height, input_width)]
    _run(_CONV2D, [x, k], output, (*made, output_channels), int(padding), int(stride))


def vulkan_maxpool(
    input: Any, output: Array, width: int, height: int, channels: int, pool_size_x: int, pool_size_y: int,
    stride_x: int, stride_y: int,
) -> None:  # fmt: skip
    """Writes the greatest element of each window.

    Args:
        input: [height, width, channels].
        output: [rows, columns, channels], rows and columns as they follow.
        width: of the image.
        height: of the image.
        channels: of the image.
        pool_size_x: width of a window.
        pool_size_y: height of a window.
        stride_x: from window to window along the width.
        stride_y: along the height.
    """
    _pooled(
        _MAXPOOL, input, output, (height, width, channels), (pool_size_y, pool_size_x), (stride_y, stride_x)
    )


def vulkan_avgpool(
    input: Any, output: Array, width: int, height: int, channels: int, pool_size_x: int, pool_size_y: int,
    stride_x: int, stride_y: int,
) -> None:  # fmt: skip
    """Writes the mean of each window; see `vulkan_maxpool`."""
    _pooled(
        _AVGPOOL, input, output, (height, width, channels), (pool_size_y, pool_size_x), (stride_y, stride_x)
    )


vulkan_pooling = vulkan_maxpool
"""`vulkan_maxpool` by another name of it."""


def _pooled(
    function: Function, input: Any, output: Array, dims: tuple[int, int, int], window: tuple[int, int],
    steps: tuple[int, int],
) -> None:  # fmt: skip
    x = _as(function.name, "input", _input(function.name, "input", input), *dims)
    made = [_windows(function.name, *each) for each in zip(dims, window, steps, strict=False)]
    _run(function, [x], output, (*made, dims[2]), window, steps)


def _windows(function: str, size: int, window: int, step: int) -> int:
    """How many windows there are along an axis."""
    if step < 1:
        raise OperandError(f"{function}: from window to window there are {step} places, not 1 or more")
    return (size - window) // step + 1


# -- arrays --------------------------------------------------------------------------------------------------


def _elementwise(function: Function, output: Array, *inputs: Any) -> None:
    arrays = [
        _input(function.name, f"input {at}" if len(inputs) > 1 else "input", x) for at, x in enumerate(inputs)
    ]
    sizes = {array.size for array in arrays}
    if len(sizes) > 1:
        raise OperandError(
            f"{function.name}: the inputs have {sorted(sizes)} elements, not as many as each other"
        )
    _run(function, [array.reshape(-1) for array in arrays], output, (arrays[0].size,))


def _run(function: Function, arrays: list[Array], output: Any, dims: tuple[int, ...], *settings: Any) -> None:
    if _state.device is None:
        raise NotInitialized(f"{function.name}: Vulkan is not initialized. Call init_vulkan() first.")
    if not isinstance(output, np.ndarray) or output.dtype != np.float32:
        found = output.dtype if isinstance(output, np.ndarray) else type(output).__name__
        raise OperandError(f"{function.name}: the output is an array of float32, not {found}")
    if not output.flags.c_contiguous or not output.flags.writeable:
        raise OperandError(f"{function.name}: the output must be in C order and writable")
    if output.size != int(np.prod(dims)) or min(dims) < 1:
        raise OperandError(
            f"{function.name}: the output has {output.size} elements, the result is {list(dims)}"
        )
    run(function, arrays, settings, output.reshape(dims), _state.device)


def _input(function: str, what: str, given: Any) -> Array:
    """An array of float32 in C order; bindings convert what comes in, too."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise OperandError(f"{function}: {what} is of {array.dtype}, not of numbers")
    return np.ascontiguousarray(array, np.float32) if array.ndim else array.astype(np.float32)


def _as(function: str, what: str, array: Array, *dims: int) -> Array:
    if array.size != int(np.prod(dims)):
        raise OperandError(
            f"{function}: {what} has {array.size} elements, {list(dims)} are {int(np.prod(dims))}"
        )
    return array.reshape(dims)
