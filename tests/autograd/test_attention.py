"""Gradients of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.autograd.checking import check, normal
from vkml.engine.cpu_bound import CpuBound
from vkml.ops import attention_blocks


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


@pytest.mark.parametrize("zeros", ["is_empty_zero", "is_nan_zero"])
def test_shared_heads_capped_scores_and_rows_that_see_nothing(zeros: str, device_name: str) -> None:
    generator = np.random.default_rng(9)
    given = [normal(generator, 2, 4, 3, 3), normal(generator, 2, 2, 4, 3), normal(generator, 2, 2, 4, 2)]
    mask = generator.random((3, 4)) < 0.7
    mask[1] = False
    attributes = {"group": 2, "softcap": 1.5, zeros: 1}
    check_attention([*given, mask], device_name, attributes=attributes, second_order=False)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows at most."""
    monkeypatch.setattr(attention_blocks, "BLOCK_BYTES", 1)
    monkeypatch.setattr(attention_blocks, "LEAST_ROWS", 2)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("offset", [0, 2, -1, None])
def test_blocks_of_rows(offset: int | None, device_name: str) -> None:
    """With every kind of mask, heads that are shared, rows and keys that do not divide."""
    generator = np.random.default_rng(11)
    given = [normal(generator, 2, 4, 5, 3), normal(generator, 2, 2, 6, 3), normal(generator, 2, 2, 6, 2)]
    mask = generator.random((5, 6)) < 0.8
    mask[2] = False
    attributes: dict[str, Any] = {"group": 2, "softcap": 1.5, "is_empty_zero": 1}
    if offset is not None:
        attributes["causal_offset"] = offset
    bias = normal(generator, 4, 1, 6)
    check_attention([*given, mask, bias], device_name, attributes=attributes, second_order=False)


@pytest.mark.usefixtures("in_blocks")
def test_blocks_have_second_derivatives() -> None:
    generator = np.random.default_rng(12)
    bias = normal(generator, 2, 4, 4)
    attributes = {"causal_offset": 0}
    check_attention([*inputs(rows=4), None, bias], "cpu", attributes=attributes)


@pytest.mark.usefixtures("in_blocks")
def test_blocks_with_finite_fills_and_transposed_keys(device_name: str) -> None:
    q, k, v = inputs(rows=5)
    attributes = {"causal_offset": 1, "fill": -2.0, "is_key_transposed": 1}
    given = [q, k[:1, :1].swapaxes(-1, -2), v[0]]
    check_attention(given, device_name, attributes=attributes, second_order=False)


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_more_than_a_block_of_scores_is_kept(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, heads, size = 500 + is_causal, 2, 4  # gradients of known structures are not derived again
    whole = 4 * heads * rows * rows
    monkeypatch.setattr(attention_blocks, "BLOCK_BYTES", whole // 8)
    sizes: list[int] = []
    run = CpuBound.run

    def noting(self: CpuBound, *arguments: Any, **more: Any) -> Any:
        made = run(self, *arguments, **more)
        sizes.append(self.arena_bytes)
        return made

    monkeypatch.setattr(CpuBound, "run", noting)
    given = [vkml.rand(heads, rows, size, requires_grad=True) for _ in range(3)]
    found = vkml.nn.functional.scaled_dot_product_attention(*given, is_causal=is_causal)
    found.sum().backward()
    assert all(x.grad is not None and np.isfinite(x.grad.numpy()).all() for x in given)
    assert 0 < max(sizes) < 1.5 * whole  # of scores in one piece there are four


def test_onnx_attention_through_its_steps() -> None:
    generator = np.random.default_rng(10)
    given: list[Any] = [normal(generator, 1, 3, 8), *(normal(generator, 1, 2, 4) for _ in range(2))]
    given += [None, *(normal(generator, 1, 1, 2, 4) for _ in range(2))]
    attributes = {"q_num_heads": 2, "kv_num_heads": 1, "is_causal": 1}
    check("Attention", given, attributes, outputs=3, second_order=False)
