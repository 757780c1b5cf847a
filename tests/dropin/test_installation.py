"""`install_as_onnxruntime`, and programs of well-known shapes that import onnxruntime, run with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vkml
from tests.dropin import models
from tests.dropin.models import X


def _run(program: str, folder: Path, *arguments: str) -> str:
    """What a program prints that begins with vkml in the place of onnxruntime."""
    path = folder / "program.py"
    path.write_text(f"import vkml\nvkml.install_as_onnxruntime()\n{program}", encoding="utf-8")
    command = [sys.executable, "-W", "error::ResourceWarning", str(path), *arguments]
    made = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_modules_and_what_python_says_of_them() -> None:
    import onnxruntime as before

    with vkml.install_as_onnxruntime():
        import onnxruntime
        import onnxruntime.backend
        from onnxruntime import InferenceSession, SessionOptions
        from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        assert InferenceSession is vkml.InferenceSession and SessionOptions is vkml.SessionOptions
        assert OrtValue is vkml.OrtValue and InvalidArgument is vkml.InvalidArgument
        assert onnxruntime.backend is vkml.backend and onnxruntime.capi._pybind_state.Fail is vkml.Fail
        # Programs print where it lies, and look at files beside it.
        assert Path(onnxruntime.__file__).parent == Path(vkml.__file__).parent
        assert onnxruntime.__version__ == onnxruntime.get_version_string() == onnxruntime.version
        with pytest.raises(ImportError):
            import onnxruntime.quantization
        with pytest.raises(AttributeError):
            onnxruntime.no_such_name  # noqa: B018
    import onnxruntime as after

    assert after is before and after.InferenceSession is not vkml.InferenceSession


def test_a_program_asks_whether_onnxruntime_is_there(tmp_path: Path) -> None:
    program = """
import importlib.util, importlib.metadata
assert importlib.util.find_spec("onnxruntime") is not None
major, minor, *_ = importlib.metadata.version("onnxruntime").split(".")
assert (int(major), int(minor)) >= (1, 16)
import onnxruntime
print(onnxruntime.get_device() in ("CPU", "GPU"), "InferenceSession" in dir(onnxruntime))
"""
    assert _run(program, tmp_path) == "True True\n"


def test_a_session_of_text_recognition(tmp_path: Path) -> None:
    """As rapidocr makes sessions: options field by field, providers with options, names from metadata."""
    (tmp_path / "model.onnx").write_bytes(models.product(character="abc"))
    program = """
import traceback
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime import get_available_providers, get_device
import numpy as np

options = SessionOptions()
options.log_severity_level = 4
options.enable_cpu_mem_arena = False
options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = 1
providers = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
if "CUDAExecutionProvider" in get_available_providers():
    providers.insert(0, ("CUDAExecutionProvider", {"device_id": 0}))
session = InferenceSession("model.onnx", sess_options=options, providers=providers)
assert session.get_providers()[-1] == "CPUExecutionProvider"
assert session.get_modelmeta().custom_metadata_map["character"] == "abc"
names = [value.name for value in session.get_outputs()]
x = np.ones((3, 2), np.float32)
print(session.run(names, dict(zip([v.name for v in session.get_inputs()], [x])))[0].sum())
"""
    assert _run(program, tmp_path) == "21.0\n"


def test_a_model_of_an_exporter_with_bindings(tmp_path: Path) -> None:
    """As optimum runs models: sizes by name, inputs by what the session says, outputs bound in torch's or
    NumPy's memory."""
    (tmp_path / "model.onnx").write_bytes(models.matrix_product("batch"))
    program = """
import numpy as np
import onnxruntime
from onnxruntime import IOBinding, InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue

options = SessionOptions()
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = InferenceSession("model.onnx", options, ["CPUExecutionProvider"], [{}])
inputs = {value.name: at for at, value in enumerate(session.get_inputs())}
[dims] = [value.shape for value in session.get_outputs()]
x = np.arange(8, dtype=np.float32).reshape(4, 2)
shape = [4 if isinstance(dim, str) else dim for dim in dims]
result = np.empty(shape, np.float32)
binding = session.io_binding()
assert isinstance(binding, IOBinding)
binding.bind_input("X", "cpu", 0, np.float32, x.shape, x.ctypes.data)
binding.bind_output("Y", "cpu", 0, np.float32, shape, result.ctypes.data)
session.run_with_iobinding(binding)
print(list(inputs), result.reshape(-1).tolist(), session._model_path)
"""
    assert _run(program, tmp_path) == "['X'] [2.0, 8.0, 14.0, 20.0] model.onnx\n"


def test_a_detector_of_speech(tmp_path: Path) -> None:
    """As silero-vad and piper run: one thread, logging set for all, state and a scalar rate fed again."""
    node = "helper.make_node"
    program = f"""
import numpy as np, onnxruntime
from onnx import helper, TensorProto

def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)

nodes = [
    {node}("Cast", ["sr"], ["rate"], to=1),
    {node}("Div", ["input", "rate"], ["scaled"]),
    {node}("ReduceSum", ["scaled"], ["sum"], keepdims=0),
    {node}("Add", ["state", "sum"], ["stateN"]),
    {node}("Sigmoid", ["stateN"], ["output"]),
]
graph = helper.make_graph(
    nodes, "vad", [info("input", 1, ["b", "n"]), info("state", 1, [2, "b", 4]), info("sr", 7, [])],
    [info("output", 1, [2, "b", 4]), info("stateN", 1, [2, "b", 4])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
onnxruntime.set_default_logger_severity(4)
options = onnxruntime.SessionOptions()
options.inter_op_num_threads = 1
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"], sess_options=options
)
state = np.zeros((2, 1, 4), dtype="float32")
for step in range(3):
    feed = {{"input": np.full((1, 512), 1000, np.float32), "state": state, "sr": np.array(16000, "int64")}}
    out, state = session.run(None, feed)
print(float(state.max()), round(float(out.max()), 4))
"""
    assert _run(program, tmp_path) == "96.0 1.0\n"


def test_a_session_for_embeddings(tmp_path: Path) -> None:
    """As fastembed, sentence-transformers and insightface do: providers of a GPU first, only the inputs that
    the model has, a name of a device for whatever runs it."""
    (tmp_path / "model.onnx").write_bytes(models.product())
    program = """
import warnings
import numpy as np, onnxruntime as ort

names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = ort.InferenceSession("model.onnx", providers=names, provider_options=[{}, {"device_id": 0}, {}])
given = {"X": np.ones((3, 2), np.float32), "token_type_ids": np.zeros((3, 2), np.int64)}
known = {value.name for value in session.get_inputs()}
[found] = session.run(None, {name: value for name, value in given.items() if name in known})
print(len(caught), caught[0].category.__name__, float(found.sum()), session.get_providers()[-1])
"""
    assert _run(program, tmp_path) == "1 UserWarning 21.0 CPUExecutionProvider\n"


def test_sessions_that_are_subclassed_and_pickled(tmp_path: Path) -> None:
    """As insightface has them: a class of its own whose pickles are the model's path, providers set anew."""
    (tmp_path / "model.onnx").write_bytes(models.product())
    program = """
import os.path as osp, pickle
import numpy as np, onnxruntime

class PickableInferenceSession(onnxruntime.InferenceSession):
    def __init__(self, model_path, **kwargs):
        super().__init__(model_path, **kwargs)
        self.model_path = model_path

    def __getstate__(self):
        return {"model_path": self.model_path}

    def __setstate__(self, values):
        self.__init__(values["model_path"])

session = PickableInferenceSession("model.onnx", providers=onnxruntime.get_available_providers())
session = pickle.loads(pickle.dumps(session))
session.set_providers(["CPUExecutionProvider"])
first = session.get_inputs()[0]
outputs = [value.name for value in session.get_outputs()]
[found] = session.run(outputs, {first.name: np.ones(first.shape, np.float32)})
print(osp.basename(session._model_path), found.sum(), session.get_providers())
"""
    assert _run(program, tmp_path) == "model.onnx 21.0 ['CPUExecutionProvider']\n"


def test_a_cut_out_of_a_picture(tmp_path: Path) -> None:
    """As rembg does it: providers by what there is, by the kind of device, and the first input by number."""
    (tmp_path / "model.onnx").write_bytes(models.product())
    program = """
import numpy as np, onnxruntime as ort

options = ort.SessionOptions()
options.inter_op_num_threads = options.intra_op_num_threads = 2
kind, there = ort.get_device(), ort.get_available_providers()
if kind == "GPU" and "CUDAExecutionProvider" in there:
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
elif kind[0:3] == "GPU" and "ROCMExecutionProvider" in there:
    providers = ["ROCMExecutionProvider", "CPUExecutionProvider"]
else:
    providers = ["CPUExecutionProvider"]
session = ort.InferenceSession("model.onnx", sess_options=options, providers=providers)
outs = session.run(None, {session.get_inputs()[0].name: np.ones((3, 2), np.float32)})
print(outs[0].sum(), session.get_inputs()[0].type)
"""
    assert _run(program, tmp_path) == "21.0 tensor(float)\n"


def test_values_are_copied_between_devices(device_name: str) -> None:
    source = vkml.OrtValue.ortvalue_from_numpy(X)
    target = vkml.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32, device_name)
    vkml.copy_tensors([source], [target])
    np.testing.assert_array_equal(target.numpy(), X)
    with pytest.raises(vkml.InvalidArgument, match="1 values to copy, and 0"):
        vkml.copy_tensors([source], [])


def test_accelerators_stand_for_vulkan(vulkan_device_name: str) -> None:
    """By provider and by the name of a device, with the numbers of either."""
    providers = [("CUDAExecutionProvider", {"device_id": 0, "cudnn_conv_algo_search": "DEFAULT"})]
    with pytest.warns(UserWarning, match="CUDAExecutionProvider: Vulkan where there is a device") as caught:
        session = vkml.InferenceSession(models.product(), None, [*providers, "CPUExecutionProvider"])
    assert len(caught) == 1
    value = vkml.OrtValue.ortvalue_from_numpy(X, "cuda", int(vulkan_device_name.partition(":")[2]))
    assert value.device_name() == vulkan_device_name
    np.testing.assert_array_equal(session.run(None, {"X": value})[0], X * X)
    named = [("VulkanExecutionProvider", {"device_id": vulkan_device_name.partition(":")[2]})]
    with vkml.InferenceSession(models.product(), None, named) as other:
        assert other.device == vulkan_device_name
        stated = other.get_provider_options()["VulkanExecutionProvider"]
        assert stated == {"device_id": named[0][1]["device_id"], "precision": "high"}
        other.set_providers(["CPUExecutionProvider"])
        assert other.device == "cpu"
        np.testing.assert_array_equal(other.run(None, {"X": X})[0], X * X)


def test_threads_of_all_sessions() -> None:
    options = vkml.SessionOptions()
    options.intra_op_num_threads = 3
    assert options.threads == 3
    vkml.set_global_thread_pool_sizes(2, 1)
    try:
        assert options.threads == 3
        options.use_per_session_threads = False
        assert options.threads == 2
    finally:
        vkml.set_global_thread_pool_sizes()
    assert options.threads is None


def test_a_load_is_cancelled() -> None:
    options = vkml.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(vkml.ModelLoadCanceled):
        vkml.InferenceSession(models.product(), options)
    options.set_load_cancellation_flag(False)
    vkml.InferenceSession(models.product(), options, devices="cpu").close()


def test_the_delegate_of_a_policy_chooses() -> None:
    told = []

    def choose(devices: list[vkml.OrtEpDevice], *rest: object) -> list[vkml.OrtEpDevice]:
        told.append(rest)
        return devices[-1:]

    options = vkml.SessionOptions()
    options.set_provider_selection_policy_delegate(choose)
    with vkml.InferenceSession(models.product(a="b"), options) as session:
        assert session.device == "cpu"
    assert told[0][0] == {"a": "b"}
    preferring = vkml.SessionOptions()
    preferring.set_provider_selection_policy(vkml.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    with vkml.InferenceSession(models.product(), preferring) as session:
        assert session.device == "cpu"


def test_initializers_of_other_types_and_shapes_are_refused() -> None:
    """onnxruntime takes them, and reads memory of one type as another's."""
    for wrong in (X[:1], X.astype(np.float64)):
        options = vkml.SessionOptions()
        options.add_initializer("W", vkml.OrtValue.ortvalue_from_numpy(wrong))
        with pytest.raises(vkml.InvalidArgument, match="initializer 'W'"):
            vkml.InferenceSession(models.product(), options, devices="cpu")
