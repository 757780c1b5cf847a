"""Philox4x32-10: the paper's vectors, a reference of Python's integers, counters that carry, all devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.ops.checking import inferred_types, run_operator
from vkml.errors import InvalidGraph
from vkml.ir import TensorType, dtypes
from vkml.ops.philox import COLUMNS, STATE_WORDS, blocks_of
from vkml.tensors import Tensor
from vkml.tensors.creation import tensor
from vkml.tracing import apply_all, number

VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
"""Counter, key and words: `kat_vectors` of Random123 1.14, the library of the paper's authors."""


def reference(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """The block by Python's integers, written from the paper."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ k0,
            second & 0xFFFFFFFF,
            (first >> 32) ^ c3 ^ k1,
            first & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _counter(at: int) -> list[int]:
    return [at >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]


def _drawn(state: Sequence[int], skip: int, blocks: int, device: str) -> np.ndarray:
    """[blocks, 4] words."""
    given = tensor(np.array(state, np.uint32), device=device).value
    parts = apply_all("Philox", [given, number(skip, dtypes.UINT32)], 4, domain="vkml", blocks=blocks)
    return np.stack([Tensor(part).numpy().reshape(-1) for part in parts], 1)


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_the_vectors_of_the_paper(
    counter: list[int], key: list[int], words: list[int], device_name: str
) -> None:
    assert reference(counter, key) == words
    assert _drawn([*key, *counter], 0, 1, device_name).tolist() == [words]


@pytest.mark.parametrize("blocks", [5, COLUMNS, 3 * COLUMNS])
def test_blocks_follow_each_other_across_carries(blocks: int, device_name: str) -> None:
    key, start, skip = [7, 0xFFFF0001], (1 << 96) - 4, 2
    found = _drawn([*key, *_counter(start)], skip, blocks, device_name)
    for at in (0, 1, 2, 4, blocks - 1):
        assert found[at].tolist() == reference(_counter(start + skip + at), key), at
    assert len(np.unique(found)) > 4 * blocks - 4


@pytest.mark.parametrize("count", [1, 0xFFFFFFFF])
@pytest.mark.parametrize("start", [0, 3, (1 << 64) - 1, (1 << 128) - 2])
def test_the_state_advances_by_blocks(start: int, count: int, device_name: str) -> None:
    from vkml.tracing import apply

    state = tensor(np.array([5, 6, *_counter(start)], np.uint32), device=device_name)
    made = apply("PhiloxAdvance", state.value, number(count, dtypes.UINT32), domain="vkml")
    assert Tensor(made).tolist() == [5, 6, *_counter((start + count) % (1 << 128))]


def test_evaluation_is_the_reference() -> None:
    state = np.array([1, 2, 3, 4, 5, 6], np.uint32)
    found = run_operator(
        "Philox", [state, np.array(9, np.uint32)], {"blocks": 2}, outputs=4, domain="vkml", opset=1
    )
    assert [int(words[0, 1]) for words in found] == reference([3 + 9 + 1, 4, 5, 6], [1, 2])
    assert [words.shape for words in found] == [(1, 2)] * 4


def test_words_need_whole_blocks() -> None:
    assert [blocks_of(count) for count in (0, 1, 4, 5, 4 * COLUMNS, 4 * COLUMNS + 1)] == [
        0, 1, 1, 2, COLUMNS, 2 * COLUMNS,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "count", "words"),
    [
        (TensorType(dtypes.INT32, (STATE_WORDS,)), TensorType(dtypes.UINT32, ()), "the state"),
        (TensorType(dtypes.UINT32, (4,)), TensorType(dtypes.UINT32, ()), "6 words"),
        (TensorType(dtypes.UINT32, (STATE_WORDS,)), TensorType(dtypes.UINT32, (1,)), "single number"),
    ],
)
def test_what_is_no_state(state: TensorType, count: TensorType, words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        inferred_types("Philox", [state, count], {"blocks": 1}, outputs=4, domain="vkml", opset=1)
    with pytest.raises(InvalidGraph, match="multiple"):
        given = [TensorType(dtypes.UINT32, (STATE_WORDS,)), TensorType(dtypes.UINT32, ())]
        inferred_types("Philox", given, {"blocks": COLUMNS + 1}, outputs=4, domain="vkml", opset=1)
