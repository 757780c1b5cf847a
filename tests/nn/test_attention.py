"""Attention layers against PyTorch's from the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.test_recurrent import compare, normal
from vkml import nn
from vkml.nn.functional import scaled_dot_product_attention
from vkml.tensors import Tensor

Array = np.ndarray[Any, Any]


def heads(*, rows: int = 5, keys: int = 7, size: int = 8, key_heads: int = 4) -> list[Array]:
    return [
        normal(1, 2, 4, rows, size),
        normal(2, 2, key_heads, keys, size),
        normal(3, 2, key_heads, keys, size),
    ]


def compare_functions(
    inputs: list[Array], device: str, masks: dict[str, Any] | None = None, **stated: Any
) -> None:
    torch = pytest.importorskip("torch")
    given = dict(masks or {})
    mine = [vkml.tensor(x, device=device, requires_grad=True) for x in inputs]
    right = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in inputs]
    masked = {name: vkml.tensor(x, device=device) for name, x in given.items()}
    twin = {
        name: torch.tensor(x).double() if x.dtype.kind == "f" else torch.tensor(x)
        for name, x in given.items()
    }
    found = scaled_dot_product_attention(*mine, **masked, **stated)
    wanted = torch.nn.functional.scaled_dot_product_attention(*right, **twin, **stated)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    w = normal(9, *wanted.shape)
    (found * vkml.tensor(w, device=device)).sum().backward()
    (wanted * torch.tensor(w)).sum().backward()
    for a, b in zip(mine, right, strict=True):
        assert a.grad is not None
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_functions(device_name: str) -> None:
    compare_functions(heads(), device_name)
    compare_functions(heads(), device_name, is_causal=True)
    compare_functions(heads(key_heads=2), device_name, enable_gqa=True, scale=0.3)


def test_masks(device_name: str) -> None:
    mask = np.random.default_rng(0).random((2, 1, 5, 7)) < 0.5
    mask[0, 0, 2] = False  # a row that sees nothing
    compare_functions(heads(), device_name, {"attn_mask": mask})
    compare_functions(heads(), device_name, {"attn_mask": normal(5, 5, 7)})


def test_matrices_and_further_axes() -> None:
    q, k, v = heads()
    compare_functions([q[0, 0], k[0, 0], v[0, 0]], "cpu")
    compare_functions([x[None].repeat(2, 0) for x in (q, k, v)], "cpu", is_causal=True)


def test_dropped_weights_leave_the_rest_larger() -> None:
    vkml.manual_seed(0)
    ones = vkml.ones(1, 1, 50, 4)
    found = scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5).numpy()
    assert found.std() > 0.05 and abs(found.mean() - 1) < 0.05


def test_closed_forms() -> None:
    """Equal keys weigh the same; a causal first row sees one value."""
    v = normal(1, 1, 1, 6, 3)
    found = scaled_dot_product_attention(
        vkml.ones(1, 1, 6, 2), vkml.ones(1, 1, 6, 2), vkml.tensor(v), is_causal=True
    )
    expected = np.cumsum(v, 2) / np.arange(1, 7)[:, None]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_wrong_arguments() -> None:
    q = vkml.ones(1, 2, 3, 4)
    for act, words in (
        (lambda: scaled_dot_product_attention(q, q.double(), q), "dtype"),
        (lambda: scaled_dot_product_attention(q, q, q, vkml.ones(3, 3), is_causal=True), "is_causal"),
        (lambda: scaled_dot_product_attention(q, q, q, dropout_p=2.0), "probability"),
        (lambda: scaled_dot_product_attention(q, vkml.ones(1, 3, 3, 4), q, enable_gqa=True), "evenly"),
    ):
        with pytest.raises(RuntimeError, match=words):
            act()


def pair(**stated: Any) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [module.MultiheadAttention(8, 2, **stated) for module in (nn, torch.nn)]


def called(make: list[Any], device: str, **given: Any) -> dict[str, Any]:
    """The two modules as functions of queries, keys and values, with masks of arrays."""
    import torch

    def ours(*inputs: Tensor) -> Any:
        masks = {
            k: vkml.tensor(x, device=device) if isinstance(x, np.ndarray) else x for k, x in given.items()
        }
        return [x for x in make[0](*inputs, **masks) if x is not None]

    def theirs(*inputs: Any) -> Any:
        masks = {}
        for name, x in given.items():
            is_float = isinstance(x, np.ndarray) and x.dtype.kind == "f"
            masks[name] = (
                torch.tensor(x).double() if is_float else torch.tensor(x) if isinstance(x, np.ndarray) else x
            )
        return [x for x in make[1](*inputs, **masks) if x is not None]

    return {"call": ours, "twin": theirs}


@pytest.mark.parametrize("need_weights", [True, False])
def test_several_heads(need_weights: bool, device_name: str) -> None:
    make = pair()
    inputs = [normal(at, steps, 3, 8) for at, steps in enumerate((5, 7, 7))]
    compare(*make, inputs, device_name, **called(make, device_name, need_weights=need_weights))


def test_sizes_of_their_own_and_weights_of_each_head(device_name: str) -> None:
    make = pair(kdim=3, vdim=5, batch_first=True, bias=False)
    inputs = [normal(0, 2, 5, 8), normal(1, 2, 7, 3), normal(2, 2, 7, 5)]
    compare(*make, inputs, device_name, **called(make, device_name, average_attn_weights=False))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kinds", ["bb", "bf", "fb", "b3", "ff"])
def test_masks_of_modules(need_weights: bool, kinds: str) -> None:
    random = np.random.default_rng(0)
    make = pair(add_bias_kv=True, add_zero_attn=True)
    inputs = [normal(at, steps, 3, 8) for at, steps in enumerate((5, 7, 7))]
    padding: Array = random.random((3, 7)) < 0.3
    if kinds[0] == "f":
        padding = np.where(padding, -np.inf, 0.0).astype(np.float32)
    mask: Array = random.random((6, 5, 7) if kinds[1] == "3" else (5, 7)) < 0.3
    if kinds[1] == "f":
        mask = normal(4, 5, 7)
    given = called(make, "cpu", key_padding_mask=padding, attn_mask=mask, need_weights=need_weights)
    compare(*make, inputs, "cpu", **given)


def test_without_a_batch_and_causal(device_name: str) -> None:
    make = pair()
    x = normal(0, 5, 8)
    mask = np.triu(np.ones((5, 5), np.bool_), 1)
    given = called(make, device_name, attn_mask=mask, is_causal=True, need_weights=False)
    compare(*make, [x, x, x], device_name, **given)
    with pytest.raises(RuntimeError, match="attn_mask"):
        make[0](*[vkml.tensor(x)] * 3, is_causal=True)


def test_one_tensor_for_queries_keys_and_values() -> None:
    make = pair()
    given = called(make, "cpu")
    compare(*make, [normal(0, 5, 3, 8)], "cpu", call=lambda x: given["call"](x, x, x),
            twin=lambda x: given["twin"](x, x, x))  # fmt: skip
