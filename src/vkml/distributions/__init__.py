"""Probability distributions, as in `torch.distributions`: drawn from, differentiated, compared."""

from vkml.distributions.bernoulli import Bernoulli
from vkml.distributions.categorical import Categorical
from vkml.distributions.counts import Binomial, Multinomial
from vkml.distributions.distribution import Distribution
from vkml.distributions.divergence import kl_divergence, register_kl
from vkml.distributions.exponential import Exponential
from vkml.distributions.geometric import Geometric
from vkml.distributions.independent import Independent
from vkml.distributions.laplace import Laplace
from vkml.distributions.normal import Normal
from vkml.distributions.transformed import LogNormal, TransformedDistribution
from vkml.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
)
from vkml.distributions.uniform import Uniform

__all__ = [
    "AffineTransform", "Bernoulli", "Binomial", "Categorical", "ComposeTransform", "Distribution",
    "ExpTransform", "Exponential", "Geometric", "Independent", "Laplace", "LogNormal", "Multinomial",
    "Normal", "SigmoidTransform", "TanhTransform", "Transform", "TransformedDistribution", "Uniform",
    "kl_divergence", "register_kl",
]  # fmt: skip
