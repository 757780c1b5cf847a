"""Programs written for PyTorch compute the same with vkml in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.optim.swa_utils
from tests.whole_models.programs import PROGRAMS

torch = pytest.importorskip("torch")


def compare(found: Any, wanted: Any, place: str) -> None:
    if isinstance(wanted, Mapping):
        assert list(found) == list(wanted), place
        for name in wanted:
            compare(found[name], wanted[name], f"{place}.{name}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), place
        for at, each in enumerate(wanted):
            compare(found[at], each, f"{place}[{at}]")
    elif isinstance(wanted, torch.Tensor):
        there = wanted.detach().numpy()
        assert isinstance(found, vkml.Tensor) and tuple(found.shape) == there.shape, place
        assert found.dtype.storage == there.dtype, place
        np.testing.assert_allclose(found.detach().numpy(), there, rtol=2e-4, atol=2e-5, err_msg=place)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=2e-4, abs=2e-5), place
    else:
        assert found == wanted, place


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_of_pytorch(program: Callable[[Any], Any]) -> None:
    wanted = program(torch)
    compare(program(vkml), wanted, program.__name__)
