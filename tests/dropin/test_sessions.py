"""Sessions: behaviours that onnxruntime's public tests of its Python interface name, on both packages.

Names of tests are those of onnxruntime's ``onnxruntime_test_python.py``.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkml
from tests.dropin import models
from tests.dropin.models import BOOL, INT64, STRING, X

CPU = ["CPUExecutionProvider"]
TEXTS = np.array([["this", "is"], ["identity", "test"]])


def session(ort: Any, model: bytes | str, options: Any = None) -> Any:
    return ort.InferenceSession(model, options, providers=CPU)


# -- the package --------------------------------------------------------------------------------------------


def test_get_version_string(ort: Any) -> None:
    assert ort.get_version_string() == ort.__version__ == ort.version


def test_get_build_info(ort: Any) -> None:
    assert "Build Info" in ort.get_build_info()


def test_get_providers(ort: Any) -> None:
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert ort.get_all_providers()[-1] == "CPUExecutionProvider"
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    made = ort.InferenceSession(models.product(), providers=ort.get_available_providers())
    assert made.get_providers()[-1] == "CPUExecutionProvider"


def test_enabling_and_disabling_telemetry(ort: Any) -> None:
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()


def test_run_device(ort: Any) -> None:
    assert "CPU" in ort.get_device() or "GPU" in ort.get_device()


def test_default_logger(ort: Any) -> None:
    for severity in (-1, 5):
        with pytest.raises(RuntimeError):
            ort.set_default_logger_severity(severity)
    ort.set_default_logger_severity(3)
    ort.set_default_logger_severity(2)
    ort.set_default_logger_verbosity(0)


def test_seed(ort: Any) -> None:
    """Operators that state no seed draw the same numbers behind the same one."""
    drawn = []
    for seed in (7, 7, 8):
        ort.set_seed(seed)
        drawn.append(session(ort, models.noise()).run(None, {})[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


# -- models -------------------------------------------------------------------------------------------------


def test_model_serialization(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.logid = "serialization"
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session(ort, models.product(), options)
    [found] = session(ort, options.optimized_model_filepath).run(None, {"X": X})
    np.testing.assert_array_equal(found, X * X)


def test_model_serialization_with_external_initializers(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "initializers.bin"
    )
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "100")
    [expected] = session(ort, models.perceptron(), options).run(None, {"X": X})
    assert (tmp_path / "initializers.bin").stat().st_size >= 16 * 8 * 4
    [found] = session(ort, options.optimized_model_filepath).run(None, {"X": X})
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_model_serialization_with_original_external_initializers_to_current_directory(
    ort: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that has been written so is read, and written so once more, without the first."""
    monkeypatch.chdir(tmp_path)
    source: Any = models.perceptron()
    for number in (1, 2):
        options = ort.SessionOptions()
        options.optimized_model_filepath = f"optimized_{number}.onnx"
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"optimized_{number}.bin"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "100"
        )
        session(ort, source, options)
        source = options.optimized_model_filepath
    Path("optimized_1.onnx").unlink()
    Path("optimized_1.bin").unlink()
    assert session(ort, "optimized_2.onnx").run(None, {"X": X})[0].shape == (3, 8)


def test_deserialization_from_path_object(ort: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.product())
    made = session(ort, path)
    assert made._model_path == str(path)
    np.testing.assert_array_equal(made.run(None, {"X": X})[0], X * X)


def test_loading_from_other_things(ort: Any, state: Any, tmp_path: Path) -> None:
    with (tmp_path / "model").open("wb+") as file, pytest.raises(TypeError):
        session(ort, file)  # type: ignore[arg-type]
    with pytest.raises(state.NoSuchFile):
        session(ort, str(tmp_path / "none.onnx"))
    with pytest.raises(state.InvalidProtobuf):
        session(ort, b"no model at all")


def test_model_meta(ort: Any) -> None:
    found = session(ort, models.product(author="me")).get_modelmeta()
    assert (found.producer_name, found.graph_name, found.domain) == ("tests", "g", "tests.example")
    assert (found.description, found.graph_description, found.version) == ("a model", "", 3)
    assert found.custom_metadata_map == {"author": "me"}


def test_loading_session_options_from_model(ort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"inter_op_num_threads": 5, "intra_op_num_threads": 2, "graph_optimization_level": 99}
    model = models.product(ort_config=json.dumps({"session_options": stated}))
    assert session(ort, model).get_session_options().inter_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    found = session(ort, model).get_session_options()
    assert (found.inter_op_num_threads, found.intra_op_num_threads) == (5, 2)
    assert found.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert found.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


# -- providers ----------------------------------------------------------------------------------------------


def test_set_providers(ort: Any) -> None:
    made = ort.InferenceSession(models.product(), None, CPU, [{}])
    assert made.get_providers() == CPU and made.get_provider_options() == {CPU[0]: {}}
    made.set_providers(CPU, [{}])
    assert made.get_providers() == CPU == list(made._provider_options)
    np.testing.assert_array_equal(made.run(None, {"X": X})[0], X * X)


def test_set_providers_with_options(ort: Any) -> None:
    """The CPU's provider takes options of arenas, and states none."""
    options = {"arena_extend_strategy": "kSameAsRequested"}
    made = ort.InferenceSession(models.product(), providers=[(CPU[0], options)])
    assert made.get_provider_options() == {CPU[0]: {}}


def test_invalid_set_providers(ort: Any) -> None:
    made = session(ort, models.product())
    with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
        made.set_providers(["InvalidProvider"])


def test_session_providers(ort: Any) -> None:
    assert session(ort, models.product()).get_providers() == CPU


def test_providers_of_other_builds_are_warned_of(ort: Any) -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        made = ort.InferenceSession(models.product(), providers=["CUDAExecutionProvider", *CPU])
    assert made.get_providers()[-1] == CPU[0]
    np.testing.assert_array_equal(made.run(None, {"X": X})[0], X * X)


def test_get_and_set_tuning_results(ort: Any) -> None:
    made = session(ort, models.product())
    assert made.get_tuning_results() == []
    unknown = [{"ep": "UnknownEP", "results": {}, "validators": {}}]
    made.set_tuning_results(unknown)
    with pytest.raises(RuntimeError, match="Cannot find execution provider UnknownEP"):
        made.set_tuning_results(unknown, error_on_invalid=True)


def test_get_graph_provider_assignment_info(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    found = session(ort, models.chain(), options).get_provider_graph_assignment_info()
    assert [each.ep_name for each in found] == CPU * 3
    nodes = [node for each in found for node in each.get_nodes()]
    stated = sorted((node.domain, node.op_type, node.name) for node in nodes)
    assert stated == [("", "Add", "add_0"), ("", "Add", "add_1"), ("", "Mul", "mul_0")]


def test_get_graph_provider_assignment_info_not_enabled(ort: Any, state: Any) -> None:
    with pytest.raises(state.Fail, match=r"session\.record_ep_graph_assignment_info"):
        session(ort, models.chain()).get_provider_graph_assignment_info()


# -- running ------------------------------------------------------------------------------------------------


def test_run_model(ort: Any) -> None:
    made = session(ort, models.product())
    [given], [result] = made.get_inputs(), made.get_outputs()
    assert (given.name, given.shape, given.type) == ("X", [3, 2], "tensor(float)")
    assert (result.name, result.shape, result.type) == ("Y", [3, 2], "tensor(float)")
    assert str(given) == "NodeArg(name='X', type='tensor(float)', shape=[3, 2])"
    for infos in (made.get_input_memory_infos(), made.get_output_memory_infos()):
        assert [info.name for info in infos] == ["Cpu"]
    assert len(made.get_input_epdevices()) == 1
    np.testing.assert_array_equal(made.run([result.name], {given.name: X})[0], X * X)
    assert len(made.run(["Y", "Y"], {"X": X})) == 2 and len(made.run(("Y",), {"X": X})) == 1


def test_run_model_with_optional_sequence_input(ort: Any) -> None:
    made = session(ort, models.optional_identity())
    given = [np.arange(5, dtype=np.float32)]
    [found] = made.run(None, {made.get_inputs()[0].name: given})
    np.testing.assert_array_equal(found, given)


def test_run_async(ort: Any) -> None:
    done, told = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        told.append((results, data, error))
        done.set()

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    made, mine = session(ort, models.product(), options), object()
    made.run_async(["Y"], {"X": X}, callback, mine)
    assert done.wait(60)
    [([found], data, error)] = told
    assert data is mine and error == ""
    np.testing.assert_array_equal(found, X * X)


def test_run_model_from_bytes(ort: Any) -> None:
    made = session(ort, models.product())
    assert made._model_path is None
    np.testing.assert_array_equal(made.run([], {"X": X})[0], X * X)


def test_run_model2(ort: Any) -> None:
    made = session(ort, models.matrix_product())
    assert made.get_outputs()[0].shape == [3, 1]
    np.testing.assert_array_equal(made.run(None, {"X": X})[0], [[5], [11], [17]])


def test_run_model2_contiguous(ort: Any) -> None:
    made = session(ort, models.matrix_product())
    turned = np.asfortranarray(X)[:, [1, 0]]
    for given in (turned, np.ascontiguousarray(turned), np.repeat(turned, 2, axis=0)[::2]):
        np.testing.assert_array_equal(made.run(None, {"X": given})[0], [[4], [10], [16]])


def test_run_model_multiple_threads(ort: Any) -> None:
    made, found = session(ort, models.product()), []

    def act(name: str) -> None:
        options = ort.RunOptions()
        options.logid = name
        found.append(made.run([], {"X": X}, run_options=options)[0])

    threads = [threading.Thread(target=act, args=(f"thread{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all((each == X * X).all() for each in found)


def test_run_model_symbolic_input(ort: Any) -> None:
    made = session(ort, models.matrix_product("None"))
    assert made.get_inputs()[0].shape == ["None", 2] and made.get_outputs()[0].shape == ["None", 1]
    np.testing.assert_array_equal(made.run(None, {"X": X[:2]})[0], [[5], [11]])


@pytest.mark.parametrize("placeholder", ["?", "None"])
def test_one_placeholder_for_several_sizes(ort: Any, placeholder: str) -> None:
    """As Paddle's and Keras' exporters write them: sizes of the same name differ."""
    shape = (placeholder, 3, placeholder)
    nodes = [
        helper.make_node("Transpose", ["X"], ["t"], perm=[2, 1, 0]),
        helper.make_node("Neg", ["t"], ["Y"]),
    ]
    made = session(ort, models.model(nodes, [models.info("X", shape=shape)], [models.info("Y", shape=shape)]))
    for sizes in ((2, 3, 4), (5, 3, 1), (2, 3, 2)):
        array = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        np.testing.assert_array_equal(made.run(None, {"X": array})[0], -array.T)


def test_boolean_inputs(ort: Any) -> None:
    made = session(ort, models.conjunction())
    first, second = made.get_inputs()
    assert (first.name, first.type, second.name) == ("input1:0", "tensor(bool)", "input:0")
    a, b = np.array([[True, True], [False, False]]), np.array([[True, False], [True, False]])
    [found] = made.run(["output:0"], {first.name: a, second.name: b})
    assert found.dtype == np.bool_ and found.tolist() == [[True, False], [False, False]]


def test_raise_wrong_num_inputs(ort: Any) -> None:
    made = session(ort, models.conjunction())
    with pytest.raises(ValueError, match=r"Required inputs \(\['input1:0'\]\) are missing from input feed "):
        made.run([], {"input:0": np.ones((2, 2), bool)})


def test_sequence_length(ort: Any) -> None:
    made = session(ort, models.sequences("SequenceLength"))
    assert made.get_inputs()[0].type == "seq(tensor(float))"
    assert made.get_outputs()[0].type == "tensor(int64)"
    assert made.run(None, {"X": [X, X]})[0] == 2


def test_sequence_construct(ort: Any) -> None:
    made = session(ort, models.sequences("SequenceConstruct"))
    assert made.get_outputs()[0].type == "seq(tensor(int64))"
    given = np.arange(6).reshape(2, 3)
    [found] = made.run(["output_sequence"], {"tensor1": given, "tensor2": given + 1})
    np.testing.assert_array_equal(found, [given, given + 1])


def test_sequence_insert(ort: Any) -> None:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    made = session(ort, models.sequences("SequenceInsert"), options)
    given = np.arange(6).reshape(2, 3)
    [found] = made.run(["output_sequence"], {"tensor": given, "input_seq": []})
    np.testing.assert_array_equal(found, [given])


def test_run_output_does_not_alias_input_passthrough(ort: Any) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = session(ort, models.passing(), options)
    kept = []
    for number in range(4):
        given = np.full((1, 2, 2, 2), number, np.float32)
        kept.append(made.run(None, {"input_0": given}))
        assert not np.shares_memory(kept[-1][1], given)
    for number, (sum_, same) in enumerate(kept):
        assert (sum_ == number + 10).all() and (same == number).all()


def test_memory_arena_shrinkage(ort: Any) -> None:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(RuntimeError, match="does not have configuration with key: nothing"):
        options.get_run_config_entry("nothing")
    np.testing.assert_array_equal(session(ort, models.product()).run([], {"X": X}, options)[0], X * X)


def test_overridable_initializers(ort: Any) -> None:
    made = session(ort, models.adaptable())
    assert [value.name for value in made.get_inputs()] == ["X"]
    assert sorted(value.name for value in made.get_overridable_initializers()) == ["A", "B"]
    ones = np.ones((4, 4), np.float32)
    assert (made.run(None, {"X": ones})[0] == 4).all()
    [found] = made.run(None, {"X": ones, "A": 2 * ones[:, :1], "B": 3 * ones[:1]})
    assert (found == 4 * 7).all()
    assert (made.run(None, {"X": ones})[0] == 4).all()


# -- what is fed --------------------------------------------------------------------------------------------


def test_sessions_of_fed_initializers_are_bounded() -> None:
    """Each set of them has one of its own; results are right though one has to be made again."""
    nodes = [helper.make_node("Mul", ["X", "A"], ["scaled"]), helper.make_node("Add", ["scaled", "B"], ["Y"])]
    constants = [models.tensor(name, np.full((3, 2), at, np.float32)) for at, name in enumerate("AB", 2)]
    inputs = [models.info(name) for name in "XAB"]
    options = vkml.SessionOptions()
    options.plan_cache_size = 2
    made = vkml.InferenceSession(
        models.model(nodes, inputs, [models.info("Y")], constants), options, devices="cpu"
    )
    given = {name: np.full((3, 2), 10, np.float32) for name in "AB"}
    for names in ("A", "B", "AB", "A", "B"):
        [found] = made.run(None, {"X": X, **{name: given[name] for name in names}})
        a, b = (given[name] if name in names else constant for name, constant in (("A", 2), ("B", 3)))
        np.testing.assert_array_equal(found, X * a + b)
        assert len(made._variants) <= 2
    assert len(made._variants) == 2


def test_list_as_input(ort: Any) -> None:
    made = session(ort, models.product())
    np.testing.assert_array_equal(made.run([], {"X": X.tolist()})[0], X * X)
    np.testing.assert_array_equal(made.run([], {"X": [list(row) for row in X]})[0], X * X)
    integers = X.astype(int).tolist()
    np.testing.assert_array_equal(made.run([], {"X": integers})[0], X * X)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (models.FLOAT, [True, False], [1, 0]),
        (INT64, [True, False], [1, 0]),
        (BOOL, [1, 0], [True, False]),
        (models.FLOAT, [], []),
        (STRING, [], []),
    ],
)
def test_lists_of_other_types(ort: Any, kind: int, given: Any, expected: Any) -> None:
    [found] = session(ort, models.identity(kind, ("n",))).run(None, {"input:0": given})
    assert found.tolist() == expected


def test_arrays_of_other_types(ort: Any, state: Any) -> None:
    made = session(ort, models.product())
    for kind, name in ((np.float64, "double"), (np.float16, "float16"), (np.int64, "int64"), (bool, "bool")):
        with pytest.raises(state.InvalidArgument, match="Unexpected input data type") as raised:
            made.run(None, {"X": X.astype(kind)})
        assert f"tensor({name})" in str(raised.value) and "tensor(float)" in str(raised.value)


def test_wrong_feeds(ort: Any, state: Any) -> None:
    made = session(ort, models.product())
    with pytest.raises(state.InvalidArgument, match="Got invalid dimensions for input: X"):
        made.run(None, {"X": X[:2]})
    with pytest.raises(state.InvalidArgument, match="Invalid rank for input: X"):
        made.run(None, {"X": X[0]})
    with pytest.raises(state.InvalidArgument, match="Invalid input name: Z"):
        made.run(None, {"X": X, "Z": X})
    with pytest.raises(state.InvalidArgument, match=r"Invalid output name: ?Q"):
        made.run(["Q"], {"X": X})


def test_string_list_as_input(ort: Any) -> None:
    [found] = session(ort, models.identity(STRING)).run([], {"input:0": TEXTS.tolist()})
    np.testing.assert_array_equal(found, TEXTS)


def test_string_input1(ort: Any) -> None:
    made = session(ort, models.identity(STRING))
    assert made.get_inputs()[0].type == made.get_outputs()[0].type == "tensor(string)"
    [found] = made.run(None, {"input:0": TEXTS})
    assert found.dtype == object and found.tolist() == TEXTS.tolist()


def test_string_input2(ort: Any) -> None:
    texts = np.array([["Olá", "你好"], ["여보세요", "hello"]])
    assert session(ort, models.identity(STRING)).run(None, {"input:0": texts})[0].tolist() == texts.tolist()


def test_input_bytes(ort: Any) -> None:
    given = np.array([[b"this", b"is"], [b"identity", b"test"]])
    [found] = session(ort, models.identity(STRING)).run(None, {"input:0": given})
    assert found.dtype == object and all(isinstance(text, str) for text in found.reshape(-1))
    # Of a text that fills its place onnxruntime reads on behind it.
    assert [text[: len(item)] for text, item in zip(found.reshape(-1), TEXTS.reshape(-1), strict=True)] == (
        TEXTS.reshape(-1).tolist()
    )


def test_input_object(ort: Any) -> None:
    given = TEXTS.astype(object)
    assert session(ort, models.identity(STRING)).run(None, {"input:0": given})[0].tolist() == given.tolist()


def test_input_void(ort: Any) -> None:
    given = np.array([b"must", b"have", b"same", b"size"], np.void).reshape(2, 2)
    [found] = session(ort, models.identity(STRING)).run(None, {"input:0": given})
    assert found.tolist() == [["must", "have"], ["same", "size"]]


# -- options ------------------------------------------------------------------------------------------------


def test_profiler_with_session_options(ort: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    made = session(ort, models.product(), options)
    made.run([], {"X": X})
    path = Path(made.end_profiling())
    assert path.name.startswith("onnxruntime_profile_")
    lines = path.read_text().splitlines()
    assert "[" in lines[0] and "]" in lines[-1] and len(lines) > 2
    assert all(key in line for line in lines[1:-1] for key in ("pid", "dur", "ts", "ph", "X", "name", "args"))
    assert {"Session", "Node"} <= {event["cat"] for event in json.loads(path.read_text())}
    assert session(ort, models.product()).end_profiling() == ""


def test_profiler_get_start_time_ns(ort: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    times = []
    for _ in range(2):
        made = session(ort, models.product(), options)
        times.append(made.get_profiling_start_time_ns())
        made.end_profiling()
    assert 0 < times[0] <= times[1]


def test_graph_optimization_level(ort: Any) -> None:
    options = ort.SessionOptions()
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED"):
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        assert options.graph_optimization_level == getattr(ort.GraphOptimizationLevel, level)
        np.testing.assert_array_equal(session(ort, models.product(), options).run([], {"X": X})[0], X * X)


def test_ort_execution_mode(ort: Any) -> None:
    options = ort.SessionOptions()
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED


def test_session_options_add_free_dimension_override_by_denotation(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 5)
    made = session(ort, models.open_sizes(), options)
    assert made.get_inputs()[0].shape == [3, 5, 5] == made.get_outputs()[0].shape


def test_session_options_add_free_dimension_override_by_name(ort: Any, state: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("Dim1", 4)
    options.add_free_dimension_override_by_name("Dim2", 6)
    options.add_free_dimension_override_by_name("Dim9", 7)
    made = session(ort, models.open_sizes(), options)
    assert made.get_inputs()[0].shape == [4, 6, 5] == made.get_outputs()[0].shape
    with pytest.raises(state.InvalidArgument):
        made.run(None, {"x": np.ones((4, 5, 5), np.float32)})


def test_session_options_add_config_entry(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("CONFIG_KEY", "CONFIG_VAL")
    assert options.get_session_config_entry("CONFIG_KEY") == "CONFIG_VAL"


def test_invalid_session_options_config_entry(ort: Any) -> None:
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: INVALID"):
        ort.SessionOptions().get_session_config_entry("INVALID")


def test_session_options_add_initializer(ort: Any) -> None:
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(X + 1)
    options.add_initializer("W", value)
    options.add_initializer("unused", value)
    np.testing.assert_array_equal(session(ort, models.product(), options).run(None, {"X": X})[0], X * (X + 1))
    with pytest.raises(RuntimeError):
        options.add_initializer("W", X)


def test_session_options_add_external_initializers(ort: Any, state: Any) -> None:
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(X + 1)
    options.add_external_initializers(["W"], [value])
    [found] = session(ort, models.external_product(), options).run(None, {"X": X})
    np.testing.assert_array_equal(found, X * (X + 1))
    with pytest.raises(state.Fail):
        session(ort, models.product(), options)
    with pytest.raises(RuntimeError):
        options.add_external_initializers(["a", "b"], [value])


def test_session_options_add_external_initializers_from_files_in_memory(ort: Any) -> None:
    options = ort.SessionOptions()
    content = (X + 2).tobytes()
    options.add_external_initializers_from_files_in_memory(["not_on_disk.bin"], [content], [len(content)])
    [found] = session(ort, models.external_product(), options).run(None, {"X": X})
    np.testing.assert_array_equal(found, X * (X + 2))


def test_register_custom_ops_library(ort: Any, state: Any) -> None:
    with pytest.raises(state.Fail, match=r"operators\.so"):
        ort.SessionOptions().register_custom_ops_library("operators.so")


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_unknown_attributes(ort: Any, name: str) -> None:
    options = getattr(ort, name)()
    with pytest.raises(AttributeError):
        options.no_such_setting = 1
    with pytest.raises(AttributeError):
        options.no_such_setting  # noqa: B018


def test_shared_allocator_using_create_and_register_allocator(ort: Any) -> None:
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(info, None)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    np.testing.assert_array_equal(session(ort, models.product(), options).run([], {"X": X})[0], X * X)
