"""Gradients of operators that give elements another shape, another type or another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml import tracing
from vkml.ir.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32
from vkml.ops.resample import transposed_table

RANDOM = np.random.default_rng(31)


def leaf(array: Any) -> tracing.Traced:
    value = tracing.value_of(array)
    value.tracks = value.is_leaf = True
    return value


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Identity", [], {}),
        ("Reshape", [ints(4, -1)], {}),
        ("Reshape", [ints(0, 6, 2)], {}),
        ("Flatten", [], {"axis": 2}),
        ("Squeeze", [], {}),
        ("Squeeze", [ints(-2)], {}),
        ("Unsqueeze", [ints(0, -1)], {}),
        ("Transpose", [], {}),
        ("Transpose", [], {"perm": (2, 0, 3, 1)}),
        ("Trilu", [], {"upper": 0}),
        ("Trilu", [np.array(-1, np.int64)], {}),
    ],
)
def test_moves(op: str, inputs: list[Any], attributes: dict[str, Any], device_name: str) -> None:
    check(op, [normal(RANDOM, 2, 3, 1, 4), *inputs], attributes, device=device_name)


def test_transposing_goes_back_by_the_inverse_order(device_name: str) -> None:
    check(
        "Transpose", [normal(RANDOM, 2, 3, 4)], {"perm": (1, 2, 0)},
        torch=lambda x: x.permute(1, 2, 0), device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3, 1), (4, 2, 3, 5), (1,), (3, 1)])
def test_expand(shape: tuple[int, ...], device_name: str) -> None:
    check("Expand", [normal(RANDOM, 3, 1), ints(*shape)], device=device_name)


@pytest.mark.parametrize("repeats", [(2, 3, 1), (1, 1, 1), (1, 4, 2)])
def test_tile(repeats: tuple[int, ...], device_name: str) -> None:
    check(
        "Tile", [normal(RANDOM, 2, 1, 3), ints(*repeats)],
        torch=lambda x, _: x.repeat(repeats), device=device_name,
    )  # fmt: skip


def test_tile_to_nothing_gives_zeros() -> None:
    [found] = check("Tile", [normal(RANDOM, 2, 3), ints(0, 2)])
    assert found is not None and not found.any()


def test_casts_carry_gradients_between_floats_only() -> None:
    x = leaf(normal(RANDOM, 3).astype(np.float32))
    half = tracing.apply("Cast", x, to=FLOAT16.code)
    ones = tracing.value_of(np.ones(3, np.float16))
    [found] = tracing.gradients([half], [ones], [x])
    assert found is not None and found.type.dtype == FLOAT32
    whole = tracing.apply("Cast", tracing.apply("Cast", x, to=INT32.code), to=FLOAT64.code)
    [found] = tracing.gradients([whole], [tracing.value_of(np.ones(3))], [x])
    assert found is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cast_like_sixteen_bits(dtype: str) -> None:
    import ml_dtypes

    narrow = np.zeros(1, {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype])
    x = leaf(normal(RANDOM, 4).astype(np.float32))
    made = tracing.apply("CastLike", x, tracing.value_of(narrow))
    [found] = tracing.gradients([made], [tracing.value_of(np.ones(4, narrow.dtype))], [x])
    assert found is not None
    tracing.evaluate([found])
    assert np.asarray(found.data).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(found.data), 1)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
def test_depth_and_space(op: str, mode: str, device_name: str) -> None:
    check(op, [normal(RANDOM, 2, 8, 2, 4)], {"blocksize": 2, "mode": mode}, device=device_name)


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch: int, time: int, device_name: str) -> None:
    x = normal(RANDOM, 4, 4, 2)
    check(
        "ReverseSequence", [x, ints(1, 4, 0, 3)], {"batch_axis": batch, "time_axis": time}, device=device_name
    )


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 1), (2, 4), (2, 0), (2, 2)]])
def test_concat(shapes: list[tuple[int, int]], device_name: str) -> None:
    check("Concat", [normal(RANDOM, *shape) for shape in shapes], {"axis": -1}, device=device_name)


@pytest.mark.parametrize("counted", [(0, 1, 2), (0, 2), (1,)])
def test_split(counted: tuple[int, ...], device_name: str) -> None:
    check(
        "Split", [normal(RANDOM, 2, 7), ints(1, 4, 2)], {"axis": 1},
        outputs=3, counted=counted, torch=lambda x, _: x.split([1, 4, 2], 1), device=device_name,
    )  # fmt: skip


def test_split_into_unequal_parts(device_name: str) -> None:
    check("Split", [normal(RANDOM, 7, 2)], {"num_outputs": 3}, outputs=3, device=device_name)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1,), (-1,), (0,), None),
        ((0, -3), (9, 9), (2, 1), (1, 1)),
        ((1, 0), (7, 6), (0, 2), (3, 2)),
        ((-1, 4), (-99, 0), (0, 2), (-1, -2)),
        ((6,), (0,), (0,), (-4,)),
        ((6, 5), (7, 6), (0, 2), (5, -3)),
        ((3,), (3,), (0,), None),
        ((2,), (2**62,), (0,), (100,)),
    ],
)
def test_slice(starts: Any, ends: Any, axes: Any, steps: Any, device_name: str) -> None:
    stated = [ints(*entries) for entries in (starts, ends, axes)]
    inputs = [normal(RANDOM, 7, 3, 6), *stated, *([] if steps is None else [ints(*steps)])]
    check("Slice", inputs, device=device_name)


@pytest.mark.parametrize(
    ("mode", "pads", "axes"),
    [
        ("constant", (1, 0, 2, 0, 3, 0), None),
        ("constant", (-1, 2, 0, 1, -1, -3), None),
        ("constant", (2, 3), (-1,)),
        ("constant", (-9, 12), (2,)),
        ("reflect", (2, 1, 0, 2, 0, 3), None),
        ("reflect", (-1, 5, 2, 4), (2, 0)),
        ("edge", (2, 1, 0, 2, -1, 3), None),
        ("wrap", (2, 1, 7, 2, -1, 3), None),
    ],
)
def test_pad(mode: str, pads: Any, axes: Any, device_name: str) -> None:
    inputs = [normal(RANDOM, 4, 2, 5), ints(*pads), None, None if axes is None else ints(*axes)]
    if mode == "constant":
        inputs[2] = normal(RANDOM)
    if inputs[3] is None:
        inputs.pop()
    check("Pad", inputs, {"mode": mode}, device=device_name)


def test_modes_of_padding_as_torch_has_them(device_name: str) -> None:
    torch = pytest.importorskip("torch")

    pads = ints(0, 0, 2, 1, 0, 0, 1, 3)
    for mode, name in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
        check(
            "Pad", [normal(RANDOM, 1, 2, 4, 5), pads], {"mode": mode},
            torch=lambda x, _, name=name: torch.nn.functional.pad(x, (1, 3, 2, 1), mode=name),
            device=device_name,
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 7), (6, 2), (4, 4), (5, 9)])
def test_center_crop_pad(shape: tuple[int, int], device_name: str) -> None:
    check("CenterCropPad", [normal(RANDOM, 4, 2, 5), ints(*shape)], {"axes": (0, 2)}, device=device_name)


def test_a_transposed_table_is_the_transposed_matrix() -> None:
    def matrix(places: Any, weights: Any, size: int) -> Any:
        made = np.zeros((len(places), size))
        for row, (taken, by) in enumerate(zip(places, weights, strict=True)):
            np.add.at(made[row], taken, by)
        return made

    for size, count, taps in ((5, 9, 3), (7, 2, 2), (4, 4, 1), (3, 0, 2)):
        places = RANDOM.integers(0, size, (count, taps))
        weights = RANDOM.integers(0, 3, (count, taps)).astype(np.float32)
        back = transposed_table(places, weights, size)
        np.testing.assert_array_equal(
            matrix(*back, max(count, 1))[:, :count], matrix(places, weights, size).T
        )


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_many_inputs(op: str, device_name: str) -> None:
    shapes = (3, 1), (4,), (2, 3, 4)
    # All apart from each other: where two are equal, extremes have a kink.
    parts = np.split(RANDOM.permutation(31) / 10 - 1.5, np.cumsum([3, 4]))
    check(op, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], device=device_name)


def test_choices_get_nothing_where_they_are_not_taken(device_name: str) -> None:
    condition = RANDOM.integers(0, 2, (3, 4)).astype(bool)
    check("Where", [condition, normal(RANDOM, 3, 1), normal(RANDOM, 4)], device=device_name)
