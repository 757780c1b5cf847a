"""Reverse mode over recorded operations: paths add up, what is asked for, what ends a path, higher orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import device_called, host, leaf, placed
from vkml import tracing
from vkml.errors import NotDifferentiable
from vkml.ir.dtypes import FLOAT64, INT64
from vkml.ir.gradients import zeros
from vkml.ir.operator import REGISTRY, Operator
from vkml.tracing import Traced, apply, apply_all, constant, value_of
from vkml.tracing.gradient import takers_of, tracked
from vkml.tracing.value import tracking

Array = np.ndarray[Any, Any]


def vector(*elements: float) -> Traced:
    return leaf(np.array(elements, np.float64), None)


def ones(value: Traced) -> Traced:
    return value_of(np.ones(value.dims, value.type.dtype.storage))


def gradient(output: Traced, *wrt: Traced) -> list[list[float] | None]:
    found = tracing.gradients([output], [ones(output)], wrt)
    tracing.evaluate([value for value in found if value is not None])
    return [None if value is None else host(value).tolist() for value in found]


def test_a_chain() -> None:
    x = vector(1, 2)
    assert gradient(apply("Mul", apply("Mul", x, x), x), x) == [[3, 12]]


def test_paths_add_up() -> None:
    x = vector(1, 2)
    twice = apply("Add", x, x)
    made = apply("Mul", apply("Add", twice, x), apply("Neg", twice))  # -6 x²
    assert gradient(made, x) == [[-12, -24]]


def test_several_outputs_add_up() -> None:
    x = vector(1, 2)
    first, second = apply("Mul", x, x), apply("Neg", x)
    cotangents = [value_of(np.array([1.0, 10.0])), value_of(np.array([100.0, 1000.0]))]
    [found] = tracing.gradients([first, second], cotangents, [x])
    assert found is not None
    tracing.evaluate([found])
    assert host(found).tolist() == [2 - 100, 40 - 1000]


def test_an_output_that_others_are_made_of() -> None:
    x = vector(3)
    middle = apply("Mul", x, x)
    last = apply("Mul", middle, middle)
    found = tracing.gradients([last, middle], [ones(last), ones(middle)], [x, middle])
    tracing.evaluate([value for value in found if value is not None])
    # As in torch, what flows to `middle` flows on.
    assert [host(value).tolist() for value in found if value is not None] == [[19 * 6], [19]]


def test_an_output_that_is_asked_for() -> None:
    x = vector(3)
    assert gradient(x, x) == [[1]]


def test_the_same_value_asked_for_twice() -> None:
    x = vector(3)
    assert gradient(apply("Mul", x, x), x, x) == [[6], [6]]


def test_what_an_output_does_not_depend_on() -> None:
    x, y, z = vector(3), vector(4), vector(5)
    assert gradient(apply("Mul", x, y), x, z, y) == [[4], None, [3]]


def test_integers_and_shapes_are_no_paths() -> None:
    x = vector(3, 4)
    rounded = apply("Cast", apply("Cast", x, to=INT64.code), to=FLOAT64.code)
    assert gradient(apply("Mul", x, rounded), x) == [[3, 4]]


def test_leaves_end_paths() -> None:
    x = vector(3)
    middle = apply("Mul", x, x)
    middle.is_leaf = True
    last = apply("Mul", middle, x)
    assert gradient(last, x) == [[9]]
    assert gradient(last, middle) == [[3]]
    assert takers_of([last], tracked([last])) == [middle, x]


def test_values_without_gradients_end_paths() -> None:
    x, fixed = vector(3), value_of(np.array([4.0]))
    made = apply("Mul", apply("Neg", fixed), x)
    assert takers_of([made], tracked([made])) == [x]
    assert gradient(made, x, fixed) == [[-4], None]


def test_nothing_is_tracked_when_it_is_off() -> None:
    x = vector(3)
    with tracking(False):
        made = apply("Mul", x, x)
    assert not made.tracks and gradient(made, x) == [None]
    after = apply("Mul", x, made)
    assert after.tracks and gradient(after, x) == [[9]]


def test_known_values_keep_their_history() -> None:
    x = vector(1, 2)
    middle = apply("Exp", x)
    tracing.evaluate([middle])
    [found] = gradient(apply("Mul", middle, x), x)
    np.testing.assert_allclose(found, np.exp([1, 2]) * [2, 3])


def test_outputs_that_nothing_depends_on_have_no_cotangent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[bool], list[bool]]] = []

    def watched(
        self: Any, build: Any, node: Any, inputs: Any, outputs: Any, incoming: Any, needed: Any
    ) -> Any:
        seen.append(([cotangent is not None for cotangent in incoming], list(needed)))
        parts = [zeros(build, build.type_of(outputs[0])) if part is None else part for part in incoming]
        return [build.apply("Concat", *parts, axis=0), None]

    monkeypatch.setattr(type(REGISTRY["", "Split"]), "vjp", watched)
    x = vector(1, 2, 3)
    parts = apply_all("Split", [x, constant([1, 1, 1], INT64)], 3)
    made = apply("Mul", parts[0], parts[2])
    assert gradient(made, x) == [[3, 0, 1]]
    assert seen == [([True, False, True], [True, False])]


def test_operators_of_several_outputs_without_gradients_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(REGISTRY["", "Split"]), "vjp", Operator.vjp)
    x = vector(1, 2)
    first = apply_all("Split", [x, constant([1, 1], INT64)], 2)[0]
    with pytest.raises(NotDifferentiable, match="Split has no gradient"):
        tracing.gradients([first], [ones(first)], [x])


@pytest.mark.parametrize("at", [0, 1])
def test_only_what_is_asked_for_is_needed(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    kind = type(REGISTRY["", "Mul"])
    inner = kind.vjp

    def watched(self: Any, *arguments: Any) -> Any:
        seen.append(list(arguments[-1]))
        return inner(self, *arguments)

    monkeypatch.setattr(kind, "vjp", watched)
    pair = [vector(2), vector(3)]
    assert gradient(apply("Mul", *pair), pair[at]) == [[[3], [2]][at]]
    assert seen == [[at == 0, at == 1]]


def test_higher_orders(device_name: str) -> None:
    x = leaf(np.array([0.5, 2.0], np.float32), device_called(device_name))
    made = apply("Sin", x)
    for expected in (np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin):
        cotangent = placed(np.ones(2, np.float32), device_called(device_name))
        [found] = tracing.gradients([made], [cotangent], [x])
        assert found is not None and found.device is x.device
        tracing.evaluate([found])
        np.testing.assert_allclose(host(found), expected(np.array([0.5, 2.0])), rtol=1e-5, atol=1e-6)
        made = found


def test_gradients_by_cotangents() -> None:
    x, cotangent = vector(2, 3), vector(5, 7)
    [found] = tracing.gradients([apply("Mul", x, x)], [cotangent], [x])
    assert found is not None
    assert gradient(found, cotangent, x) == [[4, 6], [10, 14]]


def test_what_has_no_gradient_is_named() -> None:
    x = vector(1, 2)
    made = apply("Hardmax", x)
    with pytest.raises(NotDifferentiable, match=r"the gradient of Hardmax is not known: .*Hardmax"):
        tracing.gradients([made], [ones(made)], [x])
    # Nobody asks for a gradient through it.
    y = vector(3, 4)
    assert gradient(apply("Mul", made, y), y) == [[0, 1]]


def test_a_deep_graph() -> None:
    x = vector(1.0)
    made = x
    for _ in range(3000):
        made = apply("Add", made, x)
    assert gradient(made, x) == [[3001]]
