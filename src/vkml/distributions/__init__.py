"""Probability distributions, as in `torch.distributions`: drawn from, differentiated, compared."""

from vkml.distributions.bernoulli import Bernoulli
from vkml.distributions.categorical import Categorical
from vkml.distributions.distribution import Distribution
from vkml.distributions.divergence import kl_divergence, register_kl
from vkml.distributions.normal import Normal
from vkml.distributions.uniform import Uniform

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Normal", "Uniform", "kl_divergence", "register_kl",
]  # fmt: skip
