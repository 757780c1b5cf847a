"""Transformers against PyTorch's from the same weights, and one that learns."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.test_recurrent import compare, normal
from vkml import nn

SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}


def pair(name: str, **stated: Any) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [getattr(module, name)(**{**SIZES, **stated}) for module in (nn, torch.nn)]


def masks(make: list[Any], device: str, **given: Any) -> dict[str, Any]:
    """The two modules with masks that are made of arrays."""
    import torch

    def ours(*inputs: Any) -> Any:
        return make[0](*inputs, **{name: vkml.tensor(x, device=device) for name, x in given.items()})

    def theirs(*inputs: Any) -> Any:
        return make[1](*inputs, **{name: torch.tensor(x) for name, x in given.items()})

    return {"call": ours, "twin": theirs}


@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_of_encoders(norm_first: bool, device_name: str) -> None:
    make = pair("TransformerEncoderLayer", norm_first=norm_first, batch_first=True, activation="gelu")
    padding = np.arange(5) >= np.array([[5], [3], [4]])
    hidden = np.triu(np.ones((5, 5), np.bool_), 1)
    given = masks(make, device_name, src_mask=hidden, src_key_padding_mask=padding)
    compare(*make, [normal(0, 3, 5, 8)], device_name, **given)


@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_of_decoders(norm_first: bool, device_name: str) -> None:
    make = pair("TransformerDecoderLayer", norm_first=norm_first, bias=False)
    hidden = np.triu(np.ones((5, 5), np.bool_), 1)
    padding = np.arange(7) >= np.array([[7], [3]])
    given = masks(make, device_name, tgt_mask=hidden, memory_key_padding_mask=padding)
    compare(*make, [normal(0, 5, 2, 8), normal(1, 7, 2, 8)], device_name, **given)


def test_transformers(device_name: str) -> None:
    make = pair("Transformer", num_encoder_layers=2, num_decoder_layers=2)
    mask = nn.Transformer.generate_square_subsequent_mask(4).numpy()
    expected = make[1].generate_square_subsequent_mask(4).numpy()
    np.testing.assert_array_equal(mask, expected)
    compare(*make, [normal(0, 5, 2, 8), normal(1, 4, 2, 8)], device_name)


def test_stacks_are_copies_of_a_layer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    names = [name for name, _ in stack.named_parameters()]
    assert len(names) == 2 * len([*layer.parameters()]) + 2
    first, second = stack.layers[0].linear1.weight, stack.layers[1].linear1.weight
    assert first is not second and np.array_equal(first.detach().numpy(), second.detach().numpy())
    with vkml.no_grad():
        first.zero_()
    assert second.detach().numpy().any() and layer.linear1.weight.detach().numpy().any()


def test_deep_copies_are_leaves_of_their_own() -> None:
    layer = nn.Linear(2, 2)
    layer(vkml.ones(1, 2)).sum().backward()
    other = deepcopy(layer)
    assert isinstance(other.weight, nn.Parameter) and other.weight.requires_grad
    assert other.weight.grad is not layer.weight.grad
    np.testing.assert_array_equal(other.weight.grad.numpy(), np.ones((2, 2)))
    other(vkml.ones(1, 2)).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy(), np.ones((2, 2)))
    np.testing.assert_array_equal(other.weight.grad.numpy(), np.full((2, 2), 2.0))
    with pytest.raises(RuntimeError, match="leaves"):
        deepcopy(layer.weight * 2)


def test_wrong_arguments() -> None:
    with pytest.raises(RuntimeError, match="relu/gelu"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    with pytest.raises(ValueError, match="divisible"):
        nn.TransformerEncoderLayer(9, 2)
    model = nn.Transformer(8, 2, 1, 1, 12)
    with pytest.raises(RuntimeError, match="feature number"):
        model(vkml.zeros(3, 1, 7), vkml.zeros(3, 1, 8))
    with pytest.raises(RuntimeError, match="batch number"):
        model(vkml.zeros(3, 1, 8), vkml.zeros(3, 2, 8))


def test_a_causal_transformer_learns_to_count(device_name: str) -> None:
    """The next of numbers that go up by one, modulo 7; a step is captured."""
    vkml.manual_seed(0)
    embed, layer, last = (
        nn.Embedding(7, 16),
        nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True),
        nn.Linear(16, 7),
    )
    model = nn.ModuleList([embed, layer, last]).to(device_name)
    optimizer = vkml.optim.Adam(model.parameters(), lr=0.01)
    mask = nn.Transformer.generate_square_subsequent_mask(8, device=device_name)

    @vkml.jit
    def step(tokens: Any) -> Any:
        optimizer.zero_grad()
        made = last(layer(embed(tokens[:, :-1]), mask, is_causal=True))
        loss = nn.functional.cross_entropy(made.reshape(-1, 7), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    random = np.random.default_rng(0)
    losses = []
    for _ in range(40):
        tokens = (random.integers(0, 7, (8, 1)) + np.arange(9)) % 7
        losses.append(step(vkml.tensor(tokens, device=device_name)).item())
    assert losses[0] > 1.5 and losses[-1] < 0.3
