"""Gradients of slices: those of all slices along an axis are one tensor, put together once."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.tracing.gradient import gradients

CUTS = {
    "thirds": ([(0, 4), (4, 8), (8, 12)], {"Concat"}),
    "in any order": ([(7, 12), (0, 4), (4, 7)], {"Concat"}),
    "and the whole": ([(0, 5), (5, 12), None], {"Concat", "Sum"}),
    "twice": ([(0, 5), (5, 12), (0, 5)], {"Concat", "Pad", "Sum"}),
    "with a gap": ([(0, 4), (5, 12)], {"Pad", "Sum"}),
    "that overlap": ([(0, 6), (5, 12)], {"Pad", "Sum"}),
    "one": ([(3, 6)], {"Pad"}),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("axis", [0, 1])
def test_slices(name: str, axis: int, device_name: str) -> None:
    cuts, wanted = CUTS[name]
    random = np.random.default_rng(0)
    array = random.standard_normal((12, 12)).astype(np.float32)
    x = vkml.tensor(array, device=device_name, requires_grad=True)
    total, expected = vkml.tensor(0.0, device=device_name), np.zeros_like(array)
    for number, cut in enumerate(cuts):
        index = (slice(None),) * axis + (slice(None) if cut is None else slice(*cut),)
        factor = random.standard_normal(array[index].shape).astype(np.float32)
        total = total + (x[index] * vkml.tensor(factor, device=device_name)).sum() * (number + 1)
        expected[index] += factor * (number + 1)
    [made] = gradients([total.value], [vkml.ones((), device=device_name).value], [x.value])
    assert made is not None and made.application is not None
    pending, found = [made.application], set()
    while pending:
        application = pending.pop()
        if application.node.op in ("Concat", "Pad", "Sum"):
            found.add(application.node.op)
            pending += [each.application for each in application.inputs if each and each.application]
    assert found == wanted
    total.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6, atol=1e-6)
