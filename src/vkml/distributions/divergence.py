"""How far distributions are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from vkml.distributions.bernoulli import Bernoulli
from vkml.distributions.categorical import Categorical
from vkml.distributions.counts import Binomial
from vkml.distributions.distribution import Distribution
from vkml.distributions.exponential import Exponential
from vkml.distributions.geometric import Geometric
from vkml.distributions.independent import Independent, summed
from vkml.distributions.laplace import Laplace
from vkml.distributions.normal import Normal
from vkml.distributions.probability import OfProbability
from vkml.distributions.transformed import TransformedDistribution
from vkml.distributions.uniform import Uniform
from vkml.nn.functional import softplus
from vkml.tensors import Tensor
from vkml.tensors import operations as op

F = TypeVar("F", bound=Callable[..., Tensor])
_known: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[F], F]:
    """A decorator of a function that computes the divergence of two kinds of distributions.

    Args:
        type_p: of the first.
        type_q: of the second.
    """

    def register(function: F) -> F:
        _known[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of q from p: the mean, over draws of p, of what log p exceeds log q by.

    Args:
        p: of the kind of q, or normal, uniform or Laplace, or of a kind that `register_kl` knows.
        q: likewise; batches broadcast.

    Raises:
        NotImplementedError: none is known for these kinds.

    Example:
        >>> import vkml
        >>> from vkml.distributions import Normal, kl_divergence
        >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item()
        0.5
    """
    for one in type(p).__mro__:
        for other in type(q).__mro__:
            found = _known.get((one, other))
            if found is not None:
                return found(p, q)
    raise NotImplementedError(
        f"the divergence of {type(q).__name__} from {type(p).__name__} is not known; see register_kl"
    )


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Tensor:
    ratio = op.square(p.scale / q.scale)
    apart = op.square((p.loc - q.loc) / q.scale)
    return (ratio + apart - 1 - op.log(ratio)) * 0.5


@register_kl(Bernoulli, Bernoulli)
def _bernoullis(p: OfProbability, q: OfProbability) -> Tensor:
    ones = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    ones = op.where(op.eq(q.probs, 0), math.inf, ones)
    ones = op.where(op.eq(p.probs, 0), 0.0, ones)
    rest = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    rest = op.where(op.eq(q.probs, 1), math.inf, rest)
    rest = op.where(op.eq(p.probs, 1), 0.0, rest)
    return ones + rest


@register_kl(Categorical, Categorical)
def _categoricals(p: Categorical, q: Categorical) -> Tensor:
    each = p.probs * (p.logits - q.logits)
    each = op.where(op.eq(q.probs, 0), math.inf, each)
    each = op.where(op.eq(p.probs, 0), 0.0, each)
    return op.sum(each, -1)


@register_kl(Uniform, Uniform)
def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    found = op.log((q.high - q.low) / (p.high - p.low))
    is_outside = (q.low > p.low) | (q.high < p.high)
    return op.where(is_outside, math.inf, found)


@register_kl(Uniform, Normal)
def _uniform_from_normal(p: Uniform, q: Normal) -> Tensor:
    """The mean of the normal's logarithm, whose square is the interval's variance and its distance."""
    width = p.high - p.low
    squares = op.square(width) / 12 + op.square(p.mean - q.loc)
    return op.log(q.scale * math.sqrt(2 * math.pi) / width) + squares * 0.5 / op.square(q.scale)


@register_kl(Normal, Uniform)
def _normal_from_uniform(p: Normal, q: Uniform) -> Tensor:
    """A normal distribution draws what the interval does not have."""
    return (p.loc * 0 + q.low * 0 + 1) * math.inf


@register_kl(Exponential, Exponential)
def _exponentials(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - op.log(ratio)


@register_kl(Laplace, Laplace)
def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    ratio, apart = p.scale / q.scale, op.abs(p.loc - q.loc)
    return apart / q.scale + ratio * op.exp(-apart / p.scale) - 1 - op.log(ratio)


@register_kl(Laplace, Normal)
def _laplace_from_normal(p: Laplace, q: Normal) -> Tensor:
    """The mean of the normal's logarithm: the variance of p, and its distance."""
    squares = p.variance + op.square(p.loc - q.loc)
    widths = op.log(q.scale / p.scale) + (math.log(math.pi / 2) / 2 - 1)
    return widths + squares * 0.5 / op.square(q.scale)


@register_kl(Geometric, Geometric)
def _geometrics(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - op.log1p(-q.probs) / p.probs - q.logits


@register_kl(Binomial, Binomial)
def _binomials(p: Binomial, q: Binomial) -> Tensor:
    if p.total_count > q.total_count:  # draws that q does not have
        return (p.probs * 0 + q.probs * 0 + 1) * math.inf
    if p.total_count < q.total_count:
        raise NotImplementedError("the divergence of a binomial distribution of more trials is not known")
    return _bernoullis(p, q) * p.total_count


@register_kl(Independent, Independent)
def _independents(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("the divergence of distributions of draws of different axes is not known")
    return summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    """Functions with an inverse change nothing of it."""
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("the divergence of what different functions made of draws is not known")
    return kl_divergence(p.base_dist, q.base_dist)
