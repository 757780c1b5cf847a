"""Checks of an operator's gradient: against finite differences, torch, and itself on a device.

A test says the operator, its inputs and, where torch has it, a function of torch's tensors. Inputs of float64
come in the type that the device computes in and are rounded to it, so that both are looked at in the same
points; inputs of other types stay what they are.

    check("Softmax", [normal(generator, 3, 4)], {"axis": 0}, torch=lambda x: x.softmax(0), device=device_name)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from vkml import tracing
from vkml.engine import devices as device_registry
from vkml.engine.device_array import on_host, place_array
from vkml.ir.dtypes import from_numpy
from vkml.ir.operator import REGISTRY
from vkml.tracing import Traced
from vkml.tracing.emit import EMITTER
from vkml.tracing.value import Application

Array = np.ndarray[Any, Any]
Torch = Callable[..., Any]

# Differences of fourth order lose 2e-16 / h to rounding, and h^4 to their order: both are below 1e-11.
STEP = 3e-4
_DIFFERENCES = 1e-7
_TORCH = 1e-9
_ON_DEVICE = {"float32": (1e-4, 1e-5), "float16": (1e-2, 4e-3), "bfloat16": (8e-2, 3e-2)}
"""Relative to each element, and to the greatest."""
_EACH = 48
"""Inputs of more elements are moved along so many random directions, not along each axis."""


def normal(generator: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Normally distributed float64."""
    return np.asarray(generator.standard_normal(shape) * scale)


def away_from(array: Array, *kinks: float, distance: float = 0.05) -> Array:
    """The array, elements that are near to a kink moved beyond the distance from it."""
    moved = array.copy()
    for kink in kinks:
        off = moved - kink
        moved = np.where(np.abs(off) < distance, kink + np.where(off < 0, -2, 2) * distance, moved)
    return moved


def check(
    op: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    outputs: int = 1,
    counted: Sequence[int] | None = None,
    constants: Sequence[int] = (),
    wrt: Sequence[int] | None = None,
    torch: Torch | None = None,
    differences: bool = True,
    second_order: bool = True,
    device: str = "cpu",
    dtype: Any = np.float32,
    seed: int = 0,
) -> list[Array | None]:
    """Compares an operator's gradients by all its floating-point inputs with what they must be.

    Args:
        op: the operator's name.
        inputs: float64 where they are to be differentiated by; None where one is absent.
        attributes: those that are not the default's.
        domain: the operator's.
        outputs: how many it has.
        counted: which of them something depends on; the others have no cotangent.
        constants: inputs that belong to the structure, beside those that decide shapes: numbers that an
            operator's form takes in.
        wrt: by which inputs; by all of float64 that are no constants.
        torch: the same as a function of torch's tensors, one per input that is there, constants among them:
            a tensor or several, of which the counted are compared, None where torch has no such output.
        differences: False at kinks, where only torch says what is right.
        second_order: False for operators whose gradient is not differentiable, or steps.
        device: where it runs in `dtype`; the rest is on the CPU in float64.
        dtype: float32, float16 or bfloat16.
        seed: of cotangents and directions.

    Returns:
        The gradients in float64, None where there is none.
    """
    found = [None if x is None else _rounded(np.asarray(x), dtype) for x in inputs]
    case = _Case(op, domain, dict(attributes or {}), outputs, found, constants, counted, wrt, seed, dtype)
    values, gradients = case.run(found, case.cotangents, None)
    case.check_masks()
    if differences:
        case.check_differences(gradients)
        if second_order:
            case.check_second_order()
    case.check_on_device(values, gradients, device, np.dtype(dtype))
    if torch is not None:
        case.check_torch(torch, values, gradients)
    return gradients


def _rounded(array: Array, dtype: Any) -> Array:
    return array.astype(dtype).astype(np.float64) if array.dtype == np.float64 else array


class _Case:
    """An operator at a point, with random cotangents."""

    def __init__(
        self,
        op: str,
        domain: str,
        attributes: dict[str, Any],
        outputs: int,
        inputs: list[Array | None],
        constants: Sequence[int],
        counted: Sequence[int] | None,
        wrt: Sequence[int] | None,
        seed: int,
        dtype: Any,
    ) -> None:
        self.op, self.domain, self.attributes, self.outputs = op, domain, attributes, outputs
        self.inputs = inputs
        self.constants = {*constants, *REGISTRY[domain, op].value_inputs}
        floats = [at for at, x in enumerate(inputs) if x is not None and x.dtype == np.float64]
        self.wrt = list(wrt) if wrt is not None else [at for at in floats if at not in self.constants]
        self.random = np.random.default_rng([seed, 0x5EED])  # of no test's inputs
        made = self.applied(self.traced(inputs, None))
        application = made[0].application
        assert application is not None
        self.application: Application = application
        is_float = [value.type.dtype.is_float for value in made]
        self.counted = [at for at in range(outputs) if is_float[at] and (counted is None or at in counted)]
        assert self.counted, f"{op} makes no floats"
        self.cotangents = [
            _rounded(np.asarray(self.random.standard_normal(made[at].dims)), dtype) for at in self.counted
        ]

    def traced(self, arrays: Sequence[Array | None], device: Any) -> list[Traced | None]:
        """The inputs as values."""
        made: list[Traced | None] = []
        for at, array in enumerate(arrays):
            if array is None:
                made.append(None)
            elif at in self.constants:
                made.append(tracing.constant(array, from_numpy(array.dtype)))
            else:
                made.append(leaf(array, device) if at in self.wrt else placed(array, device))
        return made

    def applied(self, inputs: Sequence[Traced | None]) -> list[Traced]:
        """The outputs."""
        return tracing.apply_all(self.op, inputs, self.outputs, self.domain, **self.attributes)

    def gradients(self, inputs: Sequence[Traced | None], cotangents: Sequence[Traced]) -> Any:
        """The outputs that count, and what they give to the inputs."""
        made = self.applied(inputs)
        outputs = [made[at] for at in self.counted]
        by = [inputs[at] for at in self.wrt]
        assert all(value is not None for value in by)
        found = tracing.gradients(outputs, cotangents, [value for value in by if value is not None])
        for value, gradient in zip(by, found, strict=True):
            assert gradient is None or (value is not None and gradient.type == value.type), (
                f"{self.op}: the gradient of {value} is {gradient}"
            )
        return outputs, found

    def run(
        self, arrays: Sequence[Array | None], cotangents: Sequence[Array], device: Any
    ) -> tuple[list[Array], list[Array | None]]:
        """Outputs that count, and gradients."""
        outputs, found = self.gradients(
            self.traced(arrays, device), [placed(array, device) for array in cotangents]
        )
        kept = [*outputs, *(value for value in found if value is not None)]
        tracing.evaluate(kept)
        return [host(value) for value in outputs], [None if v is None else host(v) for v in found]

    def check_masks(self) -> None:
        """Nothing is made for inputs that do not want it, and the same for those that do."""
        inputs = self.traced(self.inputs, None)
        made = self.applied(inputs)
        cotangents: list[Traced | None] = [None] * self.outputs
        for at, array in zip(self.counted, self.cotangents, strict=True):
            cotangents[at] = placed(array, None)

        def product(needed: Sequence[bool]) -> list[Traced | None]:
            operator, node = self.application.operator, self.application.node
            return list(operator.vjp(EMITTER, node, inputs, made, cotangents, needed))

        everything = product([at in self.wrt for at in range(len(inputs))])
        for wanted in self.wrt:
            alone = product([at == wanted for at in range(len(inputs))])
            others = [at for at, value in enumerate(alone) if value is not None and at != wanted]
            assert not others, f"{self.op}: input {others} gets a gradient when only {wanted} wants one"
            pair = [found[wanted] if wanted < len(found) else None for found in (everything, alone)]
            assert (pair[0] is None) == (pair[1] is None), f"{self.op}: input {wanted} of {pair}"
            if pair[0] is not None and pair[1] is not None:
                tracing.evaluate([pair[0], pair[1]])
                _compare(host(pair[1]), host(pair[0]), 1e-12, 1e-12, f"{self.op}: input {wanted} alone")

    def check_differences(self, gradients: Sequence[Array | None]) -> None:
        """First order: the reference evaluation, moved along each input."""
        operator, node = self.application.operator, self.application.node

        def moved(at: int, by: Array) -> float:
            arrays = [x + by if x is not None and n == at else x for n, x in enumerate(self.inputs)]
            with np.errstate(all="ignore"):
                made = operator.evaluate(node, arrays)
            return sum(
                float((made[n] * cotangent).sum())
                for n, cotangent in zip(self.counted, self.cotangents, strict=True)
            )

        for at, gradient in zip(self.wrt, gradients, strict=True):
            self._along(at, gradient, partial(moved, at), f"{self.op}: gradient of input {at}")

    def check_second_order(self) -> None:
        """The gradient of a random projection of the gradient, against differences of that projection."""
        inputs = self.traced(self.inputs, None)
        cotangents = [leaf(array, None) for array in self.cotangents]
        _, first = self.gradients(inputs, cotangents)
        known = [value for value in first if value is not None]
        if not known:
            return
        weights = [np.asarray(self.random.standard_normal(value.dims)) for value in known]
        by = [value for at in self.wrt if (value := inputs[at]) is not None]
        second = tracing.gradients(known, [placed(w, None) for w in weights], [*by, *cotangents])
        tracing.evaluate([value for value in second if value is not None])

        def projected(arrays: Sequence[Array | None], cotangents: Sequence[Array]) -> float:
            _, found = self.run(arrays, cotangents, None)
            there = [value for value in found if value is not None]
            return sum(float((value * w).sum()) for value, w in zip(there, weights, strict=True))

        def moved(at: int, by: Array) -> float:
            arrays = [x + by if x is not None and n == at else x for n, x in enumerate(self.inputs)]
            return projected(arrays, self.cotangents)

        def counted(at: int, by: Array) -> float:
            return projected(self.inputs, [c + by if n == at else c for n, c in enumerate(self.cotangents)])

        made = [None if value is None else host(value) for value in second]
        for at, value in zip(self.wrt, made[: len(by)], strict=True):
            what = f"{self.op}: second order by input {at}"
            self._along(at, value, partial(moved, at), what)
        for at, value in enumerate(made[len(by) :]):
            # The gradient is linear in the cotangents: one direction shows what many would.
            direction = np.asarray(self.random.standard_normal(self.cotangents[at].shape))
            found = 0.0 if value is None else float((value * direction).sum())
            expected = counted(at, direction) - counted(at, np.zeros_like(direction))
            scale = 1.0 if value is None else 1 + float(np.abs(value * direction).sum())
            assert abs(found - expected) <= _TORCH * scale, (
                f"{self.op}: second order by cotangent {at}: {found}, the projection changes by {expected}"
            )

    def _along(self, at: int, gradient: Array | None, moved: Callable[[Array], float], what: str) -> None:
        x = self.inputs[at]
        assert x is not None
        for direction in _directions(x.shape, self.random):
            found = 0.0 if gradient is None else float((gradient * direction).sum())
            expected = _slope(moved, direction)
            scale = 1.0 if gradient is None else 1.0 + float(np.abs(gradient).max(initial=0.0))
            assert abs(found - expected) <= _DIFFERENCES * max(scale, abs(expected)), (
                f"{what} along {direction.reshape(-1)[:8]}: {found}, differences say {expected}"
            )

    def check_on_device(
        self, values: Sequence[Array], gradients: Sequence[Array | None], name: str, dtype: np.dtype[Any]
    ) -> None:
        """What the engine makes of both in `dtype`, against float64."""
        device = device_called(name)
        narrow = [x.astype(dtype) if x is not None and x.dtype == np.float64 else x for x in self.inputs]
        cotangents = [array.astype(dtype) for array in self.cotangents]  # exact: they are rounded
        made, found = self.run(narrow, cotangents, device)
        rtol, atol = _ON_DEVICE[dtype.name]
        for at, value, expected in zip(self.counted, made, values, strict=True):
            _compare(value, expected, rtol, atol, f"{self.op} on {name}: output {at}")
        for at, gradient, wanted in zip(self.wrt, found, gradients, strict=True):
            assert (gradient is None) == (wanted is None)
            if gradient is not None and wanted is not None:
                _compare(gradient, wanted, rtol, atol, f"{self.op} on {name}: gradient of input {at}")

    def check_torch(
        self, function: Torch, values: Sequence[Array], gradients: Sequence[Array | None]
    ) -> None:
        """Values and gradients in float64."""
        torch = pytest.importorskip("torch")
        tensors = [None if x is None else torch.tensor(x) for x in self.inputs]
        by = [tensor.requires_grad_() for at in self.wrt if (tensor := tensors[at]) is not None]
        made = function(*(x for x in tensors if x is not None))
        made = list(made) if isinstance(made, list | tuple) else [made]
        outputs = [made[at] for at in self.counted if at < len(made) and made[at] is not None]
        assert len(outputs) == len(self.counted), f"{self.op}: torch does not make all outputs that count"
        for at, value, expected in zip(self.counted, values, outputs, strict=True):
            _compare(value, expected.detach().numpy(), _TORCH, _TORCH, f"{self.op} and torch: output {at}")
        wanted = torch.autograd.grad(
            outputs, by, [torch.tensor(c) for c in self.cotangents], allow_unused=True
        )
        for at, gradient, right in zip(self.wrt, gradients, wanted, strict=True):
            x = self.inputs[at]
            assert x is not None
            found, expected = (np.zeros_like(x) if g is None else np.asarray(g) for g in (gradient, right))
            _compare(found, expected, _TORCH, _TORCH, f"{self.op} and torch: gradient of input {at}")


def _directions(shape: tuple[int, ...], random: np.random.Generator) -> Iterator[Array]:
    size = int(np.prod(shape))
    if size <= _EACH:
        for at in range(size):
            direction = np.zeros(size)
            direction[at] = 1
            yield direction.reshape(shape)
        return
    for _ in range(_EACH):
        yield np.asarray(random.uniform(-1, 1, shape))


def _slope(function: Callable[[Array], float], direction: Array) -> float:
    by = STEP * direction
    near = function(by) - function(-by)
    far = function(2 * by) - function(-2 * by)
    return (8 * near - far) / (12 * STEP)


def device_called(name: str) -> Any:
    if name == "cpu":
        return None
    [info] = [info for info in device_registry.devices(True) if info.name == name]
    return device_registry.open_device(info)


def placed(array: Array, device: Any) -> Traced:
    return tracing.value_of(array if device is None else place_array(array, device, "an input"))


def leaf(array: Array, device: Any) -> Traced:
    value = placed(array, device)
    value.tracks = value.is_leaf = True
    return value


def host(value: Traced) -> Array:
    return np.asarray(on_host(value.data))


def _compare(found: Array, expected: Array, rtol: float, atol: float, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    wide, right = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(right[np.isfinite(right)])
    scale = float(finite.max(initial=0.0))
    np.testing.assert_allclose(wide, right, rtol=rtol, atol=atol * scale, err_msg=what, equal_nan=True)
