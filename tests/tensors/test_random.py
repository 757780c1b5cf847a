"""Random tensors: known numbers, moments, every device alike, captures that draw anew, states, errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import vkml
from tests.ops.test_philox import reference
from vkml import Tensor
from vkml.tensors.generator import DEFAULT_SEED
from vkml.tracing import evaluation

MANY = 40_000


def _words(seed: int, first: int, count: int) -> np.ndarray:
    """The words of a draw of so many that begins at a block: word 0 of each block, then word 1, …"""
    key = [seed & 0xFFFFFFFF, seed >> 32]
    blocks = [reference([first + at, 0, 0, 0], key) for at in range(-(-count // 4))]
    return np.array(blocks, np.uint32).T.reshape(-1)[:count]


def test_numbers_are_those_of_the_seed(device_name: str) -> None:
    """In any process and on any machine: the reference knows neither."""
    generator = vkml.Generator(device_name).manual_seed(0x1234567890AB)
    rand = vkml.rand(2, 5, generator=generator)
    integers = vkml.randint(-3, 1000, (7,), generator=generator)
    normal = vkml.randn(3, generator=generator)
    seed = 0x1234567890AB
    assert rand.device == device_name
    np.testing.assert_array_equal(
        rand.numpy(), ((_words(seed, 0, 10) >> 8) * np.float32(2**-24)).reshape(2, 5).astype(np.float32)
    )
    assert integers.tolist() == (_words(seed, 3, 7) % 1003 - np.int64(3)).tolist()
    words = _words(seed, 5, 4).astype(np.float64)
    radius, turn = np.sqrt(-2 * np.log((words[:2] + 1) / 2**32)), (words[2:] // 256) / 2**24 * 2 * math.pi
    expected = np.concatenate([radius * np.cos(turn), radius * np.sin(turn)])[:3]
    np.testing.assert_allclose(normal.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_same_bits_on_every_device(vulkan_device_name: str) -> None:
    for draw in (
        lambda device: vkml.rand(5000, device=device),
        lambda device: vkml.randint(0, 1 << 20, (3, 40), device=device),
        lambda device: vkml.bernoulli(vkml.full((999,), 0.3, device=device)),
        lambda device: vkml.randperm(100, device=device),
    ):
        found = []
        for device in ("cpu", vulkan_device_name):
            vkml.manual_seed(11)
            found.append(draw(device))
        np.testing.assert_array_equal(found[0].numpy(), found[1].numpy())


MOMENTS: list[tuple[str, Callable[[str], Tensor], float, float]] = [
    ("rand", lambda device: vkml.rand(MANY, device=device), 0.5, 1 / 12),
    ("rand float16", lambda device: vkml.rand(MANY, dtype=vkml.float16, device=device), 0.5, 1 / 12),
    ("rand bfloat16", lambda device: vkml.rand(MANY, dtype=vkml.bfloat16, device=device), 0.5, 1 / 12),
    ("randn", lambda device: vkml.randn(MANY, device=device), 0, 1),
    ("normal", lambda device: vkml.normal(2.0, 3.0, (MANY,), device=device), 2, 9),
    ("uniform_", lambda device: vkml.empty(MANY, device=device).uniform_(-2, 4), 1, 3),
    ("normal_", lambda device: vkml.empty(MANY, device=device).normal_(1, 0.5), 1, 0.25),
    ("exponential_", lambda device: vkml.empty(MANY, device=device).exponential_(2), 0.5, 0.25),
    ("bernoulli_", lambda device: vkml.empty(MANY, device=device).bernoulli_(0.2), 0.2, 0.16),
    ("geometric_", lambda device: vkml.empty(MANY, device=device).geometric_(0.25), 4, 12),
    ("log_normal_", lambda device: vkml.empty(MANY, device=device).log_normal_(0, 0.5).log(), 0, 0.25),
    ("random_", lambda device: vkml.empty(MANY, device=device).random_(0, 10), 4.5, 99 / 12),
]  # fmt: skip


@pytest.mark.parametrize(
    ("draw", "mean", "variance"), [one[1:] for one in MOMENTS], ids=[one[0] for one in MOMENTS]
)
def test_moments(draw: Callable[[str], Tensor], mean: float, variance: float, device_name: str) -> None:
    vkml.manual_seed(3)
    found = draw(device_name).float().numpy().astype(np.float64)
    deviation = math.sqrt(variance)
    assert abs(found.mean() - mean) < 5 * deviation / math.sqrt(MANY)
    assert abs(found.var() - variance) < 0.05 * variance
    halves = found[: MANY // 2] - mean, found[MANY // 2 :] - mean
    assert abs((halves[0] * halves[1]).mean()) < 5 * variance / math.sqrt(MANY / 2)


def test_doubles() -> None:
    found = vkml.rand(MANY, dtype=vkml.float64).numpy()
    assert abs(found.mean() - 0.5) < 0.01
    assert len(np.unique(found)) == MANY  # of 24 digits some would be the same
    normal = vkml.randn(MANY, dtype=vkml.float64).numpy()
    assert abs(normal.std() - 1) < 0.02
    assert len(np.unique(normal)) == MANY


def test_short_floats_are_below_one() -> None:
    for dtype in (vkml.float16, vkml.bfloat16):
        found = vkml.rand(200_000, dtype=dtype).float()
        assert float(found.amax()) < 1
        assert float(found.amin()) == 0


def test_integers_are_equally_likely() -> None:
    vkml.manual_seed(0)
    counts = np.bincount(vkml.randint(5, 15, (MANY,)).numpy() - 5, minlength=10)
    assert counts.shape == (10,)
    assert ((counts - MANY / 10) ** 2 / (MANY / 10)).sum() < 27.9  # of 9 degrees of freedom, 1 in 1000
    large = vkml.randint(-(1 << 62), 1 << 62, (MANY,)).numpy()
    assert abs(large.astype(np.float64).mean()) < 5 * 2**63 / math.sqrt(12 * MANY)
    assert len(np.unique(large & 0xFFFF)) > 20_000
    every = vkml.empty(1000, dtype=vkml.uint8).random_()
    assert len(np.unique(every.numpy())) > 240


def test_permutations() -> None:
    vkml.manual_seed(1)
    firsts = []
    for _ in range(300):
        found = vkml.randperm(6).tolist()
        assert sorted(found) == list(range(6))
        firsts.append(found[0])
    counts = np.bincount(firsts, minlength=6)
    assert ((counts - 50) ** 2 / 50).sum() < 20.5  # of 5 degrees of freedom, 1 in 1000
    assert vkml.randperm(0).shape == (0,)
    assert sorted(vkml.randperm(10_000).tolist()) == list(range(10_000))


def test_multinomial(device_name: str) -> None:
    vkml.manual_seed(2)
    weights = vkml.tensor([[1.0, 0.0, 3.0], [2.0, 2.0, 0.0]], device=device_name)
    found = vkml.multinomial(weights, 4000, replacement=True).numpy()
    assert found.shape == (2, 4000)
    assert found.dtype == np.int64
    for row, expected in zip(found, ([0.25, 0, 0.75], [0.5, 0.5, 0]), strict=True):
        shares = np.bincount(row, minlength=3) / 4000
        np.testing.assert_allclose(shares, expected, atol=0.04)
        assert not (shares[np.array(expected) == 0]).any()
    without = vkml.multinomial(vkml.tensor([1.0, 2.0, 3.0, 0.0], device=device_name), 3)
    assert sorted(without.tolist()) == [0, 1, 2]


def test_draws_differ_and_seeds_begin_anew(device_name: str) -> None:
    vkml.manual_seed(5)
    first, second = vkml.rand(6, device=device_name), vkml.rand(6, device=device_name)
    late = second.numpy()  # looked at in another order than drawn
    early = first.numpy()
    third = vkml.rand(6, device=device_name).numpy()
    assert len({early.tobytes(), late.tobytes(), third.tobytes()}) == 3
    vkml.manual_seed(5)
    again = [vkml.rand(6, device=device_name).numpy() for _ in range(3)]
    for found, expected in zip(again, (early, late, third), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_streams_go_on_from_their_state(device_name: str) -> None:
    generator = vkml.Generator(device_name).manual_seed(9)
    vkml.rand(3, generator=generator)
    state = generator.get_state()
    expected = [vkml.rand(5, generator=generator).tolist() for _ in range(2)]
    generator.manual_seed(1)
    generator.set_state(state)
    assert generator.initial_seed() == 9
    copy = generator.clone_state()
    assert [vkml.rand(5, generator=generator).tolist() for _ in range(2)] == expected
    assert vkml.rand(5, generator=copy).tolist() == expected[0]
    other = vkml.Generator()  # of another device, perhaps
    other.set_state(state)
    assert vkml.rand(5, generator=other).tolist() == expected[0]
    before = vkml.get_rng_state(device_name)
    inside = []
    with vkml.fork_rng([device_name]):
        inside.append(vkml.rand(2, device=device_name).tolist())
    inside.append(vkml.rand(2, device=device_name).tolist())
    vkml.set_rng_state(before, device_name)
    inside.append(vkml.rand(2, device=device_name).tolist())
    assert inside[0] == inside[1] == inside[2]


def test_captures_draw_anew(device_name: str) -> None:
    def step(x: Tensor) -> Tensor:
        return x * vkml.rand(3, device=device_name) + vkml.bernoulli(vkml.full((3,), 0.5, device=device_name))

    x = vkml.ones(3, device=device_name)
    vkml.manual_seed(4)
    expected = [step(x).tolist() for _ in range(6)] + [vkml.rand(2, device=device_name).tolist()]
    vkml.manual_seed(4)
    captured = vkml.jit(step)
    found = [captured(x).tolist() for _ in range(6)] + [vkml.rand(2, device=device_name).tolist()]
    assert found == expected
    vkml.manual_seed(4)
    assert captured(x).tolist() == expected[0]
    assert len({tuple(one) for one in found}) == 7


def test_a_generator_that_a_capture_makes_first_is_there_before_it() -> None:
    generator = vkml.Generator().manual_seed(8)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        return x + vkml.rand(2, generator=generator)

    found = [step(vkml.zeros(2)).tolist() for _ in range(3)]
    generator.manual_seed(8)
    assert found == [vkml.rand(2, generator=generator).tolist() for _ in range(3)]


def test_draws_in_a_loop_plan_nothing_more() -> None:
    for size in (1, 1, 1):
        (vkml.rand(17) * size).numpy(), vkml.randn(3).numpy()
    before = len(evaluation._programs)
    for _ in range(20):
        (vkml.rand(17) * 1).numpy(), vkml.randn(3).numpy()
    assert len(evaluation._programs) == before


def test_unseen_draws_hold_no_memory() -> None:
    """Each is made of the last known state, not of the draw before."""
    vkml.rand(1).numpy()
    for _ in range(3000):
        last = vkml.rand(1)
    assert last.value.application is not None
    assert vkml.default_generator._state.value.application.depth == 1
    assert 0 <= last.item() < 1


def test_gradients_flow_round_what_is_drawn() -> None:
    x = vkml.ones(50, requires_grad=True)
    kept = vkml.bernoulli(x.detach() * 0.5)
    (x * kept).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), kept.numpy())
    with pytest.raises(RuntimeError, match="leaf"):
        x.normal_()
    with vkml.no_grad():
        assert x.uniform_(3, 4) is x
    assert x.requires_grad
    assert float(x.detach().amin()) >= 3


def test_likes_and_types() -> None:
    x = vkml.zeros(2, 3, dtype=vkml.float64)
    assert (vkml.rand_like(x).dtype, vkml.rand_like(x).shape) == (vkml.float64, (2, 3))
    assert vkml.randn_like(x, dtype=vkml.float32).dtype == vkml.float32
    assert vkml.randint_like(x, 3).dtype == vkml.float64
    assert vkml.randint(4, (2, 2)).dtype == vkml.int64
    assert vkml.randint(4, (2, 2), dtype=vkml.uint8).dtype == vkml.uint8
    assert vkml.rand(0, 3).shape == (0, 3)
    assert vkml.rand().shape == ()
    assert vkml.randn(2, requires_grad=True).requires_grad
    means = vkml.normal(vkml.tensor([100.0, -100.0]), vkml.tensor([[0.1], [0.2]])).numpy()
    assert means.shape == (2, 2)
    assert (means[:, 0] > 90).all() and (means[:, 1] < -90).all()
    assert vkml.Generator().initial_seed() == DEFAULT_SEED
    assert vkml.bernoulli(vkml.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]


def test_seeds_of_the_system() -> None:
    assert vkml.seed() != vkml.seed()
    generator = vkml.Generator()
    assert generator.seed() == generator.initial_seed()
    vkml.manual_seed(-1)
    assert vkml.initial_seed() == (1 << 64) - 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vkml.randint(3, 3, (2,)), RuntimeError, "there are none"),
        (lambda: vkml.randint(3, 5), TypeError, "size"),
        (lambda: vkml.rand(2, dtype=vkml.int32), RuntimeError, "randint"),
        (lambda: vkml.rand(-1), RuntimeError, "negative"),
        (lambda: vkml.randperm(-1), RuntimeError, "at least 0"),
        (lambda: vkml.zeros(2).normal_(0, -1), RuntimeError, "deviation"),
        (lambda: vkml.zeros(2).uniform_(2, 1), RuntimeError, "no such"),
        (lambda: vkml.zeros(2).exponential_(0), RuntimeError, "rate"),
        (lambda: vkml.zeros(2, dtype=vkml.int32).normal_(), RuntimeError, "random_"),
        (lambda: vkml.zeros(2).bernoulli_(1.5), RuntimeError, "probability"),
        (lambda: vkml.bernoulli(vkml.ones(2, dtype=vkml.int64)), RuntimeError, "floats"),
        (lambda: vkml.multinomial(vkml.ones(2), 3), RuntimeError, "replacement"),
        (lambda: vkml.multinomial(vkml.zeros(2), 1), RuntimeError, "above 0"),
        (lambda: vkml.multinomial(vkml.tensor([-1.0, 2.0]), 1), RuntimeError, "negative"),
        (lambda: vkml.manual_seed(1 << 64), RuntimeError, "64 bits"),
        (lambda: vkml.Generator().set_state(vkml.zeros(3)), RuntimeError, "bytes"),
        (lambda: vkml.normal(0.0, 1.0), TypeError, "size"),
    ],
)
def test_what_cannot_be_drawn(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_generator_of_another_device(vulkan_device_name: str) -> None:
    with pytest.raises(RuntimeError, match=f"'{vulkan_device_name}'.*'cpu'"):
        vkml.rand(2, device=vulkan_device_name, generator=vkml.Generator())
