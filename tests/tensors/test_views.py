"""Views of views: which elements they show, how these lie, and when another shape is a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml

torch = pytest.importorskip("torch")


def _shown(random: np.random.Generator, mine: vkml.Tensor, theirs: Any) -> tuple[vkml.Tensor, Any]:
    """A view of two tensors of both libraries, or a copy, drawn."""
    kind = random.integers(5)
    if kind == 0:
        order = [int(axis) for axis in random.permutation(mine.ndim)]
        return mine.permute(order), theirs.permute(order)
    if kind == 1:
        axis = int(random.integers(mine.ndim))
        part = slice(int(random.integers(mine.shape[axis])), None, int(random.integers(1, 3)))
        index = (*[slice(None)] * axis, part)
        return mine[index], theirs[index]
    if kind == 2:
        return mine.unsqueeze(-1), theirs.unsqueeze(-1)
    if kind == 3:
        return mine.expand(2, *mine.shape), theirs.expand(2, *theirs.shape)
    count = mine.numel()
    rows = int(random.choice([size for size in range(1, count + 1) if count % size == 0]))
    shape = (rows, count // rows) if random.integers(2) else (count,)
    return mine.reshape(shape), theirs.reshape(shape)


def test_other_shapes_of_views_are_views_where_pytorchs_are() -> None:
    random = np.random.default_rng(3)
    copies = 0
    for _ in range(400):
        dims = random.integers(1, 5, random.integers(1, 4))
        elements = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
        mine, theirs = vkml.tensor(elements), torch.tensor(elements)
        for _ in range(random.integers(1, 5)):
            before = mine, theirs
            mine, theirs = _shown(random, mine, theirs)
            is_copy = theirs.untyped_storage().data_ptr() != before[1].untyped_storage().data_ptr()
            copies += is_copy
            assert (mine._base is None) == is_copy, (before[1].shape, before[1].stride(), theirs.shape)
        assert mine.is_contiguous() == theirs.is_contiguous()
        for size, stride, expected in zip(mine.shape, mine.stride(), theirs.stride(), strict=True):
            assert size == 1 or stride == expected
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert copies > 20


def test_a_copy_may_be_changed_before_backward(device_name: str) -> None:
    """As attention is written: heads back beside each other, and the result changed in place."""
    x = vkml.tensor([[1.0, 2.0], [3.0, 4.0]], device=device_name, requires_grad=True)
    for copied in (lambda y: y.T.reshape(4), lambda y: y.T.contiguous()):
        x.grad = None
        y = x.exp()  # which its gradient needs
        changed = copied(y)
        changed.mul_(2)
        (changed.sum() + y.sum()).backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp(x.detach().numpy()), rtol=1e-5)
    y = x.exp()
    y.reshape(4).mul_(2)
    with pytest.raises(vkml.ChangedInPlace):
        y.sum().backward()


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1), (1, 2)])
@pytest.mark.parametrize("offset", [-3, -1, 0, 1, 4])
def test_what_is_written_to_a_diagonal(axes: tuple[int, int], offset: int) -> None:
    elements = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    mine, theirs = vkml.tensor(elements), torch.tensor(elements)
    for base in (mine, theirs):
        base.diagonal(offset, *axes).mul_(-1)
        base.diagonal(offset, *axes)[:1] += 100
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    shown, expected = mine.diagonal(offset, *axes), theirs.diagonal(offset, *axes)
    np.testing.assert_array_equal(shown.numpy(), expected.numpy())
    if expected.numel():
        strides = zip(shown.shape, shown.stride(), expected.stride(), strict=True)
        assert all(size == 1 or stride == other for size, stride, other in strides)
