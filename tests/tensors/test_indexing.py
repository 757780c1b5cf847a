"""Reading and writing parts of tensors: NumPy's results for random indices, PyTorch's errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkml.tensors.creation import arange, tensor, zeros

SHAPES = ((5,), (4, 3), (2, 3, 4), (3, 1, 2, 4))


def _basic(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Numbers, ranges, None and an ellipsis."""
    entries: list[Any] = []
    for size in shape[: int(rng.integers(0, len(shape) + 1))]:
        kind = rng.integers(0, 4)
        if kind == 0:
            entries.append(int(rng.integers(-size, size)))
        elif kind == 1:
            entries.append(slice(None))
        else:
            start, stop = (int(rng.integers(-size - 1, size + 2)) for _ in range(2))
            entries.append(slice(start, stop, int(rng.integers(1, 4))))
    for new in (None, None):
        if rng.random() < 0.3:
            entries.insert(int(rng.integers(0, len(entries) + 1)), new)
    if rng.random() < 0.3:
        entries.insert(int(rng.integers(0, len(entries) + 1)), Ellipsis)
    return tuple(entries)


def _advanced(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Arrays of integers beside ranges; their axes lie side by side, as NumPy and PyTorch agree on them."""
    first = int(rng.integers(0, len(shape)))
    count = int(rng.integers(1, min(2, len(shape) - first) + 1))
    common = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(1, 3))))
    entries: list[Any] = [slice(None, None, int(rng.integers(1, 3))) for _ in range(first)]
    return (*entries, *(rng.integers(-shape[first + n], shape[first + n], common) for n in range(count)))


@pytest.mark.parametrize("kind", ["basic", "advanced", "mask"])
def test_parts_are_numpys(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for case in range(60):
        shape = SHAPES[case % len(SHAPES)]
        array = rng.standard_normal(shape).astype(np.float32)
        if kind == "mask":
            index: Any = (rng.random(shape[: 1 + case % len(shape)]) < 0.5,)
        else:
            index = _basic(rng, shape) if kind == "basic" else _advanced(rng, shape)
        found = tensor(array)[index]
        np.testing.assert_array_equal(found.numpy(), array[index], err_msg=f"{shape} {index}")
        changed = tensor(array)
        value = np.float32(rng.standard_normal(array[index].shape))
        if kind == "advanced":  # of places that are named twice one value stays, and any may
            value = np.float32(case)
        changed[index] = tensor(value)
        array[index] = value
        np.testing.assert_array_equal(changed.numpy(), array, err_msg=f"{shape} {index} written")


def test_what_lies_outside() -> None:
    x = zeros(3, 4)
    for index in (3, -4, (0, 4), (0, 0, 0)):
        with pytest.raises(IndexError):
            x[index]
    for wrong in (1.0, "a", np.float32(1), tensor([0.0, 1.0]), tensor(1.0), [0.0], np.zeros(2)):
        with pytest.raises(IndexError, match="integers"):
            x[wrong]
        with pytest.raises(IndexError, match="integers"):
            x[wrong] = 1
    assert x[[]].shape == (0, 4)
    with pytest.raises(TypeError):
        x.reshape(12.0)
    with pytest.raises(ValueError, match="positive"):
        x[::-1]
    with pytest.raises(RuntimeError, match="shape"):
        x[0] = zeros(3)


def test_one_bool_among_others() -> None:
    """It selects all of a new axis, or nothing of it, wherever it stands."""
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for flag in (True, False):
        indices = (flag, (flag, 1), (slice(None), flag, 2), (..., flag), (None, flag), ([2], flag))
        for index in indices:
            x = tensor(array)
            np.testing.assert_array_equal(x[index].numpy(), array[index], err_msg=str(index))
            held = tensor(flag) if index is flag else (*index[:-1], tensor(index[-1]))
            np.testing.assert_array_equal(x[held].numpy(), array[index], err_msg=str(index))
            x[index] = -1
            changed = array.copy()
            changed[index] = -1
            np.testing.assert_array_equal(x.numpy(), changed, err_msg=str(index))


def test_views_write_through() -> None:
    x = zeros(2, 3, 4)
    row, turned = x[1], x.permute(2, 0, 1)
    flat = x.view(-1)
    row += 1
    flat[0] = 5
    turned[3, 0, 2] = 7
    wanted = np.zeros((2, 3, 4), np.float32)
    wanted[1] += 1
    wanted[0, 0, 0], wanted[0, 2, 3] = 5, 7
    np.testing.assert_array_equal(x.numpy(), wanted)
    np.testing.assert_array_equal(row.numpy(), wanted[1])
    np.testing.assert_array_equal(turned.numpy(), wanted.transpose(2, 0, 1))
    x[1, 0].mul_(3)
    wanted[1, 0] *= 3
    np.testing.assert_array_equal(row.numpy(), wanted[1])
    copy = x.clone()
    copy.zero_()
    np.testing.assert_array_equal(x.numpy(), wanted)
    with pytest.raises(ValueError, match="expanded"):
        arange(3).expand(2, 3).add_(1)


def test_gradients_of_views_that_were_written() -> None:
    x = tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y[1:] *= x[:2]
    y[0] = 4
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [4, 2 * 1 + 2 * 3, 2 * 2])
