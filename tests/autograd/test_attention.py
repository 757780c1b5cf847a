"""Gradients of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal


def inputs(*, batch: tuple[int, ...] = (2, 2), rows: int = 3, keys: int = 4, size: int = 3) -> list[Any]:
    generator = np.random.default_rng(rows * keys)
    return [
        normal(generator, *batch, rows, size),
        normal(generator, *batch, keys, size),
        normal(generator, *batch, keys, 2),
    ]


def check_attention(given: list[Any], device: str, **more: Any) -> list[Any]:
    attributes = {"scale": 0.7, **more.pop("attributes", {})}
    # The reference computes in float32 at least: float64 is the reference of differences.
    return check("Attention", given, attributes, domain="vkml", device=device, **more)


def test_plain(device_name: str) -> None:
    check_attention(inputs(), device_name)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    attend = torch.nn.functional.scaled_dot_product_attention
    check_attention(inputs(), "cpu", torch=lambda q, k, v: attend(q, k, v, scale=0.7),
                    differences=False)  # fmt: skip


def test_keys_transposed_and_batches_broadcast(device_name: str) -> None:
    q, k, v = inputs()
    given = [q, k[:1, :1].swapaxes(-1, -2), v[0]]
    check_attention(given, device_name, attributes={"is_key_transposed": 1})


@pytest.mark.parametrize("is_hiding", [0, 1])
def test_mask_and_bias(is_hiding: int, device_name: str) -> None:
    generator = np.random.default_rng(7)
    mask = generator.random((2, 1, 3, 4)) < 0.6
    mask[..., 0] = not is_hiding  # each row sees one
    if is_hiding:
        mask[..., 0] = False
    bias = normal(generator, 3, 4)
    found = check_attention([*inputs(), mask, bias], device_name, attributes={"is_mask_hiding": is_hiding})
    assert found[3].shape == (3, 4)


def test_a_number_in_the_place_of_scores(device_name: str) -> None:
    mask = np.tri(3, 4, dtype=np.bool_)
    check_attention([*inputs(), mask], device_name, attributes={"fill": -2.0})


@pytest.mark.parametrize("is_added", [0, 1])
def test_causal(is_added: int, device_name: str) -> None:
    attributes = {"causal_offset": 1, "fill": -1e9, "is_fill_added": is_added}
    check_attention(inputs(), device_name, attributes=attributes, second_order=not is_added)


def test_half_floats(device_name: str) -> None:
    check_attention(inputs(), device_name, dtype=np.float16, second_order=False)


def test_shared_heads_capped_scores_and_rows_that_see_nothing(device_name: str) -> None:
    generator = np.random.default_rng(9)
    given = [normal(generator, 2, 4, 3, 3), normal(generator, 2, 2, 4, 3), normal(generator, 2, 2, 4, 2)]
    mask = generator.random((3, 4)) < 0.7
    mask[1] = False
    attributes = {"group": 2, "softcap": 1.5, "is_empty_zero": 1}
    check_attention([*given, mask], device_name, attributes=attributes, second_order=False)


def test_onnx_attention_through_its_steps() -> None:
    generator = np.random.default_rng(10)
    given: list[Any] = [normal(generator, 1, 3, 8), *(normal(generator, 1, 2, 4) for _ in range(2))]
    given += [None, *(normal(generator, 1, 1, 2, 4) for _ in range(2))]
    attributes = {"q_num_heads": 2, "kv_num_heads": 1, "is_causal": 1}
    check("Attention", given, attributes, outputs=3, second_order=False)
