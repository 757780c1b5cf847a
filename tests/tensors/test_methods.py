"""Operations as methods and in place: what they write, through views, what they refuse; without PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vkml
import vkml.tracing
from vkml import Tensor

NAN, INF = float("nan"), float("inf")


def test_in_place_operations_write_the_tensor_and_its_base(device_name: str) -> None:
    base = vkml.arange(6, dtype=vkml.float32, device=device_name).reshape(2, 3)
    row = base[1]
    assert row.pow_(2).neg_() is row
    assert base.tolist() == [[0, 1, 2], [-9, -16, -25]]
    base.diagonal().fill_(7)
    assert base.tolist() == [[7, 1, 2], [-9, 7, -25]]
    base.clamp_min_(0).masked_fill_(base == 7, -1)
    assert base.tolist() == [[-1, 1, 2], [0, -1, 0]]
    base //= 2
    base %= 3
    assert base.tolist() == [[2, 0, 1], [0, 2, 0]]
    base.scatter_add_(
        1, vkml.tensor([[0, 0, 2], [1, 1, 1]], device=device_name), vkml.ones(2, 3, device=device_name)
    )
    assert base.tolist() == [[4, 0, 2], [0, 5, 0]]
    base.index_put_(
        (vkml.tensor([0, 0], device=device_name), vkml.tensor([1, 1], device=device_name)), 1.0, True
    )
    assert base.tolist() == [[4, 2, 2], [0, 5, 0]]
    base.index_add_(0, vkml.tensor([1], device=device_name), base[:1])
    assert base.tolist() == [[4, 2, 2], [4, 7, 2]]
    whole = vkml.tensor([5, 6], device=device_name)
    whole <<= 2
    whole |= 1
    assert whole.tolist() == [21, 25]


def test_edges_are_pytorchs() -> None:
    assert vkml.angle(vkml.tensor([INF, -INF, 0.0, -0.0, -2.0])).tolist() == pytest.approx(
        [0, np.pi, 0, 0, np.pi]
    )
    assert vkml.angle(vkml.tensor([-1.0], dtype=vkml.float64)).item() == np.pi
    assert vkml.angle(vkml.tensor([NAN, 3.0])).isnan().tolist() == [True, False]
    pair = vkml.tensor([1.0, 2.0])
    assert vkml.var(pair, 0, correction=3).item() == vkml.std(pair, 0, correction=2).item() == INF
    assert vkml.var(pair[:1], 0).isnan().item() and vkml.var(pair[:0]).isnan().item()
    rows = vkml.tensor([[3.0, -4.0], [0.0, 0.0]])
    for norm in (vkml.norm, vkml.linalg.vector_norm):
        found = {p: norm(rows, p, 1).tolist() for p in (0, 1, 2, INF, -INF)}
        assert found == {0: [2, 0], 1: [7, 0], 2: [5, 0], INF: [4, 0], -INF: [3, 0]}
        assert (
            norm(rows[0, 1], 0).item() == 1
            and norm(rows[0, 1], 3).item() == norm(rows[0, 1], -INF).item() == 4
        )
        assert norm(rows[:0], INF).item() == norm(rows[:0], 0).item() == 0
        with pytest.raises(RuntimeError, match="no elements"):
            norm(rows[:0], -INF)
    assert (-vkml.tensor([1, 0], dtype=vkml.uint8)).tolist() == [255, 0]
    for refused in (
        lambda: -vkml.tensor([True]), lambda: vkml.zeros(2, -1), lambda: vkml.arange(0, 5, -1),
        lambda: vkml.arange(0, 5, 0), lambda: vkml.arange(-1), lambda: vkml.linspace(0, 1, -1),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            refused()
    assert vkml.arange(3, 3).shape == (0,)
    for labels, classes in (([-1], -1), ([0], 0), ([0], -2), ([], -1)):
        with pytest.raises(RuntimeError, match="one_hot"):
            vkml.nn.functional.one_hot(vkml.tensor(labels, dtype=vkml.int64), classes)
    nothing = pair[:0]
    assert [len(vkml.split(nothing, 0)), len(vkml.split(nothing, 2)), len(nothing.chunk(3))] == [1, 1, 3]
    assert [part.tolist() for part in pair.chunk(5)] == [[1], [2]]
    for wrong in (0, -1, [], [1], [3, -1]):
        with pytest.raises(RuntimeError, match="axis"):
            vkml.split(pair, wrong)
    with pytest.raises(RuntimeError, match="parts"):
        vkml.chunk(pair, 0)
    with pytest.raises(IndexError):
        vkml.chunk(pair, 2, 3)


def test_in_place_operations_keep_type_and_shape() -> None:
    x = vkml.arange(3)
    with pytest.raises(RuntimeError, match="float"):
        x.exp_()
    with pytest.raises(RuntimeError, match="shape"):
        vkml.ones(3).mul_(vkml.ones(2, 3))
    assert x.tolist() == [0, 1, 2]
    leaf = vkml.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.exp_()
    doubled = leaf * 2
    doubled.sqrt_().sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), 0.5 * np.sqrt(2) * np.ones(2), rtol=1e-6)  # type: ignore[union-attr]


def test_places_come_with_values() -> None:
    x = vkml.tensor([[3.0, 1.0, 2.0], [1.0, NAN, 0.0]])
    most = x.max(1)
    assert most.values.tolist()[0] == 3
    assert np.isnan(most.values.numpy()[1])
    assert most.indices.tolist() == [0, 1]
    assert x.min(dim=1, keepdim=True).values.shape == (2, 1)
    values, places = x.sort(1)
    assert places.tolist() == [[1, 2, 0], [2, 0, 1]]
    assert x.nanmedian(1).values.tolist() == [2, 0]
    assert np.isnan(x.median(1).values.numpy()[1])
    assert x.cummax(1).indices.tolist() == [[0, 0, 0], [0, 1, 1]]
    assert float(x.nansum()) == 7
    assert values[0].tolist() == [1, 2, 3]


def test_nothing_and_single_elements() -> None:
    nothing, one = vkml.zeros(0, 3), vkml.tensor(2.0)
    assert nothing.any().item() is False
    assert nothing.all().item() is True
    assert nothing.sum().item() == 0
    assert nothing.prod().item() == 1
    assert nothing.cumsum(0).shape == nothing.flip(0).shape == nothing.sort(1)[0].shape == (0, 3)
    assert nothing.unique().shape == (0,)
    assert nothing.nonzero().shape == (0, 2)
    assert one.nonzero().shape == (1, 0)
    assert one.max(0).indices.item() == 0
    assert one.sort()[0].item() == one.median().item() == one.flip().item() == 2
    assert one.cumsum(0).item() == 2
    assert one.diff is not None
    assert vkml.where(vkml.tensor([0, 1, 1]))[0].tolist() == [1, 2]
    for call in (nothing.max, lambda: nothing.max(0), lambda: nothing.argmax(), lambda: one.unbind()):
        with pytest.raises((RuntimeError, IndexError)):
            call()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: x.max(5), IndexError, "axis 5"),
        (lambda x: x.gather(0, vkml.zeros(2, 3)), RuntimeError, "int64"),
        (lambda x: x.scatter(0, vkml.zeros(4, 3, dtype=vkml.int64), vkml.ones(2, 3)), RuntimeError, "source"),
        (lambda x: x.masked_fill(x, 1.0), RuntimeError, "bools"),
        (lambda x: x.index_add(0, vkml.tensor([0]), vkml.ones(2, 3)), RuntimeError, "the index needs"),
        (lambda x: x.mv(vkml.ones(3, 1)), RuntimeError, "1 axes"),
        (lambda x: x.mm(vkml.ones(2, 3)), RuntimeError, "multiplied"),
        (lambda x: vkml.einsum("ij,jk", x, vkml.ones(2, 2)), RuntimeError, "Einsum"),
        (lambda x: x.tensor_split(0), RuntimeError, "part"),
        (lambda x: x.narrow(0, 1, 5), RuntimeError, "narrow"),
        (lambda x: x.kthvalue(9), RuntimeError, "k is 9"),
        (lambda x: x.quantile(2.0), RuntimeError, "q lies"),
        (lambda x: x.movedim((0, 0), (0, 1)), RuntimeError, "twice"),
        (lambda x: x.repeat(2), RuntimeError, "axes"),
        (lambda x: x.bincount(), RuntimeError, "integers"),
        (lambda x: vkml.linalg.inv(x), RuntimeError, "square"),
        (lambda x: vkml.linalg.det(vkml.ones(2, 2, dtype=vkml.int64)), RuntimeError, "float32 or float64"),
        (lambda x: x.cross(x.mT), RuntimeError, "fit"),
        (lambda x: x.bitwise_and(x), RuntimeError, "not defined"),
        (lambda x: x.unfold(0, 4, 1), RuntimeError, "windows"),
    ],
)
def test_what_cannot_be_done(call: Callable[[Tensor], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(vkml.ones(2, 3))


def test_what_an_operator_refuses_is_an_error_of_torchs_kind() -> None:
    """Types and sizes that no check of vkml's own has looked at before."""
    x = vkml.ones(2, 3)
    with pytest.raises(RuntimeError, match="Concat: ") as caught:
        vkml.tracing.apply("Concat", x.value, vkml.ones(3, 2).value, axis=0)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, vkml.OperandError)


def test_one_hot_and_windows(device_name: str) -> None:
    from vkml.tensors.operations import one_hot

    x = vkml.tensor([2, 0], device=device_name)
    assert one_hot(x).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert vkml.arange(5, device=device_name).unfold(0, 3, 2).tolist() == [[0, 1, 2], [2, 3, 4]]
    assert vkml.arange(3, device=device_name).repeat_interleave(vkml.tensor([1, 0, 2])).tolist() == [0, 2, 2]
    assert vkml.arange(4, device=device_name).roll(1).tolist() == [3, 0, 1, 2]


def test_exchange_by_dlpack(device_name: str) -> None:
    x = vkml.arange(6, dtype=vkml.float32, device=device_name).reshape(2, 3)
    assert np.from_dlpack(x).tolist() == x.tolist()
    array = np.arange(3.0)
    made = vkml.from_dlpack(array)
    array[0] = 9
    assert made.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="streams"):
        x.__dlpack__(stream=3)


def test_linear_algebra_solves() -> None:
    a = vkml.tensor([[2.0, 1.0], [1.0, 3.0]])
    b = vkml.tensor([1.0, 2.0])
    np.testing.assert_allclose((a @ vkml.linalg.solve(a, b)).numpy(), b.numpy(), rtol=1e-6)
    found = vkml.linalg.lstsq(
        vkml.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), vkml.tensor([[1.0], [3.0], [5.0]])
    )
    np.testing.assert_allclose(found.solution.numpy(), [[1.0], [2.0]], atol=1e-5)
    assert int(found.rank) == 2
    with pytest.raises(vkml.LinAlgError, match="positive definite"):
        vkml.linalg.cholesky(-a).numpy()
