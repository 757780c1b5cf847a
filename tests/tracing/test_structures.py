"""What recordings share: programs of equal structures, numbers that vary, attributes that only look equal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import device_called, host, leaf, placed
from vkml import tracing
from vkml.errors import InvalidArgument, InvalidGraph
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT32, INT64
from vkml.tracing import Traced, apply, apply_all, constant, evaluation, number, value_of

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    """No programs of other tests."""
    evaluation._structures.clear()
    evaluation._programs.clear()
    yield


def vector(*elements: float) -> Traced:
    return value_of(np.array(elements, np.float32))


def looked_at(value: Traced) -> list[float]:
    tracing.evaluate([value])
    return np.asarray(value.data).tolist()  # type: ignore[no-any-return]


def programs() -> int:
    return len(evaluation._programs)


def test_nothing_is_computed_before_it_is_looked_at() -> None:
    made = apply("Add", vector(1, 2), vector(3, 4))
    assert made.data is None and made.dims == (2,) and made.type.dtype is FLOAT32
    assert programs() == 0
    assert looked_at(made) == [4, 6]
    assert programs() == 1


def test_plans_are_kept_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go; the last one stays, whatever its size."""
    monkeypatch.setattr(evaluation, "APPLICATIONS_KEPT", 10)
    for length, kept in ((3, [3]), (4, [3, 4]), (2, [3, 4, 2]), (5, [2, 5]), (11, [11]), (1, [1])):
        value = vector(1, -1)
        for _ in range(length):
            value = apply("Neg", value)
        assert looked_at(value) == [(-1) ** length, -((-1) ** length)]
        assert [program.size for program in evaluation._programs.values()] == kept


def test_equal_structures_share_a_program() -> None:
    def recorded(x: Traced, y: Traced) -> Traced:
        return apply("Mul", apply("Add", x, y), y)

    assert looked_at(recorded(vector(1, 2), vector(3, 4))) == [12, 24]
    assert looked_at(recorded(vector(5, 6), vector(7, 8))) == [84, 112]
    assert programs() == 1


def test_what_is_read_twice_is_another_structure() -> None:
    x, y = vector(1, 2), vector(3, 4)
    assert looked_at(apply("Sub", x, y)) == [-2, -2]
    assert looked_at(apply("Sub", x, x)) == [0, 0]
    assert programs() == 2
    assert looked_at(apply("Sub", y, x)) == [2, 2]
    assert programs() == 2


def test_the_order_of_what_is_wanted_counts() -> None:
    def both(x: Traced) -> list[Traced]:
        return [apply("Neg", x), apply("Exp", x)]

    first = both(vector(0, 0))
    tracing.evaluate(first)
    second = both(vector(0, 0))
    tracing.evaluate(second[::-1])
    for negative, exponential in (first, second):
        assert looked_at(negative) == [0, 0] and looked_at(exponential) == [1, 1]


def test_sizes_and_types_are_part_of_the_structure() -> None:
    for dtype, size in itertools.product((np.float32, np.float64), (2, 3)):
        x = value_of(np.arange(size, dtype=dtype))
        made = apply("Neg", x)
        assert looked_at(made) == (-np.arange(size)).tolist() and np.asarray(made.data).dtype == dtype
    assert programs() == 4


def test_elements_of_constants_are_part_of_the_structure() -> None:
    x = value_of(np.arange(6, dtype=np.float32))
    for dims in ((2, 3), (3, 2), (2, 3)):
        made = apply("Reshape", x, constant(dims, INT64))
        assert made.dims == dims
        tracing.evaluate([made])
        assert np.asarray(made.data).shape == dims
    assert programs() == 2


# --- numbers of the program's text --------------------------------------------------------------------------


def scaled(x: Traced, by: float) -> Traced:
    return apply("Mul", x, number(by, FLOAT32))


def test_a_number_that_stays_is_part_of_the_program() -> None:
    for x in (1.0, 2.0, 3.0):
        assert looked_at(scaled(vector(x), 0.5)) == [x / 2]
    assert programs() == 1
    [program] = evaluation._programs.values()
    assert len(program.inputs) == 1


def test_a_number_that_varies_becomes_an_input() -> None:
    for step in range(8):
        assert looked_at(scaled(vector(1, 2), step)) == [step, 2 * step]
    assert programs() == 2  # with the first number in it, and with the number as an input


def test_only_the_number_that_varies_becomes_an_input() -> None:
    for step in range(4):
        made = apply("Add", scaled(vector(1, 2), 3), number(step, FLOAT32))
        assert looked_at(made) == [3 + step, 6 + step]
    assert programs() == 2
    latest = [*evaluation._programs.values()][-1]
    assert len(latest.inputs) == 2  # x and one number


def test_zero_and_minus_zero_are_different_numbers() -> None:
    for zero in (0.0, -0.0, 0.0):
        [found] = looked_at(scaled(vector(1), zero))
        assert np.signbit(found) == np.signbit(zero)


def test_a_number_that_is_not_one_stays_the_same() -> None:
    for _ in range(3):
        assert np.isnan(looked_at(scaled(vector(1), float("nan")))).all()
    assert programs() == 1


def test_a_number_that_decides_shapes_is_a_constant() -> None:
    for limit in (3, 4, 5, 3):
        made = apply("Range", number(0, INT64), number(limit, INT64), number(1, INT64))
        assert made.dims == (limit,)
        assert looked_at(apply("Neg", made)) == [-n for n in range(limit)]
    # Fed, it would leave the sizes of all that follows open.
    assert programs() == 3 and not any(program.inputs for program in evaluation._programs.values())


def test_data_that_decides_shapes_is_refused() -> None:
    with pytest.raises(TypeError, match="Reshape: input 1 decides shapes"):
        apply("Reshape", vector(1, 2), value_of(np.array([2, 1])))


# --- attributes ---------------------------------------------------------------------------------------------


def test_attributes_are_part_of_the_structure() -> None:
    x = vector(-2, 2)
    assert looked_at(apply("LeakyRelu", x, alpha=0.5)) == [-1, 2]
    assert looked_at(apply("LeakyRelu", x, alpha=0.25)) == [-0.5, 2]


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_attributes_of_zero_keep_their_sign(order: tuple[float, float]) -> None:
    for alpha in order:
        # 0 is -1 alpha; a sum with the part above 0 would hide its sign.
        [found] = looked_at(apply("LeakyRelu", vector(-1), alpha=alpha))
        assert np.signbit(found) == (not np.signbit(alpha))


def test_an_attribute_is_no_other_type_that_equals_it() -> None:
    x = vector(1.5, 2.5)
    with pytest.raises(InvalidGraph, match="to"):
        apply("Cast", x, to=6.5)
    assert apply("Cast", x, to=6).type.dtype is INT32
    assert apply("Hardmax", x, axis=0).application is not None
    with pytest.raises(InvalidGraph, match="axis"):
        apply("Hardmax", x, axis=0.0)


def test_a_form_with_shared_parts_is_no_text() -> None:
    x = scalar.argument(0, FLOAT64)
    for _ in range(64):  # 2^64 characters, were it written
        x = x * x
    start = time.perf_counter()
    made = apply("Expression", value_of(np.ones(2)), domain="vkml", form=x, to=FLOAT64.code)
    assert looked_at(made) == [1, 1]
    assert time.perf_counter() - start < 30


# --- what others hold ---------------------------------------------------------------------------------------


def test_values_that_a_tensor_holds_come_along() -> None:
    x = vector(1, 2)
    held, passing = apply("Exp", x), apply("Neg", x)
    held.holders = 1
    assert looked_at(apply("Add", held, passing)) == pytest.approx([np.e - 1, np.e**2 - 2], rel=1e-5)
    assert held.data is not None and passing.data is None
    assert held.application is None


def test_who_holds_what_is_part_of_the_structure() -> None:
    def step(holds: bool) -> Traced:
        middle = apply("Exp", vector(0, 0))
        middle.holders = int(holds)
        looked_at(apply("Neg", middle))
        return middle

    assert step(False).data is None
    assert np.asarray(step(True).data).tolist() == [1, 1]
    assert step(False).data is None


def test_what_follows_a_value_is_not_computed_with_it() -> None:
    first = apply("Exp", vector(0, 0))
    second = apply("Neg", first)
    second.holders = 1
    assert looked_at(first) == [1, 1]
    assert second.data is None


def test_known_values_are_not_computed_again() -> None:
    first = apply("Exp", vector(0, 0))
    looked_at(first)
    data = first.data
    second = apply("Neg", first)
    assert looked_at(second) == [-1, -1]
    tracing.evaluate([first, second])
    assert first.data is data


def test_history_stays_where_gradients_flow() -> None:
    x = vector(1, 2)
    x.tracks = x.is_leaf = True
    tracked, other = apply("Exp", x), apply("Exp", vector(1, 2))
    tracing.evaluate([tracked, other])
    assert tracked.application is not None and other.application is None


# --- several outputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (2, 1, 0)])
def test_needed_outputs_of_several(wanted: tuple[int, ...], device_name: str) -> None:
    parts = apply_all(
        "Split", [placed(np.arange(6, dtype=np.float32), device_called(device_name))], 3, num_outputs=3
    )
    assert [part.dims for part in parts] == [(2,)] * 3
    tracing.evaluate([parts[at] for at in wanted])
    for at, part in enumerate(parts):
        assert (part.data is not None) == (at in wanted)
        if part.data is not None:
            assert host(part).tolist() == [2 * at, 2 * at + 1]


def test_an_output_that_nobody_looks_at_any_more(device_name: str) -> None:
    data = np.array([3, 1, 2], np.float32)
    values, places = apply_all("TopK", [placed(data, device_called(device_name)), constant([2], INT64)], 2)
    del values
    again = apply("Cast", places, to=FLOAT32.code)
    tracing.evaluate([again])
    assert host(again).tolist() == [0, 2]


def test_the_same_output_is_the_same_value() -> None:
    [first, second] = apply_all("Split", [vector(1, 2)], 2, num_outputs=2)
    application = first.application
    assert application is not None
    assert application.output(0) is first and application.output(1) is second


# --- devices ------------------------------------------------------------------------------------------------


def test_values_stay_on_their_device(device_name: str) -> None:
    x = placed(np.array([1, 2], np.float32), device_called(device_name))
    made = apply("Add", apply("Mul", x, number(3, FLOAT32)), constant(1, FLOAT32))
    assert made.device is x.device
    tracing.evaluate([made])
    assert (made.device is None) == isinstance(made.data, np.ndarray)
    assert host(made).tolist() == [4, 7]


def test_several_devices_are_refused(vulkan_device_name: str) -> None:
    here, there = (
        placed(np.ones(2, np.float32), device_called(name)) for name in ("cpu", vulkan_device_name)
    )
    for pair in ((here, there), (there, here)):
        with pytest.raises(InvalidArgument, match="the tensors are on"):
            apply("Add", *pair)
    # A number of a device goes with nothing of another; the host's go with all.
    alone = placed(np.array(2, np.float32), device_called(vulkan_device_name))
    with pytest.raises(InvalidArgument, match="the tensors are on"):
        apply("Add", here, alone)


def test_numbers_of_the_host_go_with_any_device(vulkan_device_name: str) -> None:
    there = placed(np.ones(2, np.float32), device_called(vulkan_device_name))
    for two in (
        value_of(np.array(2, np.float32)),
        placed(np.array(2, np.float32), device_called(vulkan_device_name)),
    ):
        made = apply("Mul", there, two)
        assert made.device is there.device
        tracing.evaluate([made])
        assert host(made).tolist() == [2, 2]


def test_what_the_host_computes_stays_there(vulkan_device_name: str) -> None:
    two = apply("Add", value_of(np.array(1, np.float32)), value_of(np.array(1, np.float32)))
    two.holders = 1
    there = placed(np.ones(2, np.float32), device_called(vulkan_device_name))
    made = apply("Mul", there, two)
    tracing.evaluate([made])
    assert host(made).tolist() == [2, 2]
    assert two.device is None and isinstance(two.data, np.ndarray) and two.data.shape == ()


def test_values_on_several_devices_are_computed_at_once(vulkan_device_name: str) -> None:
    pair = [
        apply("Neg", placed(np.ones(2, np.float32), device_called(name)))
        for name in ("cpu", vulkan_device_name)
    ]
    tracing.evaluate(pair)
    assert [host(value).tolist() for value in pair] == [[-1, -1], [-1, -1]]


def test_what_came_along_with_another_device_is_not_computed_again(vulkan_device_name: str) -> None:
    two = apply("Add", value_of(np.array(1, np.float32)), value_of(np.array(1, np.float32)))
    two.holders = 1
    made = apply("Mul", placed(np.ones(2, np.float32), device_called(vulkan_device_name)), two)
    tracing.evaluate([made, two])
    assert host(made).tolist() == [2, 2] and host(two) == 2


# --- random operators ---------------------------------------------------------------------------------------


def dropped(x: Traced) -> tuple[Traced, Traced]:
    half, is_training = value_of(np.array(0.5, np.float32)), value_of(np.array(True))
    made, mask = apply_all("Dropout", [x, half, is_training], 2)
    return made, mask


def test_what_is_random_is_drawn_once() -> None:
    first, _ = dropped(value_of(np.ones(64, np.float32)))
    negative, double = apply("Neg", first), apply("Add", first, first)
    del first
    once, twice = looked_at(negative), looked_at(double)
    assert once == [-value / 2 for value in twice] and len(set(once)) == 2


def test_gradients_know_what_was_drawn() -> None:
    x = leaf(np.ones(64, np.float32), None)
    first, mask = dropped(x)
    del mask
    tracing.evaluate([first])
    [found] = tracing.gradients([first], [value_of(np.ones(64, np.float32))], [x])
    assert found is not None
    tracing.evaluate([found])
    assert host(found).tolist() == host(first).tolist()


def test_draws_differ() -> None:
    x = value_of(np.ones(64, np.float32))
    assert looked_at(dropped(x)[0]) != looked_at(dropped(x)[0])
