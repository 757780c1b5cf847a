"""Embeddings, bags of them, and bilinear products against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close, compare, compare_layers, normal
from vkml import nn
from vkml.nn import functional

RANDOM = np.random.default_rng(6)
NUMBERS = np.array([[1, 0, 4, 1], [2, 2, 5, 1]])


@pytest.mark.parametrize(
    "named",
    [{}, {"padding_idx": 1}, {"scale_grad_by_freq": True}, {"padding_idx": -2, "scale_grad_by_freq": True}],
)
def test_embedding(named: dict[str, Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    table = normal(RANDOM, 6, 3)
    compare(
        lambda x, w: functional.embedding(x, w, **named),
        lambda x, w: torch.nn.functional.embedding(x, w, **named),
        [NUMBERS, table],
        device_name,
    )


def test_norms_are_limited_in_place(device_name: str) -> None:
    """Only of rows that are read, and only once."""
    torch = pytest.importorskip("torch")
    for p in (2.0, 1.0):
        ours, theirs = (
            nn.Embedding(6, 3, max_norm=0.7, norm_type=p),
            torch.nn.Embedding(6, 3, max_norm=0.7, norm_type=p),
        )
        compare_layers(ours, theirs, [np.array([1, 4, 4])], device_name)
        norms = np.linalg.norm(ours.weight.detach().cpu().numpy(), p, 1)
        assert (norms[[1, 4]] < 0.71).all() and (norms[[0, 2, 3, 5]] > 0.71).all()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1])
def test_bags(mode: str, padding: int | None, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    table = normal(RANDOM, 6, 3)
    named = {"mode": mode, "padding_idx": padding}
    flat, offsets = np.array([2, 1, 3, 1, 1, 0, 5]), np.array([0, 3, 3, 5])
    forms: list[tuple[list[Any], dict[str, Any]]] = [
        ([NUMBERS, table], named), ([np.array([[1, 1], [2, 1]]), table], named),
        ([flat, table, offsets], named),
        ([flat, table, np.array([0, 3, 3, 7])], {**named, "include_last_offset": True}),
    ]  # fmt: skip
    for inputs, given in forms:
        compare(
            lambda *x: functional.embedding_bag(*x, **given),  # noqa: B023
            lambda *x: torch.nn.functional.embedding_bag(*x, **given),  # noqa: B023
            inputs,
            device_name,
        )


def test_weighted_bags(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    inputs = [NUMBERS, normal(RANDOM, 6, 3), normal(RANDOM, 2, 4)]
    compare(
        lambda x, w, s: functional.embedding_bag(x, w, mode="sum", per_sample_weights=s),
        lambda x, w, s: torch.nn.functional.embedding_bag(x, w, mode="sum", per_sample_weights=s),
        inputs,
        device_name,
    )


def test_layers(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    for name, given, named, inputs in (
        ("Embedding", (6, 3), {"padding_idx": 2}, [NUMBERS]), ("EmbeddingBag", (6, 3), {}, [NUMBERS]),
        ("EmbeddingBag", (6, 3), {"mode": "max", "padding_idx": 1}, [NUMBERS[0], np.array([0, 2])]),
        ("Bilinear", (3, 4, 5), {}, [normal(RANDOM, 2, 6, 3), normal(RANDOM, 2, 6, 4)]),
        ("Bilinear", (3, 4, 5), {"bias": False}, [normal(RANDOM, 3), normal(RANDOM, 4)]),
        ("PReLU", (3,), {"init": 0.1}, [normal(RANDOM, 2, 3, 4)]),
    ):  # fmt: skip
        ours, theirs = (getattr(f, name)(*given, **named) for f in (nn, torch.nn))
        compare_layers(ours, theirs, inputs, device_name)


def test_padding_begins_as_zeros() -> None:
    assert nn.Embedding(4, 3, padding_idx=-1).weight[3].tolist() == [0, 0, 0]
    table = vkml.ones(4, 3)
    found = nn.Embedding.from_pretrained(table)
    assert not found.weight.requires_grad and found(vkml.tensor([2])).tolist() == [[1, 1, 1]]
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad


def test_one_hot(device_name: str) -> None:
    found = functional.one_hot(vkml.tensor([[2, 0]], device=device_name))
    assert found.tolist() == [[[0, 0, 1], [1, 0, 0]]] and found.dtype == vkml.int64
    assert functional.one_hot(vkml.tensor(1, device=device_name), 4).tolist() == [0, 1, 0, 0]


def test_by_hand(device_name: str) -> None:
    x, y = vkml.tensor([[1.0, 2.0]], device=device_name), vkml.tensor([[3.0, 5.0]], device=device_name)
    w = vkml.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], device=device_name)
    assert functional.bilinear(x, y, w).tolist() == [[13, 5]]
    table = vkml.arange(6, device=device_name, dtype=vkml.float32).reshape(3, 2)
    bags = functional.embedding_bag(
        vkml.tensor([2, 0, 1], device=device_name), table, vkml.tensor([0, 2], device=device_name)
    )
    close(bags.numpy(), [[2, 3], [2, 3]], "bags")


def test_what_does_not_fit() -> None:
    table = vkml.ones(4, 3)
    with pytest.raises(RuntimeError, match="int64 or int32"):
        functional.embedding(vkml.ones(2), table)
    with pytest.raises(IndexError):
        functional.embedding(vkml.tensor([4]), table).numpy()
    with pytest.raises(AssertionError, match="padding_idx"):
        nn.Embedding(4, 3, padding_idx=4)
    with pytest.raises(NotImplementedError, match="sparse"):
        nn.Embedding(4, 3, sparse=True)(vkml.tensor([1]))
    with pytest.raises(ValueError, match="offsets"):
        functional.embedding_bag(vkml.tensor([1]), table)
    with pytest.raises(RuntimeError, match="bilinear"):
        functional.bilinear(vkml.ones(2, 3), vkml.ones(2, 3), vkml.ones(4, 3, 2))
