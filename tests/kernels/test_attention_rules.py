"""When attention runs on matrix units, in which variant, and what it knows of fragments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu_targets import FRAGMENTS, GPU, LAYOUTS, MMA
from vkml.ir import TensorType, dtypes
from vkml.kernels import attention
from vkml.kernels.attention import Attention, Causal
from vkml.kernels.attention_variants import (
    SHAPES,
    Extent,
    Variant,
    choose,
    defines,
    head_of,
    ordered,
    variant_of,
)
from vkml.kernels.fragment_layout import FragmentLayouts, Layout, layout_of
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.trials import Trials
from vkml.lowering.vulkan_builder import VulkanBuilder


def given(
    heads: int = 16, queries: int = 4096, keys: int = 4096, head: int = 128, dtype: Any = dtypes.FLOAT32
) -> Attention:
    def view(rows: int) -> View:
        type_ = TensorType(dtype, (1, heads, rows, head))
        return contiguous(Buffer(BufferKind.INPUT, type_.bytes, "x"), type_)

    return Attention(view(queries), view(keys), view(keys), 0.1)


def test_what_is_for_matrix_units() -> None:
    assert attention.refusal(GPU, given()) == ""
    assert attention.refusal(GPU, given(dtype=dtypes.FLOAT16)) == ""
    unknown = replace(GPU, fragment_layouts=lambda fragment: None)
    assert attention.refusal(unknown, given()) == ""  # scores go through shared memory
    refused = {
        "strict": (replace(GPU, strict_fp32=True), given()),
        "no matrix units": (replace(GPU, fragment=None), given()),
        "small": (replace(GPU, fragment=Fragment(8, 8, 8, 8)), given()),
        "lacks": (replace(GPU, capabilities=frozenset()), given()),
        "neither": (GPU, given(dtype=dtypes.FLOAT64)),
        "columns": (GPU, given(head=264)),
        "float16 heads": (GPU, given(head=60, dtype=dtypes.FLOAT16)),
        "rows only": (GPU, given(queries=4)),
        "no variant": (replace(GPU, shared_bytes=4096), given()),
        "scale": (GPU, replace(given(), scale=-1.0)),
        "beside others": (GPU, replace(given(), bias=given().q, causal=Causal(0, fill=-1e9))),
        "below": (GPU, replace(given(), softcap=math.inf)),
        "differ": (GPU, replace(given(), v=given(head=64).v)),
    }
    for reason, (target, asked) in refused.items():
        assert reason in attention.refusal(target, asked), reason


@pytest.mark.parametrize("has_floats", [False, True])
def test_every_shape_fits_a_gpu(has_floats: bool) -> None:
    for head, shapes in SHAPES.items():
        for shape in shapes:
            variant = variant_of(shape, FRAGMENTS, head)
            variant.check()
            assert variant.shared_bytes(has_floats=has_floats) <= 48 << 10
            assert defines(variant, LAYOUTS[variant.fragment.n])["HEAD"] == head
    for head in range(1, 257):
        chosen = choose(Extent(1, 4, 300, 300, head, has_floats=has_floats), FRAGMENTS, 132)
        assert chosen is not None
        assert chosen.head == head_of(head) >= head


def test_rule_occupies_the_device() -> None:
    large = Extent(1, 16, 4096, 4096, 128)

    def rows(**changes: Any) -> tuple[int, int]:
        found = choose(replace(large, **changes), FRAGMENTS, 132)
        assert found is not None
        return found.tile_rows, found.sub_rows

    assert rows() == (256, 32)
    assert rows(heads=1)[0] == 32
    # Masks cost registers, which the variant for whole tiles has none left of.
    assert rows(keys=4095)[1] == 16
    assert rows(is_masked=True)[1] == 16


def test_candidates_are_the_rules_choice_and_others_that_fit() -> None:
    for head in (64, 128, 256):
        extent = Extent(1, 4, 300, 300, head, has_floats=True)
        found = ordered(extent, FRAGMENTS, 132)
        assert found[0] == choose(extent, FRAGMENTS, 132)
        assert len(found) > 1 and len({variant.label for variant in found}) == len(found)
        assert all(variant.shared_bytes(has_floats=True) <= 48 << 10 for variant in found)
    assert ordered(extent, FRAGMENTS, 132, shared_bytes=1024) == []
    trials = Trials()
    # Wide fragments are left out where it is not known what lanes hold of them.
    narrow = replace(GPU, fragment_layouts=lambda fragment: LAYOUTS[8] if fragment.n == 8 else None)
    build = VulkanBuilder(narrow, trials)
    asked = given(heads=2, queries=300, keys=300, head=64, dtype=dtypes.FLOAT16)
    with build.step(asked.q.type):
        attention.launch(build, asked, asked.q.type)
    [labels] = [[trial.label for trial in each] for each in trials.found.values()]
    assert len(labels) > 1 and not any("16x16x16" in label for label in labels)


def test_layout_is_found_from_places() -> None:
    places = np.array([[MMA.place(lane, element) for lane in range(32)] for element in range(4)])
    assert layout_of(places) == MMA
    assert (MMA.slots, MMA.lane_masks) == (2, 3)
    # Two elements that change places are no formula of bits any more.
    places[[0, 1], 5] = places[[1, 0], 5]
    assert layout_of(places) is None


def test_operand_stays_in_its_lane_where_layouts_agree() -> None:
    assert LAYOUTS[8].moves(8) == ((0, 1), (0, 2), (1, 0))
    by_rows = Layout(((1, 0), (2, 0), (4, 0), (8, 0), (0, 8)), ((0, 1), (0, 2), (0, 4)))
    assert FragmentLayouts(by_rows, MMA).moves(8) is None
    with pytest.raises(ValueError, match="rows_in='shared'"):
        defines(Variant(FRAGMENTS[0], 64), FragmentLayouts(by_rows, MMA))
