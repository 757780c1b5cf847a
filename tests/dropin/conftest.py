"""Each behaviour is tried on onnxruntime, then on vkml."""

from __future__ import annotations

import importlib
import types

import pytest


@pytest.fixture(params=["onnxruntime", "vkml"])
def ort(request: pytest.FixtureRequest) -> types.ModuleType:
    """The package under test."""
    return importlib.import_module(request.param)


@pytest.fixture
def state(ort: types.ModuleType) -> types.ModuleType:
    """Its module of exceptions and of the classes one layer below."""
    return importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")
