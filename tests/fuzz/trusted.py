"""Other runtimes: onnxruntime with all values between nodes laid open, and onnx's reference evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, helper

import vkml.ops  # noqa: F401  (fills the registry)
from tests.fuzz.stages import skipped, stage
from tests.fuzz.tensors import STRING, Array, values_of
from vkml.ir.operator import REGISTRY

IR_VERSION = 10
STRANGE = tuple(
    f"tensor({name}" for name in ("bfloat16", "float8", "float4", "int4", "uint4", "int2", "uint2")
)
"""Types that NumPy lacks, as onnxruntime calls them."""
POINTWISE = {key for key, operator in REGISTRY.items() if operator.is_pointwise}
REFERENCE_LIMIT = 20_000
"""Elements up to which onnx's evaluator, which loops in Python, is asked."""
POINTWISE_LIMIT = 300_000
"""The same of operators that work element by element."""


class Refused(Exception):
    """The other runtime does not run this model; the message is its own."""


def code_of(array: Array) -> int:
    return STRING if array.dtype.kind in "OUS" else int(helper.np_dtype_to_tensor_dtype(array.dtype))


class Onnxruntime:
    """A model in onnxruntime, unoptimised, on the CPU.

    Raises:
        Refused: it does not load.
    """

    def __init__(self, model: ModelProto | bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.use_deterministic_compute = True
        data = model if isinstance(model, bytes) else model.SerializeToString()
        if "onnxruntime" in skipped:
            raise Refused("it crashed on this case")
        try:
            with stage("onnxruntime"):
                self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no base but RuntimeError and Exception
            raise Refused(f"{type(error).__name__}: {error}") from None
        self.outputs = [value.name for value in self.session.get_outputs()]

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name, as arrays of `numpy_type`; `Refused` where it raises."""
        given = {value.name: feed[value.name] for value in self.session.get_inputs()}
        try:
            with stage("onnxruntime"):
                if any(array.dtype.kind in "OUS" for array in given.values()):
                    return self._run_with_texts(given)
                results = self.session.run_with_ort_values(
                    None, {name: _value(array) for name, array in given.items()}
                )
                return {name: _array(value) for name, value in zip(self.outputs, results, strict=True)}
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}") from None

    def _run_with_texts(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs of a model that reads texts, which only NumPy's arrays carry in."""
        types = {value.type for value in self.session.get_outputs()}
        strange = {name for name in types if name.startswith(STRANGE)}
        if strange:
            raise Refused(f"{strange} come out as onnxruntime's own values only")
        given = {
            name: np.asarray(array.astype(str), object) if array.dtype.kind in "OUS" else array
            for name, array in feed.items()
        }
        return {
            name: values_of(np.asarray(result), code_of(np.asarray(result)))
            for name, result in zip(self.outputs, self.session.run(None, given), strict=True)
        }


def _value(array: Array) -> Any:
    make = onnxruntime.OrtValue
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.isbuiltin != 1:
        bits = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return make.ortvalue_from_numpy_with_onnx_type(bits, code_of(array))
    return make.ortvalue_from_numpy(array)


def _array(value: Any) -> Array:
    code = value.element_type()
    return values_of(np.asarray(value.numpy()), code)


def laid_open(model: ModelProto) -> ModelProto:
    """The model with every value that a node makes among its outputs."""
    changed = ModelProto()
    changed.CopyFrom(model)
    known = {value.name for value in changed.graph.output}
    for node in changed.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                changed.graph.output.append(helper.make_empty_tensor_value_info(name))
    # What a model says of values between nodes may be wrong, and need not be known.
    del changed.graph.value_info[:]
    return changed


def all_values(model: ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Every value that a node makes; `Refused` where neither runtime runs the model."""
    whole = laid_open(model)
    try:
        return Onnxruntime(whole).run(feed)
    except Refused:
        return reference(whole, feed)


def single(
    node: NodeProto, arrays: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> ModelProto:
    """A model of one node, whose inputs are all fed but for those that must be known to infer shapes."""
    inputs = [
        helper.make_tensor_value_info(name, code_of(arrays[name]), arrays[name].shape)
        for name in dict.fromkeys(node.input)
        if name
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "single", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def reference(model: ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by onnx's reference evaluator; `Refused` where it raises, or would take long."""
    from onnx.reference import ReferenceEvaluator

    if "reference" in skipped:
        raise Refused("it crashed on this case")
    is_pointwise = all((node.domain, node.op_type) in POINTWISE for node in model.graph.node)
    limit = POINTWISE_LIMIT if is_pointwise else REFERENCE_LIMIT
    if sum(array.size for array in feed.values()) > limit:
        raise Refused("too large for the reference evaluator")
    try:
        with stage("reference"), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            names = [value.name for value in model.graph.output]
            wanted = {value.name for value in model.graph.input}
            results = ReferenceEvaluator(model).run(
                names, {name: array for name, array in feed.items() if name in wanted}
            )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        raise Refused(f"{type(error).__name__}: {error}") from None
    return {name: _plain(result) for name, result in zip(names, results, strict=True)}


def _plain(result: Any) -> Array:
    array = np.asarray(result)
    return np.asarray(array, object) if array.dtype.kind in "US" else array
