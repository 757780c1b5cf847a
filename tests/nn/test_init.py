"""How parameters begin: structure exactly, distributions by their moments."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vkml
from vkml import Tensor
from vkml.nn import init


def _stream(seed: int = 0) -> vkml.Generator:  # type: ignore[name-defined]
    return vkml.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (4, 2, 3, 3)])
def test_orthogonal(device_name: str, shape: tuple[int, ...]) -> None:
    x = vkml.empty(*shape, device=device_name)
    assert init.orthogonal_(x, 2.0, generator=_stream()) is x and x.device == device_name
    found = x.numpy().reshape(shape[0], -1) / 2
    rows, columns = found.shape
    product = found @ found.T if rows <= columns else found.T @ found
    np.testing.assert_allclose(product, np.eye(min(rows, columns)), atol=1e-5)


def test_orthogonal_matrices_are_all_equally_likely() -> None:
    """The mean of many is 0, which it is not where the signs of the diagonal are left as they come."""
    stream = _stream()
    found = [init.orthogonal_(vkml.empty(3, 3), generator=stream).numpy() for _ in range(800)]
    assert np.abs(np.mean(found, 0)).max() < 0.08


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"), [(0, 1, -2, 2), (0.5, 2, -1, 1), (0, 1, 2, 3), (-3, 0.5, -4, 0)]
)
def test_truncated_normal(mean: float, std: float, a: float, b: float) -> None:
    x = init.trunc_normal_(vkml.empty(200, 200), mean, std, a, b, generator=_stream()).numpy()
    assert x.min() >= a and x.max() <= b
    # The density's own moments, by quadrature.
    at = np.linspace(a, b, 20001)
    density = np.exp(-0.5 * ((at - mean) / std) ** 2)
    density /= density.sum()
    first = (at * density).sum()
    spread = math.sqrt(((at - first) ** 2 * density).sum())
    assert abs(x.mean() - first) < 5 * spread / 200
    assert abs(x.std() / spread - 1) < 0.02
    tails = [(density[at < edge].sum(), np.mean(x < edge)) for edge in np.linspace(a, b, 7)[1:-1]]
    assert max(abs(one - other) for one, other in tails) < 0.012


def test_truncated_normal_far_from_its_mean() -> None:
    with pytest.warns(UserWarning, match="more than 2 std"):
        x = init.trunc_normal_(vkml.empty(50), 0, 1, 5, 6)
    assert x.amin().item() >= 5


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(4, 3, 3), (4, 2, 3, 5), (6, 4, 3, 3, 1)])
def test_dirac(shape: tuple[int, ...], groups: int) -> None:
    x = init.dirac_(vkml.ones(*shape), groups).numpy()
    wanted = np.zeros(shape)
    outputs = shape[0] // groups
    for group in range(groups):
        for channel in range(min(outputs, shape[1])):
            wanted[(group * outputs + channel, channel, *(size // 2 for size in shape[2:]))] = 1
    np.testing.assert_array_equal(x, wanted)


def test_eye_and_sparse(device_name: str) -> None:
    assert init.eye_(vkml.zeros(2, 3, device=device_name)).tolist() == [[1, 0, 0], [0, 1, 0]]
    x = init.sparse_(vkml.zeros(50, 30, device=device_name), 0.33, 0.5, generator=_stream()).numpy()
    np.testing.assert_array_equal((x == 0).sum(0), [math.ceil(0.33 * 50)] * 30)
    assert abs(x[x != 0].std() - 0.5) < 0.05


def test_the_same_seed() -> None:
    for fill in (
        init.orthogonal_,
        init.trunc_normal_,
        lambda x, generator: init.sparse_(x, 0.5, generator=generator),
    ):
        one, other = (fill(vkml.empty(4, 4), generator=_stream(3)).numpy() for _ in range(2))
        np.testing.assert_array_equal(one, other)
        assert not np.array_equal(one, fill(vkml.empty(4, 4), generator=_stream(4)).numpy())


def test_leaves_stay_leaves() -> None:
    weight = vkml.zeros(3, 3, requires_grad=True)
    for fill in (init.orthogonal_, init.trunc_normal_, init.eye_, init.xavier_normal_):
        fill(weight)
        assert weight.is_leaf and weight.requires_grad


def test_gains() -> None:
    torch = pytest.importorskip("torch")
    names = ["linear", "conv2d", "conv_transpose3d", "sigmoid", "tanh", "relu", "selu", "leaky_relu"]
    for name in names:
        assert init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    assert init.calculate_gain("leaky_relu", 0.3) == torch.nn.init.calculate_gain("leaky_relu", 0.3)


def test_what_cannot_be_meant() -> None:
    for act, words in (
        (lambda: init.calculate_gain("gelu"), "gelu"),
        (lambda: init.calculate_gain("leaky_relu", True), "not a valid"),
        (lambda: init.eye_(vkml.zeros(2)), "2 dimensions"),
        (lambda: init.dirac_(vkml.zeros(2, 2)), "3, 4, or 5"),
        (lambda: init.dirac_(vkml.zeros(3, 2, 1), 2), "divisible"),
        (lambda: init.orthogonal_(vkml.zeros(2)), "2 or more"),
        (lambda: init.sparse_(vkml.zeros(2), 0.1), "2 dimensions"),
    ):
        with pytest.raises(ValueError, match=words):
            act()
    with pytest.warns(UserWarning, match="zero-element"):
        init.kaiming_uniform_(vkml.zeros(2, 0))


def test_not_in_a_capture() -> None:
    weight = vkml.zeros(3, 3)

    @vkml.jit
    def fills(x: Tensor) -> Tensor:
        return init.orthogonal_(weight) * x

    fills(vkml.ones(1))
    with pytest.raises(vkml.CaptureError, match="random"):
        fills(vkml.ones(1))
