"""Operations against PyTorch's of the same names: values, types and gradients, arguments at random."""

from __future__ import annotations

import operator
import zlib
from typing import Any

import numpy as np
import pytest

import vkml
from tests.tensors.operation_cases import Case, cases
from vkml import Tensor

torch = pytest.importorskip("torch")
TIMES = 3
NO_GRADIENT = {"quantile", "nanquantile", "floor_divide", "bincount", "nextafter", "vander"}
"""PyTorch's own differs at ties, is missing, or fails."""
UNSTABLE = {
    "argsort",
    "mode",
    "sort",
    "median",
    "nanmedian",
    "topk",
    "kthvalue",
    "max",
    "min",
    "cummax",
    "cummin",
}
"""Of equal elements PyTorch may name another place."""


def _leaves(value: Any, make: Any) -> Any:
    if isinstance(value, np.ndarray):
        return make(value)
    if isinstance(value, tuple):
        return type(value)(_leaves(one, make) for one in value)
    return value


def _flat(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _flat(one)] if isinstance(value, tuple | list) else [value]


def _numpy(value: Any) -> Any:
    return value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)


def _compare(name: str, mine: Any, theirs: Any, loose: float = 1.0) -> None:
    found, expected = _numpy(mine), _numpy(theirs)
    assert found.dtype == expected.dtype, f"{name}: {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{name}: {found.shape}, expected {expected.shape}"
    if found.dtype.kind == "f":
        rtol = (2e-5 if found.dtype == np.float32 else 1e-9) * loose
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=name)
        if name.split(" ")[0] in ("copysign", "atan2", "neg", "abs", "round"):
            # The sign of a NaN is not for a device to say.
            is_number = expected == expected
            signs = np.signbit(found)[is_number], np.signbit(expected)[is_number]
            np.testing.assert_array_equal(*signs, err_msg=name)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=name)


def _run(case: Case, seed: int, device: str) -> None:
    name, make, options = case
    random = np.random.default_rng([zlib.crc32(name.encode()), seed])
    arguments = make(random)
    tracked: list[tuple[Tensor, Any]] = []

    def mine(array: Any) -> Tensor:
        made = vkml.tensor(array, device=device)
        if array.dtype.kind == "f":
            made.requires_grad_()
            tracked.append((made, None))
        return made

    others: list[Any] = []

    def theirs(array: Any) -> Any:
        made = torch.tensor(array)
        if array.dtype.kind == "f":
            made.requires_grad_()
            others.append(made)
        return made

    given, expected_given = _leaves(arguments, mine), _leaves(arguments, theirs)
    expected = operator.attrgetter(name)(torch)(*expected_given, **options)
    found = operator.attrgetter(name)(vkml)(*given, **options)
    what = f"{name} of {[getattr(one, 'shape', one) for one in arguments]}"
    results, wanted = _flat(found), _flat(expected)
    assert len(results) == len(wanted), what
    for result, right in zip(results, wanted, strict=True):
        if name.split(".")[-1] in UNSTABLE and _numpy(right).dtype == np.int64 and len(wanted) > 1:
            continue
        _compare(what, result, right, 10 if "linalg" in name or device != "cpu" else 1)
    if (
        name in NO_GRADIENT
        or "reduce" in options
        or any(not np.isfinite(one).all() for one in arguments if isinstance(one, np.ndarray))
    ):
        return
    pairs = [(a, b) for a, b in zip(results, wanted, strict=True) if getattr(b, "requires_grad", False)]
    if not pairs:
        return
    weights = [random.uniform(0.5, 1, tuple(b.shape)) for _, b in pairs]
    total = sum(
        (b * torch.tensor(w, dtype=b.dtype)).sum().double() for (_, b), w in zip(pairs, weights, strict=True)
    )
    total.backward()
    if not any(a.requires_grad for a, _ in pairs):
        assert all(other.grad is None or not other.grad.any() for other in others), what
        return
    own: Any = sum(
        (a * vkml.tensor(w.astype(_numpy(b).dtype), device=device)).sum()
        for (a, b), w in zip(pairs, weights, strict=True)
    )
    own.backward()
    for (tensor, _), other in zip(tracked, others, strict=True):
        gradient = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
        right = np.zeros(tensor.shape) if other.grad is None else other.grad.numpy()
        rtol = 2e-4 if tensor.dtype == vkml.float32 else 1e-7
        np.testing.assert_allclose(gradient, right, rtol=rtol, atol=rtol, err_msg=f"gradient of {what}")


@pytest.mark.parametrize("case", [pytest.param(one, id=f"{one[0]}-{at}") for at, one in enumerate(cases())])
def test_like_torch(case: Case) -> None:
    for seed in range(TIMES):
        _run(case, seed, "cpu")


ONE_OF_EACH = list({case[0]: case for case in cases() if not case[0].startswith("linalg")}.values())


@pytest.mark.parametrize("part", range(8))
def test_like_torch_on_devices(part: int, vulkan_device_name: str) -> None:
    """One of each, but for those that run on the CPU."""
    for case in ONE_OF_EACH[part::8]:
        _run(case, 0, vulkan_device_name)
