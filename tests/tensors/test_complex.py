"""Complex tensors: values against NumPy on every device, gradients against PyTorch and by definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import linalg

RANDOM = np.random.default_rng(3)
Z = (RANDOM.normal(size=(3, 3)) + 1j * RANDOM.normal(size=(3, 3))).astype(np.complex64)
W = RANDOM.normal(size=(3, 3)) + 1j * RANDOM.normal(size=(3, 3))
X = RANDOM.normal(size=(3, 3)).astype(np.float32)

ONE: dict[str, Any] = {
    "abs": np.abs, "angle": np.angle, "real": np.real, "imag": np.imag, "conj": np.conj, "exp": np.exp,
    "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "reciprocal": np.reciprocal,
    "square": np.square, "neg": np.negative, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2,
    "log10": np.log10, "sgn": np.sign, "round": np.round, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite, "isreal": np.isreal,
}  # fmt: skip


def _close(found: vkml.Tensor, expected: Any) -> None:
    elements = found.numpy()
    assert elements.dtype == expected.dtype
    rtol = 1e-12 if expected.dtype.itemsize == 16 or expected.dtype == np.float64 else 2e-6
    np.testing.assert_allclose(elements, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", sorted(ONE))
def test_functions_of_one(name: str, device_name: str) -> None:
    for z in (Z, W, Z[:0]):
        _close(getattr(vkml, name)(vkml.tensor(z, device=device_name)), ONE[name](z))


TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "matmul": lambda x, y: x @ y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "number": lambda x, y: (x + 1j) * 2 - 1 / y,
}


@pytest.mark.parametrize("name", sorted(TWO))
def test_functions_of_two(name: str, device_name: str) -> None:
    act = TWO[name]
    x, y = (vkml.tensor(one, device=device_name) for one in (Z, Z.T.copy()))
    _close(act(x, y), act(Z, Z.T))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(0),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "transposed": lambda x: x.T[1:, ::2],
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reductions_and_indices(name: str, device_name: str) -> None:
    for z in (Z, W):
        _close(REDUCTIONS[name](vkml.tensor(z, device=device_name)), REDUCTIONS[name](z))


def test_types_are_joined_as_pytorch_does() -> None:
    c64, c128 = vkml.tensor([1j]), vkml.tensor([1j], dtype=vkml.complex128)
    assert c64.dtype == vkml.complex64 and vkml.is_complex(c64) and not c64.is_floating_point()
    assert (c64 + vkml.tensor([1.0], dtype=vkml.float64)).dtype == vkml.complex128
    assert (c64 + vkml.tensor([1.0], dtype=vkml.float16)).dtype == vkml.complex64
    assert (c64 + vkml.tensor([1])).dtype == (c64 + 1j).dtype == (c64 * 2.5).dtype == vkml.complex64
    assert (c64 + c128).dtype == (c64 + c128[0]).to(vkml.complex128).dtype == vkml.complex128
    assert (c64 + c128[0]).dtype == vkml.complex64
    assert (vkml.tensor([1.0]) + 1j).dtype == vkml.complex64
    assert (vkml.tensor([1.0], dtype=vkml.float64) + c64[0]).dtype == vkml.complex128
    assert vkml.promote_types(vkml.bfloat16, vkml.complex64) == vkml.complex64
    assert vkml.finfo(vkml.complex128).dtype == vkml.float64 and vkml.finfo(vkml.complex64).bits == 32


def test_made_of_parts_and_back() -> None:
    x, y = vkml.tensor([1.0, float("inf")]), vkml.tensor([2.0, 3.0])
    made = vkml.complex(x, y)
    np.testing.assert_array_equal(made.numpy(), np.array([1 + 2j, complex("inf+3j")], np.complex64))
    np.testing.assert_array_equal(vkml.view_as_real(made).numpy(), [[1, 2], [np.inf, 3]])
    np.testing.assert_array_equal(vkml.view_as_complex(vkml.view_as_real(made)).numpy(), made.numpy())
    np.testing.assert_allclose(vkml.polar(y, y).numpy(), y.numpy() * np.exp(1j * y.numpy()), rtol=1e-6)
    with pytest.raises(RuntimeError, match="float32 and float64"):
        vkml.complex(x, y.double())
    with pytest.raises(RuntimeError, match="real"):
        vkml.imag(x)


def test_looked_at_and_written() -> None:
    z = vkml.tensor([[1 + 2j, 3 - 1j]])
    assert z[0, 1].item() == complex(z[0, 1]) == 3 - 1j and z.tolist() == [[1 + 2j, 3 - 1j]]
    assert repr(z) == "tensor([[1.+2.j, 3.-1.j]])"
    assert (
        repr(z.to(vkml.complex128) * 0.5)
        == "tensor([[0.5000+1.0000j, 1.5000-0.5000j]], dtype=vkml.complex128)"
    )
    z[0, 0] = 5j
    z[z == 3 - 1j] = vkml.tensor(1 + 1j)
    np.testing.assert_array_equal(z.numpy(), [[5j, 1 + 1j]])
    np.testing.assert_array_equal(np.from_dlpack(z), [[5j, 1 + 1j]])
    np.testing.assert_array_equal(vkml.from_dlpack(np.array([1j])).numpy(), [1j])
    assert z.real.tolist() == [[0, 1]] and z.mH.tolist() == [[-5j], [1 - 1j]]
    assert z.bool().tolist() == [[True, True]] and z.to(vkml.float32).tolist() == [[0, 1]]
    with pytest.raises(RuntimeError, match="no real number"):
        float(z[0, 0])
    assert float(z[0, 0] - 5j) == int(z[0, 0] - 5j) == 0


def test_what_has_no_meaning_is_refused() -> None:
    z = vkml.tensor([1j])
    refused: list[Callable[[], Any]] = [
        lambda: z < z, lambda: z // z, lambda: z & z, lambda: vkml.floor(z), lambda: vkml.maximum(z, z),
        lambda: vkml.randn(2, dtype=vkml.complex64), lambda: vkml.erf(z), lambda: vkml.atan2(z, z),
        lambda: vkml.sort(z), lambda: z % z, lambda: vkml.erfc(z), lambda: vkml.erfinv(z),
        lambda: vkml.trunc(z), lambda: vkml.frac(z), lambda: vkml.signbit(z),
    ]  # fmt: skip
    for act in refused:
        with pytest.raises(RuntimeError):
            act().numpy()


def test_products_conjugate_where_pytorch_does() -> None:
    z, w = vkml.tensor(W[0]), vkml.tensor(W[1])
    _close(vkml.vdot(z, w), np.vdot(W[0], W[1]))
    _close(linalg.vecdot(z, w), np.vdot(W[0], W[1]))
    _close(vkml.dot(z, w), W[0] @ W[1])
    _close(vkml.tensordot(z, w, 0), np.tensordot(W[0], W[1], 0))
    _close(vkml.einsum("i,j->ij", z, w), np.outer(W[0], W[1]))


def test_functions_of_each_part_and_statistics() -> None:
    nan, inf = float("nan"), float("inf")
    found = vkml.nan_to_num(vkml.tensor([complex(nan, 1), complex(2, inf), 3j]), posinf=9.0)
    assert found.tolist() == [1j, 2 + 9j, 3j]
    _close(vkml.cov(vkml.tensor(W)), np.cov(W))
    _close(vkml.cov(vkml.tensor(W[0])), np.cov(W[0]))
    _close(vkml.corrcoef(vkml.tensor(W)), np.corrcoef(W))


def test_saved_and_loaded(tmp_path: Any) -> None:
    vkml.save({"z": vkml.tensor(W), "w": vkml.tensor(Z)}, tmp_path / "z.safetensors")
    found = vkml.load(tmp_path / "z.safetensors")
    np.testing.assert_array_equal(found["z"].numpy(), W)
    np.testing.assert_array_equal(found["w"].numpy(), Z)


# -- gradients -----------------------------------------------------------------------------------------------

GRADIENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda V, z, x: z + x,
    "sub": lambda V, z, x: x - z * 2 - z,
    "mul": lambda V, z, x: z * z * x * (1 + 2j),
    "div": lambda V, z, x: x / z,
    "matmul": lambda V, z, x: z @ x.to(z.dtype) @ z,
    "batches": lambda V, z, x: V.stack([z, z * 2]) @ V.stack([z, z]),
    "einsum": lambda V, z, x: V.einsum("ij,kj->ik", z, z * x),
    "abs": lambda V, z, x: abs(z) * x,
    "angle": lambda V, z, x: V.angle(z),
    "sgn": lambda V, z, x: V.sgn(z),
    "real": lambda V, z, x: z.real * x,
    "imag": lambda V, z, x: z.imag * x,
    "conj": lambda V, z, x: V.conj(z) * z,
    "parts": lambda V, z, x: V.complex(x, 2 * x) * z,
    "polar": lambda V, z, x: V.polar(abs(z), x),
    "exp": lambda V, z, x: (z * x).exp(),
    "log": lambda V, z, x: z.log(),
    "sqrt": lambda V, z, x: z.sqrt(),
    "sin": lambda V, z, x: z.sin(),
    "tanh": lambda V, z, x: z.tanh(),
    "power": lambda V, z, x: z**x + z**3,
    "sum": lambda V, z, x: (z * x).sum(0),
    "prod": lambda V, z, x: z.prod(),
    "cumprod": lambda V, z, x: z.cumprod(0),
    "index": lambda V, z, x: z[:, 1:] * z[0, 0],
    "where": lambda V, z, x: V.where(x > 0, z, z * z),
    "places": lambda V, z, x: z[V.tensor([0, 2, 2]).to(x.device)] * z[0],
    "gather": lambda V, z, x: V.gather(z, 0, V.tensor([[0, 2, 1]]).to(x.device)),
    "added": lambda V, z, x: V.index_add(z, 0, V.tensor([0, 0, 1]).to(x.device), z * x),
    "joined": lambda V, z, x: V.cat([z, z * z], 1).repeat(2, 1),
    "std": lambda V, z, x: V.std(z, 0),
    "kron": lambda V, z, x: V.kron(z, z),
    "inv": lambda V, z, x: V.linalg.inv(z),
    "det": lambda V, z, x: V.linalg.det(z),
    "slogdet": lambda V, z, x: V.linalg.slogdet(z)[0] * V.linalg.slogdet(z)[1],
    "cholesky": lambda V, z, x: V.linalg.cholesky(z @ z.mH) * x,
    # Of vectors, what does not hang on their phases.
    "qr": lambda V, z, x: V.linalg.qr(z[:, :2])[0] @ (V.linalg.qr(z[:, :2])[1] ** 2) * x[:, :2],
    "eigh": lambda V, z, x: abs(V.linalg.eigh(z @ z.mH)[1]) * x + V.linalg.eigh(z + z.mH)[0],
    "svd": lambda V, z, x: (lambda u, _, vh: u @ (vh * x[:2]))(*V.linalg.svd(z[:2], full_matrices=False)),
    "svdvals": lambda V, z, x: V.linalg.svdvals(z) * x[0],
    "solve": lambda V, z, x: V.linalg.solve(z, z.T + x),
    "eigvals": lambda V, z, x: abs(V.linalg.eigvals(z)).sum(),
    "matrix_exp": lambda V, z, x: V.linalg.matrix_exp(z) * x,
    "householder": lambda V, z, x: V.linalg.householder_product(z, z[0, :2] * x[0, :2]),
    "norm": lambda V, z, x: V.linalg.vector_norm(z) + V.norm(z, 1),
}


def _loss(V: Any, z: Any, x: Any, name: str) -> Any:
    made = GRADIENTS[name](V, z, x)
    return ((made * (1 - 0.5j)).real if made.dtype in (V.complex64, V.complex128) else made).sum()


@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_are_derivatives_by_both_parts(name: str) -> None:
    """That by z = x + iy is the derivative by x plus i times that by y: of finite differences."""
    z, x = vkml.tensor(W, requires_grad=True), vkml.tensor(X, dtype=vkml.float64)
    _loss(vkml, z, x, name).backward()
    assert z.grad is not None
    direction = RANDOM.normal(size=W.shape) + 1j * RANDOM.normal(size=W.shape)
    step = 1e-6

    def at(times: float) -> float:
        return float(_loss(vkml, vkml.tensor(W + times * step * direction), x, name).item())

    slope = (at(1) - at(-1)) / (2 * step)
    found = float((z.grad.numpy().conj() * direction).real.sum())
    assert found == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_are_those_of_pytorch(name: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for V, options in ((vkml, {"device": device_name}), (torch, {})):
        z, x = V.tensor(Z, **options).requires_grad_(), V.tensor(X, **options).requires_grad_()
        _loss(V, z, x, name).backward()
        found.append((z.grad, x.grad))
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            expected = theirs.resolve_conj().numpy()
            assert mine.numpy().dtype == expected.dtype
            np.testing.assert_allclose(mine.numpy(), expected, rtol=2e-4, atol=2e-5 * np.abs(expected).max())


def test_captured_steps(device_name: str) -> None:
    """Of gradient descent on |w - t|², whose gradient is 2 (w - t)."""
    w, target = vkml.tensor(Z, device=device_name, requires_grad=True), vkml.tensor(Z * 0, device=device_name)
    optimizer = vkml.optim.SGD([w], lr=0.25)

    @vkml.jit
    def step(target: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = (abs(w - target) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(target).item() for _ in range(4)]
    np.testing.assert_allclose(losses, (np.abs(Z) ** 2).sum() * 0.25 ** np.arange(4), rtol=1e-5)
    np.testing.assert_allclose(w.detach().numpy(), Z / 16, rtol=1e-5)


def test_second_derivatives() -> None:
    """Of |z|⁴ = (x² + y²)² in z = 1 + 2i along (1, 1): by hand."""
    z = vkml.tensor(np.array(1 + 2j), requires_grad=True)
    size = (z * vkml.conj(z)).real
    [first] = vkml.autograd.grad(size * size, [z], create_graph=True)
    assert first.item() == pytest.approx(4 * 5 * (1 + 2j))
    [second] = vkml.autograd.grad(first.real + first.imag, [z])
    # f_xx = 12x² + 4y² = 28, f_xy = 8xy = 16, f_yy = 4x² + 12y² = 52.
    assert second.item() == pytest.approx((28 + 16) + (16 + 52) * 1j)


def test_gradients_that_are_not_there_are_refused() -> None:
    z = vkml.tensor(W, requires_grad=True)
    with pytest.raises(RuntimeError):
        z.sum().backward()  # of a complex number there is no gradient without a cotangent


def test_linear_algebra_of_complex_matrices() -> None:
    a = vkml.tensor(W)
    h = a @ a.mH + vkml.eye(3, dtype=vkml.complex128)
    values, vectors = linalg.eig(a)
    _close(a @ vectors, (vectors * values).numpy())
    _close(linalg.eigvals(vkml.tensor(X)) * 0, np.zeros(3, np.complex64))
    values, vectors = linalg.eigh(h)
    assert values.dtype == vkml.float64
    _close(h @ vectors, (vectors * values).numpy())
    upper = linalg.cholesky(h, upper=True)
    _close(upper.mH @ upper, h.numpy())
    u, s, vh = linalg.svd(a)
    assert s.dtype == vkml.float64
    _close(u * s @ vh, W)
    q, r = linalg.qr(a)
    _close(q @ r, W)
    _close(linalg.pinv(a[:, :2]), np.linalg.pinv(W[:, :2]))
    sign, size = linalg.slogdet(a)
    _close(sign * size.exp(), np.linalg.det(W))
    assert linalg.matrix_norm(a).dtype == linalg.vector_norm(a, 3).dtype == vkml.float64
    assert linalg.matrix_rank(a).item() == 3
    values, vectors = np.linalg.eig(W)
    _close(linalg.matrix_exp(a), vectors * np.exp(values) @ np.linalg.inv(vectors))
    v, tau = np.tril(W, -1) + np.eye(3), W[0, :2]
    reflections = [np.eye(3) - t * np.outer(v[:, at], v[:, at].conj()) for at, t in enumerate(tau)]
    _close(linalg.householder_product(a, vkml.tensor(tau)), reflections[0] @ reflections[1])


def _changed(module: Any) -> list[Any]:
    """What views of complex numbers write, and gradients through them."""
    z = module.tensor([[1 + 2j, 3 - 1j], [0.5j, 2.0]], requires_grad=True)
    w = z * 1
    w.real[0] = 5.0
    w.imag.mul_(2)
    parts = module.view_as_real(w)
    parts[1, 1, 0] = -7.0
    parts[..., 1] += parts[..., 0]
    pairs = module.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    own = pairs * 1
    numbers = module.view_as_complex(own)
    numbers[0] = 8 + 9j
    numbers.mul_(1j)
    (w.abs().sum() + own.sum() + parts.square().sum()).backward()
    return [each.detach().numpy() for each in (w, w.real, w.imag, parts, own, numbers, z.grad, pairs.grad)]


def test_parts_are_views_as_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for found, wanted in zip(_changed(vkml), _changed(torch), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["sigmoid", "logsumexp"])
def test_functions_of_complex_numbers_as_pytorch(name: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    arguments = [(1,), (0, True), ((0, 1),)] if name == "logsumexp" else [()]
    for given in arguments:
        mine = vkml.tensor(W, device=device_name, requires_grad=True)
        theirs = torch.tensor(W, requires_grad=True)
        found, wanted = getattr(vkml, name)(mine, *given), getattr(torch, name)(theirs, *given)
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
        found.abs().sum().backward()
        wanted.abs().sum().backward()
        assert mine.grad is not None and theirs.grad is not None
        np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-10)
