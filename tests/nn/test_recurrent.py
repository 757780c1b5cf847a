"""Recurrent layers and cells, and packed sequences, against PyTorch's from the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import nn
from vkml.nn.utils import rnn

Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parts(result: Any) -> list[Any]:
    """The tensors of nested results."""
    if isinstance(result, tuple | list):
        return [x for part in result for x in parts(part)]
    return [result]


def compare(
    ours: Any, theirs: Any, inputs: list[Array], device: str, *, call: Any = None, twin: Any = None
) -> None:
    """Values and gradients of two modules with the same weights, which are copied from the second."""
    import torch

    theirs = theirs.double()
    ours.load_state_dict({name: value.float().numpy() for name, value in theirs.state_dict().items()})
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    ours.to(device)
    mine = [vkml.tensor(x, device=device, requires_grad=True) for x in inputs]
    right = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in inputs]
    found, wanted = parts((call or ours)(*mine)), parts((twin or call or theirs)(*right))
    assert len(found) == len(wanted)
    total, other = vkml.zeros((), device=device), torch.zeros((), dtype=torch.float64)
    for at, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(
            a.detach().numpy(), b.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=f"{at}"
        )
        w = normal(100 + at, *a.shape)
        total = total + (a * vkml.tensor(w, device=device)).sum()
        other = other + (b * torch.tensor(w)).sum()
    total.backward()
    other.backward()
    pairs = [*zip(mine, right, strict=True), *zip(ours.parameters(), theirs.parameters(), strict=True)]
    for at, (a, b) in enumerate(pairs):
        assert a.grad is not None
        np.testing.assert_allclose(
            a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=f"gradient {at}"
        )


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "num_layers": 2},
    ],
)
def test_layers(kind: str, stated: dict[str, Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    make = [getattr(module, kind)(3, 4, **stated) for module in (nn, torch.nn)]
    directions = 2 if stated.get("bidirectional") else 1
    state = normal(2, stated.get("num_layers", 1) * directions, 2, 4)
    x = normal(1, *((2, 5, 3) if stated.get("batch_first") else (5, 2, 3)))
    if kind == "LSTM":
        memory = normal(3, *state.shape)
        compare(*make, [x, state, memory], device_name, call=lambda x, h, c: make[0](x, (h, c)),
                twin=lambda x, h, c: make[1](x, (h, c)))  # fmt: skip
    else:
        compare(*make, [x, state], device_name)


def test_relu_without_states_and_without_a_batch() -> None:
    torch = pytest.importorskip("torch")
    make = [module.RNN(3, 4, nonlinearity="relu") for module in (nn, torch.nn)]
    compare(*make, [normal(1, 5, 2, 3)], "cpu")
    compare(*make, [normal(1, 5, 3)], "cpu")
    with pytest.raises(RuntimeError, match="input_size"):
        make[0](vkml.zeros(5, 2, 7))
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size"):
        make[0](vkml.zeros(5, 2, 3), vkml.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="nonlinearity"):
        nn.RNN(3, 4, nonlinearity="sine")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections(bidirectional: bool, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    make = [
        module.LSTM(3, 5, num_layers=2, proj_size=2, bidirectional=bidirectional) for module in (nn, torch.nn)
    ]
    compare(*make, [normal(1, 4, 2, 3)], device_name)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: str, bias: bool, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    make = [getattr(module, f"{kind}Cell")(3, 4, bias=bias) for module in (nn, torch.nn)]
    compare(*make, [normal(1, 2, 3)], device_name)
    if kind == "LSTM":
        return
    compare(*make, [normal(1, 3), normal(2, 4)], device_name)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_packed_sequences(kind: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    make = [getattr(module, kind)(3, 4, num_layers=2, bidirectional=True) for module in (nn, torch.nn)]
    lengths = [2, 5, 1, 4]

    def run(module: Any, tools: Any) -> Any:
        def call(x: Any) -> Any:
            packed = tools.pack_padded_sequence(x, lengths, enforce_sorted=False)
            made, last = module(packed)
            return tools.pad_packed_sequence(made, total_length=6)[0], last

        return call

    compare(
        *make,
        [normal(1, 5, 4, 3)],
        device_name,
        call=run(make[0], rnn),
        twin=run(make[1], torch.nn.utils.rnn),
    )


def test_packing_against_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.utils.rnn
    x = normal(1, 3, 4, 2)
    for given, stated in (([4, 2, 1], {}), ([1, 4, 3], {"enforce_sorted": False})):
        mine = rnn.pack_padded_sequence(vkml.tensor(x), given, batch_first=True, **stated)
        right = theirs.pack_padded_sequence(torch.tensor(x), given, batch_first=True, **stated)
        for a, b in zip(mine, right, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        (padded, lengths), (wanted, expected) = (
            tools.pad_packed_sequence(packed, batch_first=True, padding_value=-1)
            for tools, packed in ((rnn, mine), (theirs, right))
        )
        np.testing.assert_array_equal(padded.numpy(), wanted.numpy())
        np.testing.assert_array_equal(lengths.numpy(), expected.numpy())
    rows = [normal(at, at, 2) for at in (3, 1)]
    mine, right = (
        tools.pack_sequence([make(row) for row in rows])
        for tools, make in ((rnn, vkml.tensor), (theirs, torch.tensor))
    )
    np.testing.assert_array_equal(mine.data.numpy(), right.data.numpy())
    for a, b in zip(rnn.unpack_sequence(mine), rows, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    left = rnn.pad_sequence([vkml.tensor(row) for row in rows], True, 7.0, "left")
    np.testing.assert_array_equal(left.numpy()[1, :2], [[7.0, 7.0]] * 2)


def test_wrong_lengths() -> None:
    x = vkml.zeros(4, 2, 3)
    for lengths, words in (
        ([1, 4], "sorted"),
        ([4], "batch_size"),
        ([4, 0], "greater than 0"),
        ([9, 1], "steps"),
    ):
        with pytest.raises(RuntimeError, match=words):
            rnn.pack_padded_sequence(x, lengths)


def test_an_lstm_learns_to_remember(device_name: str) -> None:
    """The first element of a sequence, after six others."""
    vkml.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((6, 32, 1)).astype(np.float32)
    layer, last = nn.LSTM(1, 8).to(device_name), nn.Linear(8, 1).to(device_name)
    optimizer = vkml.optim.Adam([*layer.parameters(), *last.parameters()], lr=0.03)
    given, wanted = vkml.tensor(x, device=device_name), vkml.tensor(np.sign(x[0]), device=device_name)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(last(layer(given)[1][0][0]), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.8 and losses[-1] < 0.2
