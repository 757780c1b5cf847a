"""Distributions against PyTorch's, and their draws against themselves."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import distributions
from vkml.distributions import Bernoulli, Categorical, Distribution, Normal, Uniform, kl_divergence

RANDOM = np.random.default_rng(5)
LOC = RANDOM.standard_normal((2, 3)).astype(np.float32)
SCALE = RANDOM.random(3).astype(np.float32) + 0.5
PROBS = np.array([[0.2, 0.5, 0.9], [0.0, 1.0, 0.3]], np.float32)
WEIGHTS = np.array([[1.0, 2.0, 0.0, 4.0], [0.1, 0.1, 0.3, 0.5]], np.float32)
LOGITS = RANDOM.standard_normal((2, 4)).astype(np.float32)
SURE = np.array([[0.2, 0.5, 1.0]], np.float32)
COUNTS = np.array([[2, 2, 0, 1], [0, 0, 5, 0]], np.float32)
Make = Callable[[Any, Callable[[Any], Any]], Any]
CASES: dict[str, tuple[Make, np.ndarray]] = {
    "Normal": (lambda d, t: d.Normal(t(LOC), t(SCALE)), LOC[::-1] * 2),
    "Normal of numbers": (lambda d, t: d.Normal(0.5, 2.0), LOC),
    "Normal of a number": (lambda d, t: d.Normal(1, t(SCALE)), LOC),
    "Uniform": (lambda d, t: d.Uniform(t(LOC), t(LOC + SCALE)), LOC + SCALE * np.float32(0.3)),
    "Uniform outside": (lambda d, t: d.Uniform(t(LOC), t(LOC + SCALE), validate_args=False), LOC * 2 - 1),
    "Bernoulli": (lambda d, t: d.Bernoulli(t(PROBS)), (PROBS > 0.4).astype(np.float32)),
    "Bernoulli of logits": (lambda d, t: d.Bernoulli(logits=t(LOC)), (PROBS > 0.4).astype(np.float32)),
    "Categorical": (lambda d, t: d.Categorical(t(WEIGHTS)), np.array([[3, 1], [0, 3], [1, 2]])),
    "Categorical of logits": (lambda d, t: d.Categorical(logits=t(LOGITS)), np.array([2, 0])),
    "Exponential": (lambda d, t: d.Exponential(t(SCALE)), np.abs(LOC)),
    "Laplace": (lambda d, t: d.Laplace(t(LOC), t(SCALE)), LOC[::-1] * 3),
    "LogNormal": (lambda d, t: d.LogNormal(t(LOC), t(SCALE * np.float32(0.4))), np.exp(LOC[::-1])),
    "Geometric": (lambda d, t: d.Geometric(t(SURE)), np.array([[0.0, 4.0, 1.0]], np.float32)),
    "Geometric of logits": (lambda d, t: d.Geometric(logits=t(LOC)), np.array([[2.0, 0.0, 1.0]], np.float32)),
    "Binomial": (lambda d, t: d.Binomial(9, t(PROBS[:1])), np.array([[0.0], [9.0], [4.0]], np.float32)),
    "Binomial of logits": (lambda d, t: d.Binomial(4, logits=t(LOC)), np.array([2.0, 0.0, 4.0], np.float32)),
    "Multinomial": (lambda d, t: d.Multinomial(5, t(WEIGHTS)), COUNTS),
    "Multinomial of logits": (lambda d, t: d.Multinomial(5, logits=t(LOGITS)), COUNTS),
    "Independent": (lambda d, t: d.Independent(d.Normal(t(LOC), t(SCALE)), 1), LOC[::-1] * 2),
    "Transformed": (
        lambda d, t: d.TransformedDistribution(
            d.Normal(t(LOC), t(SCALE)),
            [
                d.AffineTransform(0.5, -2.0),
                d.TanhTransform(),
                d.ExpTransform(),
                d.AffineTransform(1.0, t(SCALE)),
            ],
        ),
        1 + SCALE * np.exp(np.tanh(LOC)),
    ),
    "Transformed to shares": (
        lambda d, t: d.TransformedDistribution(
            d.Laplace(t(LOC), 1.0), d.ComposeTransform([d.SigmoidTransform(), d.AffineTransform(0.0, 1.0)])
        ),
        np.array([[0.1, 0.5, 0.9]], np.float32),
    ),
}  # fmt: skip


def ours(name: str, device: str = "cpu") -> Any:
    return CASES[name][0](distributions, lambda x: vkml.tensor(x, device=device))


def close(found: Any, wanted: Any) -> None:
    assert tuple(found.shape) == tuple(wanted.shape)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-5, atol=2e-6)


def lacks(*looks: Callable[[], Any]) -> bool:
    """Whether there is none of what is looked at; each is asked."""
    refused = []
    for look in looks:
        try:
            look()
            refused.append(False)
        except NotImplementedError:
            refused.append(True)
    assert len(set(refused)) == 1
    return refused[0]


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    make, values = CASES[name]
    found, wanted = ours(name, device_name), make(torch.distributions, torch.tensor)
    assert tuple(found.batch_shape) == tuple(wanted.batch_shape)
    assert tuple(found.event_shape) == tuple(wanted.event_shape)
    close(found.log_prob(vkml.tensor(values, device=device_name)), wanted.log_prob(torch.tensor(values)))
    for what in ("entropy", "perplexity"):
        if not lacks(lambda what=what: getattr(wanted, what)(), lambda what=what: getattr(found, what)()):
            close(getattr(found, what)(), getattr(wanted, what)())
    for what in ("mean", "variance", "stddev", "mode"):
        if not lacks(lambda what=what: getattr(wanted, what), lambda what=what: getattr(found, what)):
            close(getattr(found, what), getattr(wanted, what))
    for what in ("probs", "logits"):
        if hasattr(wanted, what):
            close(getattr(found, what), getattr(wanted, what))
    if found.has_rsample and not found.event_shape:
        shares = np.array([0.1, 0.5, 0.8], np.float32)
        close(found.icdf(vkml.tensor(shares, device=device_name)), wanted.icdf(torch.tensor(shares)))
        close(found.cdf(vkml.tensor(values, device=device_name)), wanted.cdf(torch.tensor(values)))


@pytest.mark.parametrize("name", CASES)
def test_draws(name: str, device_name: str) -> None:
    """Means of many draws are as near as their deviation lets them be (five of it)."""
    vkml.manual_seed(11)
    found, count = ours(name, device_name), 4000
    drawn = found.sample((count,))
    shape = *found.batch_shape, *found.event_shape
    assert tuple(drawn.shape) == (count, *shape) and not drawn.requires_grad
    assert tuple(found.sample().shape) == shape
    if type(found) is distributions.TransformedDistribution:
        for at in range(1, 4):  # what is below a quarter, half, three quarters of all draws
            share = (drawn.numpy() <= found.icdf(vkml.tensor(at / 4)).numpy()).mean(0)
            assert np.all(np.abs(share - at / 4) <= 5 * np.sqrt(0.25 / count))
        return
    if isinstance(found, Categorical):
        assert drawn.dtype == vkml.int64
        shares = np.stack([(drawn.numpy() == at).mean(0) for at in range(4)], -1)
        probs = found.probs.numpy()
        assert np.all(np.abs(shares - probs) <= 5 * np.sqrt(probs * (1 - probs) / count))
    else:
        apart = np.abs(drawn.numpy().mean(0) - found.mean.numpy())
        assert np.all(apart <= 5 * found.stddev.numpy() / math.sqrt(count) + 1e-6)
        deviation = found.stddev.numpy()
        assert np.all(np.abs(drawn.numpy().std(0) - deviation) <= 0.1 * deviation + 1e-6)


PAIRS: dict[str, tuple[Make, Make]] = {
    "normal": (CASES["Normal"][0], lambda d, t: d.Normal(t(LOC[::-1].copy()), 2.0)),
    "Bernoulli": (CASES["Bernoulli"][0], CASES["Bernoulli of logits"][0]),
    "sure Bernoulli": (CASES["Bernoulli of logits"][0], CASES["Bernoulli"][0]),
    "categorical": (CASES["Categorical"][0], CASES["Categorical of logits"][0]),
    "impossible category": (CASES["Categorical of logits"][0], CASES["Categorical"][0]),
    "uniform": (CASES["Uniform"][0], lambda d, t: d.Uniform(t(LOC - 1), t(LOC + 2))),
    "uniform outside": (CASES["Uniform"][0], lambda d, t: d.Uniform(t(LOC + 0.1), t(LOC + 2))),
    "uniform and normal": (CASES["Uniform"][0], CASES["Normal"][0]),
    "normal and uniform": (CASES["Normal"][0], CASES["Uniform"][0]),
    "exponential": (CASES["Exponential"][0], lambda d, t: d.Exponential(t(SCALE[::-1].copy()))),
    "Laplace": (CASES["Laplace"][0], lambda d, t: d.Laplace(t(LOC[::-1].copy()), 0.7)),
    "Laplace and normal": (CASES["Laplace"][0], CASES["Normal"][0]),
    "geometric": (
        lambda d, t: d.Geometric(t(SURE[:, :2])),
        lambda d, t: d.Geometric(t(SURE[:, 1::-1].copy())),
    ),
    "binomial": (CASES["Binomial of logits"][0], lambda d, t: d.Binomial(4, t(SCALE / 2))),
    "binomial of more": (CASES["Binomial"][0], CASES["Binomial of logits"][0]),
    "lognormal": (CASES["LogNormal"][0], lambda d, t: d.LogNormal(t(LOC[::-1].copy()), 2.0)),
    "independent": (
        CASES["Independent"][0],
        lambda d, t: d.Independent(d.Normal(t(LOC[::-1].copy()), 2.0), 1),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_divergence(name: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    p, q = PAIRS[name]
    given = [each(distributions, lambda x: vkml.tensor(x, device=device_name)) for each in (p, q)]
    theirs = [each(torch.distributions, torch.tensor) for each in (p, q)]
    close(kl_divergence(*given), torch.distributions.kl_divergence(*theirs))


@pytest.mark.parametrize("name", ["Normal", "Uniform"])
def test_gradients_of_draws(name: str, device_name: str) -> None:
    """A draw is the parameters and what was drawn: it grows with them."""
    given = ours(name, device_name)
    low, high = (given.loc, given.scale) if name == "Normal" else (given.low, given.high)
    parameters = [x.detach().requires_grad_() for x in (low, high)]
    drawn = type(given)(*parameters).rsample((5,))
    drawn.sum().backward()
    first, second = (x.grad.cpu().numpy() for x in parameters)
    if name == "Normal":
        np.testing.assert_allclose(first, 5.0)
        standard = (drawn.detach().cpu().numpy() - LOC) / given.scale.cpu().numpy()
        np.testing.assert_allclose(second, standard.sum(0), rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(first + second, 5.0, rtol=1e-5)
        assert np.all(first > 0) and np.all(second > 0)


@pytest.mark.parametrize(
    "name",
    [
        "Normal",
        "Bernoulli of logits",
        "Categorical of logits",
        "Laplace",
        "Geometric of logits",
        "LogNormal",
    ],
)
def test_gradients_of_probabilities(name: str) -> None:
    """As of a policy: the gradient of the logarithm by the parameter."""
    torch = pytest.importorskip("torch")
    make, values = CASES[name]
    leaves: list[Any] = []

    def kept(x: Any) -> Any:
        leaves.append(x.requires_grad_())
        return leaves[-1]

    found = make(distributions, lambda x: kept(vkml.tensor(x)))
    wanted = make(torch.distributions, lambda x: kept(torch.tensor(x)))
    (found.log_prob(vkml.tensor(values)).sum() + found.entropy().sum()).backward()
    (wanted.log_prob(torch.tensor(values)).sum() + wanted.entropy().sum()).backward()
    count = len(leaves) // 2
    for one, other in zip(leaves[:count], leaves[count:], strict=True):
        close(one.grad, other.grad)


def test_stated_values() -> None:
    half = vkml.tensor(0.5)
    found = {
        "exponential": (distributions.Exponential(2.0).log_prob(half), math.log(2) - 1),
        "Laplace": (distributions.Laplace(0.0, 1.0).cdf(vkml.tensor(-math.log(2))), 0.25),
        "lognormal": (distributions.LogNormal(0.0, 1.0).mean, math.exp(0.5)),
        "geometric": (distributions.Geometric(0.25).log_prob(vkml.tensor(2.0)), math.log(9 / 64)),
        "binomial": (distributions.Binomial(3, 0.5).log_prob(vkml.tensor(1.0)), math.log(3 / 8)),
        "multinomial": (
            distributions.Multinomial(3, vkml.ones(3)).log_prob(vkml.ones(3)), math.log(6 / 27)
        ),
    }  # fmt: skip
    for name, (made, wanted) in found.items():
        assert made.item() == pytest.approx(wanted, rel=1e-5), name


def test_a_captured_function_draws_anew() -> None:
    @vkml.jit
    def act(logits: vkml.Tensor) -> vkml.Tensor:
        return Categorical(logits=logits).sample((64,))

    drawn = [act(vkml.tensor(LOGITS)).numpy() for _ in range(4)]
    assert all((one != other).any() for one, other in itertools.pairwise(drawn))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(0.0, -1.0), "above 0"),
        (lambda: Normal(vkml.zeros(2), vkml.tensor([1.0, 0.0]), validate_args=True), "above 0"),
        (lambda: Uniform(1.0, 1.0), "low >= high"),
        (lambda: Uniform(vkml.zeros(2), vkml.tensor([1.0, 0.0]), validate_args=True), "low >= high"),
        (lambda: Uniform(0.0, 1.0, validate_args=True).log_prob(vkml.tensor(2.0)), "in the interval"),
        (lambda: Bernoulli(1.5), r"in \[0, 1\]"),
        (lambda: Bernoulli(), "but not both"),
        (lambda: Bernoulli(0.5, 0.5), "but not both"),
        (lambda: Bernoulli(0.5, validate_args=True).log_prob(vkml.tensor(0.5)), "0 or 1"),
        (lambda: Categorical(vkml.tensor([0.5, -0.5]), validate_args=True), "at least 0"),
        (lambda: Categorical(vkml.tensor(0.5)), "at least one axis"),
        (lambda: distributions.Exponential(0.0), "above 0"),
        (lambda: distributions.Laplace(0.0, -1.0), "above 0"),
        (lambda: distributions.LogNormal(0.0, -1.0), "above 0"),
        (lambda: distributions.Geometric(0.0), "above 0"),
        (lambda: distributions.Geometric(0.5, validate_args=True).log_prob(vkml.tensor(0.5)), "whole number"),
        (lambda: distributions.Binomial(-1, 0.5), "at least 0"),
        (lambda: distributions.Binomial(3, 0.5, validate_args=True).log_prob(vkml.tensor(4.0)), "0 to 3"),
        (
            lambda: distributions.Multinomial(3, vkml.ones(2), validate_args=True).log_prob(vkml.ones(2)),
            "sum 3",
        ),
        (lambda: distributions.Independent(Normal(0.0, 1.0), 1), "reinterpreted_batch_ndims"),
        (lambda: Categorical(vkml.ones(3), validate_args=True).log_prob(vkml.tensor(3)), "in 0"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_there_is_not() -> None:
    with pytest.raises(NotImplementedError, match="Normal from Bernoulli"):
        kl_divergence(Bernoulli(0.5), Normal(0.0, 1.0))
    often, twice = distributions.Geometric(0.5), distributions.Binomial(2, 0.5)
    for one, other in ((often, Bernoulli(0.5)), (Bernoulli(0.5), twice), (twice, often)):
        with pytest.raises(NotImplementedError, match="is not known"):
            kl_divergence(one, other)
    with pytest.raises(RuntimeError, match="no gradients flow"):
        Bernoulli(0.5).rsample()
    with pytest.raises(NotImplementedError, match="no cdf"):
        Categorical(vkml.ones(2)).cdf(vkml.tensor(1))


def test_a_kind_of_ones_own() -> None:
    class Shifted(Normal):
        """A normal distribution, whose divergences are those of its kind."""

    @distributions.register_kl(Shifted, Shifted)
    def _apart(p: Shifted, q: Shifted) -> vkml.Tensor:
        return p.loc - q.loc

    assert kl_divergence(Shifted(3.0, 1.0), Shifted(1.0, 1.0)).item() == 2
    assert kl_divergence(Shifted(0.0, 1.0), Normal(1.0, 1.0)).item() == 0.5


def test_names_and_arguments_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for kind in (Normal, Uniform, Bernoulli, Categorical):
        theirs = inspect.signature(getattr(torch.distributions, kind.__name__))
        assert list(inspect.signature(kind).parameters) == list(theirs.parameters)
    for name, value in vars(Distribution).items():
        assert name.startswith("_") or hasattr(torch.distributions.Distribution, name), (name, value)
