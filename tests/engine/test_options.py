"""Settings of a session: what they take, and that nothing else is taken in silence."""

from __future__ import annotations

import copy
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from vkml.engine.options import _CHECKS
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph


def test_every_setting_is_checked() -> None:
    assert [field.name for field in fields(vkml.SessionOptions)] == list(_CHECKS)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("graph_optimisation_level", "graph_optimization_level"),
        ("intra_op_threads", "intra_op_num_threads"),
        ("log_severity", "log_severity_level"),
        ("enable_profile", "enable_profiling"),
    ],
)
def test_misspelt_settings_name_the_nearest(given: str, meant: str) -> None:
    options = vkml.SessionOptions()
    with pytest.raises(AttributeError, match=f"no setting '{given}'; did you mean '{meant}'?") as raised:
        setattr(options, given, 1)
    assert isinstance(raised.value, vkml.Error)


def test_settings_like_none_list_all() -> None:
    with pytest.raises(AttributeError, match=r"no setting 'xyz'; there is graph_optimization_level, .*logid"):
        vkml.SessionOptions().xyz = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        vkml.GraphOptimizationLevel.ORT_DISABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        0,
        np.int64(0),
    ],
)
def test_levels_of_either_package_and_numbers(value: Any) -> None:
    options = vkml.SessionOptions()
    options.graph_optimization_level = value
    assert options.graph_optimization_level is vkml.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_modes_of_onnxruntime() -> None:
    options = vkml.SessionOptions(execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL)
    assert options.execution_mode is vkml.ExecutionMode.ORT_PARALLEL


WRONG = [
    ("graph_optimization_level", "all"),
    ("graph_optimization_level", 4),
    ("graph_optimization_level", True),
    ("graph_optimization_level", None),
    ("graph_optimization_level", onnxruntime.ExecutionMode.ORT_SEQUENTIAL),
    ("graph_optimization_level", 1.0),
    ("execution_mode", 2),
    ("enable_profiling", 1),
    ("enable_profiling", "no"),
    ("profile_file_prefix", Path("trace")),
    ("intra_op_num_threads", -1),
    ("intra_op_num_threads", 2.0),
    ("intra_op_num_threads", "4"),
    ("intra_op_num_threads", True),
    ("inter_op_num_threads", None),
    ("log_severity_level", 5),
    ("log_severity_level", -2),
    ("log_severity_level", "ERROR"),
    ("logid", b"x"),
    ("memory_limit", "half"),
    ("memory_limit", 0),
    ("memory_limit", 1.5),
    ("memory_limit", float("nan")),
    ("memory_limit", None),
    ("plan_cache_size", -1),
    ("plan_cache_size", 1e3),
    ("progress", "bar"),
    ("guard_bytes", -4),
    ("enable_mem_pattern", "yes"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_values_are_refused_when_they_are_set(name: str, value: Any) -> None:
    options = vkml.SessionOptions()
    before = getattr(options, name)
    with pytest.raises(vkml.InvalidArgument, match=f"SessionOptions.{name} is "):
        setattr(options, name, value)
    assert getattr(options, name) == before
    with pytest.raises(vkml.InvalidArgument, match=f"SessionOptions.{name} is "):
        vkml.SessionOptions(**{name: value})


@pytest.fixture
def fallback_model() -> bytes:
    """A model of one operator that no Vulkan device runs: SPIR-V has no Cos of double."""
    sketch = Sketch("fallback")
    return save_graph(sketch.finish(sketch.node("Cos", sketch.input("x", (3,), dtypes.FLOAT64))))


@pytest.mark.parametrize(("level", "count"), [(-1, 1), (0, 1), (2, 1), (3, 0), (4, 0)])
def test_severity_level_decides_on_warnings(
    fallback_model: bytes, vulkan_device_name: str, caplog: pytest.LogCaptureFixture, level: int, count: int
) -> None:
    options = vkml.SessionOptions()
    options.log_severity_level = level
    with (
        caplog.at_level(logging.DEBUG, "vkml"),
        vkml.InferenceSession(fallback_model, options, devices=vulkan_device_name) as session,
    ):
        session.run(None, {"x": np.zeros(3)})
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == count


@pytest.mark.parametrize(
    ("session_level", "run_level", "count"), [(2, None, 1), (2, -1, 1), (2, 3, 0), (3, -1, 0), (4, 2, 1)]
)
@pytest.mark.parametrize("kind", [vkml.RunOptions, onnxruntime.RunOptions])
def test_severity_level_of_a_run_decides_on_its_warnings(
    vulkan_device_name: str,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    session_level: int,
    run_level: int | None,
    count: int,
) -> None:
    """Where a run states none, the session's counts; what one run keeps to itself a later one says."""
    sketch = Sketch("fallback")
    model = save_graph(sketch.finish(sketch.node("Cos", sketch.input("x", ("n",), dtypes.FLOAT64))))
    options = vkml.SessionOptions(log_severity_level=session_level)
    given = kind()
    if run_level is not None:
        given.log_severity_level = run_level
    with (
        caplog.at_level(logging.DEBUG, "vkml"),
        vkml.InferenceSession(model, options, devices=vulkan_device_name) as session,
    ):

        def warnings_of(rows: int, given: Any) -> int:
            caplog.clear()
            session.run(None, {"x": np.zeros(rows)}, given)
            return len([each for each in caplog.records if each.levelno >= logging.WARNING])

        assert warnings_of(3, given) == count
        assert warnings_of(1, vkml.RunOptions(log_severity_level=2)) == 1 - count


@pytest.mark.parametrize(
    ("providers", "options", "said"),
    [
        (["VulkanExecutionProvider"], [{"device": 1}], "the options device_id, precision, not 'device'"),
        ([("VulkanExecutionProvider", {"device_id": "x"})], None, "is the number of a device, not 'x'"),
        (["VulkanExecutionProvider"], [{"precision": "low"}], "precision 'low' is not known"),
        (["CPUExecutionProvider"], [{}, {}], "a dict for each of providers"),
        (["CPUExecutionProvider"], {"device_id": 1}, "a dict for each of providers"),
        (["CPUExecutionProvider"], [3], "are a dict, not 3"),
        ([("CPUExecutionProvider", 3)], None, "are a dict, not 3"),
        ([("CPUExecutionProvider", {})], [{}], "a provider is a name"),
    ],
)
def test_options_of_providers_are_refused(
    fallback_model: bytes, providers: Any, options: Any, said: str
) -> None:
    with pytest.raises(vkml.InvalidArgument, match=said):
        vkml.InferenceSession(fallback_model, None, providers, options)


def test_copies_of_options_are_told_things_of_their_own() -> None:
    options = vkml.SessionOptions(intra_op_num_threads=3)
    options.add_session_config_entry("a", "1")
    options.add_free_dimension_override_by_name("n", 2)
    other = copy.copy(options)
    other.add_session_config_entry("b", "2")
    other.add_free_dimension_override_by_name("m", 3)
    assert options.entries == {"a": "1"} and other.entries == {"a": "1", "b": "2"}
    assert options.alterations().sizes == {"n": 2} and other.alterations().sizes == {"n": 2, "m": 3}
    assert other.intra_op_num_threads == 3


def test_run_options_are_run_options() -> None:
    sketch = Sketch("double")
    values = sketch.input("x", (2,))
    model = save_graph(sketch.finish(sketch.node("Add", values, values)))
    feed = {"x": np.ones(2, np.float32)}
    with vkml.InferenceSession(model, devices="cpu") as session:
        for _ in range(3):  # the first, and the short ways that repeated runs take
            [found] = session.run(None, feed, onnxruntime.RunOptions())
            assert found.tolist() == [2, 2]
            with pytest.raises(vkml.InvalidArgument, match="run_options is onnxruntime's RunOptions or None"):
                session.run(None, feed, {"x": np.zeros(2, np.float32)})
