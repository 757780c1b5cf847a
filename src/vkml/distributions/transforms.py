"""Monotone functions of elements, by which what is drawn is changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Parameter
from vkml.nn.functional import softplus
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class Transform:
    """A monotone function of elements with an inverse."""

    sign: Parameter = 1
    """1 where it grows, -1 where it falls."""

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inverse(self, y: Tensor) -> Tensor:
        """What becomes y.

        Args:
            y: of any shape.
        """
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the derivative.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ExpTransform(Transform):
    """e to the power of x."""

    def __call__(self, x: Tensor) -> Tensor:
        return op.exp(x)

    def inverse(self, y: Tensor) -> Tensor:
        """The logarithm.

        Args:
            y: above 0.
        """
        return op.log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """x.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        return x


class SigmoidTransform(Transform):
    """1 / (1 + e to the power of -x)."""

    def __call__(self, x: Tensor) -> Tensor:
        return op.sigmoid(x)

    def inverse(self, y: Tensor) -> Tensor:
        """The logarithm of y / (1 - y).

        Args:
            y: between 0 and 1.
        """
        return op.log(y) - op.log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the derivative.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        return -softplus(-x) - softplus(x)


class TanhTransform(Transform):
    """The hyperbolic tangent."""

    def __call__(self, x: Tensor) -> Tensor:
        return op.tanh(x)

    def inverse(self, y: Tensor) -> Tensor:
        """Its inverse.

        Args:
            y: between -1 and 1.
        """
        return op.atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the derivative, without 1 - y², which is rounded.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        return (math.log(2) - x - softplus(x * -2)) * 2


class AffineTransform(Transform):
    """loc + scale · x.

    Args:
        loc: what is added.
        scale: by which x is multiplied, not 0.
    """

    def __init__(self, loc: Parameter, scale: Parameter) -> None:
        self.loc, self.scale = loc, scale

    @property
    def sign(self) -> Parameter:  # type: ignore[override]
        """1 where it grows, -1 where it falls."""
        return op.sign(self.scale) if isinstance(self.scale, Tensor) else math.copysign(1, self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def inverse(self, y: Tensor) -> Tensor:
        """What becomes y.

        Args:
            y: of any shape.
        """
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the factor.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        size = op.log(op.abs(self.scale)) if isinstance(self.scale, Tensor) else math.log(abs(self.scale))
        return x * 0 + size

    def __eq__(self, other: object) -> bool:
        return type(other) is AffineTransform and other.loc is self.loc and other.scale is self.scale

    def __hash__(self) -> int:
        return hash((id(self.loc), id(self.scale)))


class ComposeTransform(Transform):
    """Several, one after the other.

    Args:
        parts: the first of which is applied first.
    """

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)

    @property
    def sign(self) -> Parameter:  # type: ignore[override]
        """1 where it grows, -1 where it falls."""
        return math.prod([part.sign for part in self.parts])

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        """What becomes y.

        Args:
            y: of any shape.
        """
        for part in reversed(self.parts):
            y = part.inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the parts'.

        Args:
            x: where it is taken.
            y: what x becomes.
        """
        total = x * 0
        for part in self.parts:
            made = part(x)
            total, x = total + part.log_abs_det_jacobian(x, made), made
        return total

    def __eq__(self, other: object) -> bool:
        return type(other) is ComposeTransform and other.parts == self.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))
