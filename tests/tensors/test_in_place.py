"""Tensors that are given other elements stay where they are."""

from __future__ import annotations

import pytest

import vkml
from vkml import Tensor


@pytest.mark.parametrize("shape", [(), (2,)])
def test_numbers_and_tensors_of_the_host(device_name: str, shape: tuple[int, ...]) -> None:
    x = vkml.zeros(*shape, device=device_name)
    for source, wanted in ((2.0, 2.0), (vkml.tensor(3.0), 3.0), (vkml.full(shape, 4.0) + 1, 5.0)):
        for act in (x.copy_, x.fill_) if not getattr(source, "ndim", 0) else (x.copy_,):
            x.zero_()
            assert act(source) is x
            assert x.device == device_name
            assert (x + vkml.zeros(2, device=device_name)).tolist() == [wanted] * 2


def test_numbers_in_what_is_captured(device_name: str) -> None:
    """What a tensor was filled with before a capture is no part of it."""
    rate = vkml.ones(device=device_name)

    @vkml.jit
    def scaled(x: Tensor) -> Tensor:
        return x * rate

    for number in (1.0, 0.5, 0.25, 2.0):
        rate.fill_(number)
        assert scaled(vkml.ones(2, device=device_name)).tolist() == [number] * 2


def test_what_is_repeated_is_a_copy() -> None:
    x = vkml.tensor([[1.0], [2.0]])
    for made in (x.repeat(1, 1), vkml.tile(x, (1, 3)), x.repeat(2, 1, 2)):
        made += 1
        made[..., 0] = 7.0
        assert x.tolist() == [[1], [2]]
