"""Weights of a norm, of a spectral norm, or orthogonal, as in `torch.nn.utils.parametrizations`."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml import linalg
from vkml.nn import functional, init
from vkml.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from vkml.nn.module import Module
from vkml.nn.utils.parametrize import register_parametrization
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute_later
from vkml.tensors.creation import empty, eye, tensor, zeros
from vkml.tensors.random import randn

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

Array = np.ndarray[Any, Any]
_FIRST_ITERATIONS = 15
"""Of the power method when a spectral norm begins, as PyTorch does."""


def _tensor_of(module: Module, name: str) -> Tensor:
    found = getattr(module, name, None)
    if not isinstance(found, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return found


# -- weight normalisation ------------------------------------------------------------------------------------


class _WeightNorm(Module):
    """g v / ‖v‖; the norms are of all axes but one, or of all (-1)."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def _norm(self, v: Tensor) -> Tensor:
        if self.dim == -1:
            return op.norm(v)
        return op.norm(v, 2, [axis for axis in range(v.ndim) if axis != self.dim], True)

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return op.mul(weight_v, op.div(weight_g, self._norm(weight_v)))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._norm(weight), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Has a weight learned as a magnitude (`original0`) and a direction (`original1`).

    Args:
        module: whose weight it is.
        name: the weight's.
        dim: the axis for each of whose places there is a magnitude; None for one of the whole weight.

    Returns:
        the module.

    Raises:
        ValueError: there is no such weight.
        IndexError: it has no such axis.

    Source: T. Salimans, D. Kingma, "Weight normalization", 2016.

    Example:
        >>> from vkml import nn
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(20, 40))
        >>> layer.parametrizations.weight.original0.shape
        vkml.Size([40, 1])
    """
    rank = _tensor_of(module, name).ndim
    if dim is not None and not -1 <= dim < rank:
        raise IndexError(f"weight_norm: dim has to be None or an axis of a weight of {rank} axes, not {dim}")
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


# -- spectral normalisation ----------------------------------------------------------------------------------


class _SpectralNorm(Module):
    """A weight over its largest singular value, which the power method estimates.

    Args:
        weight: as it is now.
        n_power_iterations: at each use while it is trained.
        dim: the axis that is the matrix's rows.
        eps: what norms are at least.
    """

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        ndim = weight.ndim
        if not -ndim <= dim < ndim:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{ndim}, {ndim - 1}] but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps = dim if dim >= 0 else dim + ndim, eps
        if ndim > 1:
            self.n_power_iterations = n_power_iterations
            with no_grad():
                matrix = self._matrix(weight.detach())
                for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                    drawn = init.normal_(empty(size, dtype=weight.dtype, device=weight.device))
                    self.register_buffer(name, functional.normalize(drawn, dim=0, eps=eps))
                self._iterate(matrix, _FIRST_ITERATIONS)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.dim:
            weight = op.permute(weight, self.dim, *(axis for axis in range(weight.ndim) if axis != self.dim))
        return op.flatten(weight, 1)

    @no_grad()
    def _iterate(self, matrix: Tensor, times: int) -> None:
        """Moves `_u` and `_v` towards the first singular vectors."""
        u, v = self._u, self._v
        for _ in range(times):
            u = functional.normalize(op.matmul(matrix, v), dim=0, eps=self.eps)
            v = functional.normalize(op.matmul(u, matrix), dim=0, eps=self.eps)
        for held, found in ((self._u, u), (self._v, v)):
            compute_later(held.copy_(found).value)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return functional.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next use moves these, which is no change of this one's
        return op.div(weight, op.sum(op.mul(u, op.matmul(matrix, v))))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Module:  # fmt: skip
    """Has a weight be divided by its largest singular value.

    That is estimated by the power method, which goes on at each use while the module is trained. A weight of
    more than two axes is taken as a matrix; one of one axis is divided by its norm.

    Args:
        module: whose weight it is.
        name: the weight's.
        n_power_iterations: of the power method, at each use.
        eps: what norms are at least.
        dim: the axis that is the matrix's rows; where left out 0, of transposed convolutions 1.

    Returns:
        the module.

    Raises:
        ValueError: there is no such weight, or a number of iterations is not positive.
        IndexError: the weight has no such axis.

    Source: T. Miyato et al., "Spectral normalization for generative adversarial networks", 2018.
    """
    weight = _tensor_of(module, name)
    if dim is None:
        dim = 1 if isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d) else 0
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))


# -- orthogonal weights --------------------------------------------------------------------------------------

_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """A matrix of orthonormal columns, or of rows where it has fewer of them.

    Args:
        weight: as it is now.
        orthogonal_map: its name.
        use_trivialization: whether what is learned is the way from `base`, which is orthogonal itself.
    """

    base: Tensor

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        self.has_base = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        is_wide = x.shape[-2] < x.shape[-1]
        if is_wide:
            x = x.mT
        rows, columns = x.shape[-2:]
        if self.orthogonal_map == "householder":
            below = op.tril(x, -1)
            tau = op.div(2.0, op.add(op.sum(op.square(below), -2), 1.0))
            # The diagonal holds signs, which are not learned.
            signs = op.diagonal(x, 0, -2, -1).detach().int().to(x.dtype)
            q = op.mul(linalg.householder_product(below, tau), op.unsqueeze(signs, -2))
        else:
            x = op.tril(x)
            if rows != columns:
                nothing = zeros(*x.shape[:-1], rows - columns, dtype=x.dtype, device=x.device)
                x = op.cat([x, nothing], -1)
            skew = op.sub(x, x.mT)
            if self.orthogonal_map == "matrix_exp":
                q = linalg.matrix_exp(skew)
            else:
                half = op.mul(skew, 0.5)
                one = eye(rows, dtype=x.dtype, device=x.device)
                one = op.expand(one, *x.shape[:-2], rows, rows)
                q = linalg.solve(op.sub(one, half), op.add(one, half))
            if rows != columns:
                q = q[..., :columns]
        if self.has_base:
            q = op.matmul(self.base, q)
        return q.mT if is_wide else q

    @no_grad()
    def right_inverse(self, q: Tensor) -> Tensor:
        if q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape "
                f"{q.shape}."
            )
        is_wide = q.shape[-2] < q.shape[-1]
        tall: Array = (q.mT if is_wide else q).detach().numpy()
        rows, columns = tall.shape[-2:]
        if not self.has_base:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley parametrizations "
                    "when use_trivialization=False."
                )
            found = _reflections(tall)
            return tensor(np.swapaxes(found, -1, -2) if is_wide else found, device=q.device)
        if rows != columns:
            more = randn(*tall.shape[:-1], rows - columns, dtype=q.dtype).numpy()
            tall = _orthogonalised(np.concatenate([tall, more], -1))
        elif not _is_orthogonal(tall):
            tall = _orthogonalised(tall)
        base = tensor(tall, device=q.device)
        if isinstance(getattr(self, "base", None), Tensor):
            self.base.copy_(base)
        else:
            self.base = base
        # Of Householder's map the diagonal is the signs: with these it is the identity.
        start = np.broadcast_to(-np.eye(*q.shape[-2:], dtype=tall.dtype), q.shape)
        return tensor(np.ascontiguousarray(start), device=q.device)


def _is_orthogonal(q: Array) -> bool:
    rows, columns = q.shape[-2:]
    error = np.abs(np.swapaxes(q, -1, -2) @ q - np.eye(columns, dtype=q.dtype))
    return bool((error <= 10.0 * rows * np.finfo(q.dtype).eps).all())


def _orthogonalised(a: Array) -> Array:
    """Q of A = Q R of which R has a positive diagonal."""
    q, r = np.linalg.qr(a)
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
    return np.asarray(q * signs[..., None, :], a.dtype)


def _reflections(a: Array) -> Array:
    """Householder's vectors of a matrix below the diagonal, and on it the signs of R's."""
    packed, tau = np.linalg.qr(a, mode="raw")
    found = np.swapaxes(packed, -1, -2).astype(a.dtype)
    at = np.arange(a.shape[-1])
    signs = np.sign(found[..., at, at])
    found[..., at, at] = np.where(tau == 0, -signs, signs)
    return found


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *,
    use_trivialization: bool = True,
) -> Module:  # fmt: skip
    """Has a weight, or each matrix of a batch [..., m, n], be orthogonal.

    Its columns are orthonormal, or its rows where it has fewer of these. It begins as it is, made orthogonal
    by the QR decomposition where it is not.

    Args:
        module: whose weight it is.
        name: the weight's.
        orthogonal_map: "matrix_exp", the exponential of a skew-symmetric matrix; "cayley",
            (I - A/2)⁻¹(I + A/2) of one; "householder", a product of reflections. Where left out "matrix_exp"
            for square matrices and "householder" for others.
        use_trivialization: whether the matrix that it begins as is kept as a buffer, `base`, and the way from
            there is learned (M. Lezcano-Casado, "Trivializations for gradient-based optimization on
            manifolds", 2019).

    Returns:
        the module.

    Raises:
        ValueError: there is no such weight, it has less than two axes, or the map does not exist.

    Example:
        >>> import vkml
        >>> from vkml import nn
        >>> layer = nn.utils.parametrizations.orthogonal(nn.Linear(20, 40))
        >>> vkml.allclose(layer.weight.T @ layer.weight, vkml.eye(20), atol=1e-5)
        True
    """
    weight = _tensor_of(module, name)
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(
            'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: ' + orthogonal_map
        )
    made = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)
