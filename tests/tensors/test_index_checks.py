"""Negative indices of embedding and gather are refused, as PyTorch refuses them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.nn import functional

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, index: functional.embedding(index, x),
    "embedding of a bag": lambda x, index: functional.embedding_bag(index, x),
    "gather": lambda x, index: x.gather(0, index),
}
WRONG = np.array([[0, 3], [1, -1]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_it_is_written(name: str, device_name: str) -> None:
    x = vkml.ones(4, 2, device=device_name)
    FUNCTIONS[name](x, vkml.tensor(np.abs(WRONG), device=device_name)).numpy()
    with pytest.raises(IndexError, match=r"index -1 at \[1, 1\] is negative"):
        FUNCTIONS[name](x, vkml.tensor(WRONG, device=device_name))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_tensor", [True, False])
def test_in_runs_of_a_capture(name: str, is_tensor: bool, device_name: str) -> None:
    x = vkml.ones(4, 2, device=device_name)

    @vkml.jit(device=device_name)
    def act(index: Tensor) -> Tensor:
        return FUNCTIONS[name](x, index).sum()

    def given(index: np.ndarray) -> object:
        return vkml.tensor(index, device=device_name) if is_tensor else index

    for _ in range(4):
        act(given(np.abs(WRONG))).item()
    with pytest.raises(IndexError, match=r"index -1 at \[1, 1\] is negative"):
        act(given(WRONG))
    assert act(given(np.abs(WRONG))).item() == pytest.approx(act(given(np.abs(WRONG))).item())


@pytest.mark.parametrize("name", ["embedding", "gather"])
def test_as_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = {
        "embedding": lambda x, index: torch.nn.functional.embedding(index, x),
        "gather": lambda x, index: x.gather(0, index),
    }
    with pytest.raises((IndexError, RuntimeError)):
        theirs[name](torch.ones(4, 2), torch.tensor(WRONG))


def test_a_layer_names_the_index() -> None:
    with pytest.raises(IndexError, match="embedding: index -2"):
        nn.Embedding(4, 2)(vkml.tensor([-2]))


def test_nothing_to_look_up(device_name: str) -> None:
    index = vkml.zeros(0, dtype=vkml.int64, device=device_name)
    assert functional.embedding(index, vkml.ones(4, 2, device=device_name)).shape == (0, 2)
