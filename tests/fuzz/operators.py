"""vkml's NumPy, node by node, against other runtimes, given the very inputs that these had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

import vkml
from tests.fuzz import trusted
from tests.fuzz.comparison import Difference, difference
from tests.fuzz.disturbances import RandomDisturbance, Traits
from tests.fuzz.driver import Finding
from tests.fuzz.evaluation import Evaluation, Mismatch, Step, evaluated
from tests.fuzz.known import ONNX, ORT, freedom
from tests.fuzz.limits import limit_of
from tests.fuzz.tensors import Array, is_computed_float
from vkml.ir import Known, TensorType

TRAITS = Traits(rough_quotients=True, unrounded_halves=True, scale=8.0)
"""What other runtimes may do to numbers: anything reasonable."""
ORT_TRAITS = replace(TRAITS, unrounded_decisions=True)
"""onnxruntime computes float16 as float32, which nodes hand on to one another as it is."""
absent: set[Any] = set()
"""Operator, opset and types that onnxruntime has no kernel for."""


class OperatorCheck:
    """One model's operators.

    Where onnxruntime ran the model, each node gets the inputs that it had there, so errors do not add up;
    where it did not, or has other inputs than vkml for a known reason, nodes are asked for one by one. Where
    the two differ, onnx's evaluator decides.
    """

    def __init__(self, proto: ModelProto, evaluation: Evaluation) -> None:
        self.proto, self.evaluation = proto, evaluation
        self.makers = {name: node for node in proto.graph.node for name in node.output if name}
        self.opset = next((entry.version for entry in proto.opset_import if not entry.domain), 1)
        self.constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.counts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.apart: set[str] = set()
        """Values that onnxruntime rightly or excusably has otherwise, and what is computed from them."""
        self.excused: list[str] = []
        """Nodes that read such values and refuse them: onnxruntime, having others, may run them."""

    def run(self, feed: Mapping[str, Array], trace: Mapping[str, Array] | None) -> None:
        """All nodes for one feed; `trace` holds onnxruntime's values, if it ran the model."""
        self.apart.clear()
        try:
            values = self.evaluation.start(feed)
            for step in self.evaluation.steps(values):
                if self.apart.intersection(step.node.inputs):
                    self.apart.update(filter(None, step.node.outputs))
                found = step.results()
                for name, mine in list(found.items()):
                    if name in self.makers and self._may_compare(mine, self.makers[name]):
                        found[name] = self._checked(step, name, mine, trace, values)
                values.update(found)
        except Mismatch as error:
            self._add("inference", str(error))
        except vkml.Error as error:
            node = self.evaluation.current
            if node is not None and self.apart.intersection(node.inputs):
                self.excused.append(node.label)
            elif trace is not None and not limit_of(str(error), self.proto):
                self._add("refused", f"onnxruntime runs what NumPy refuses: {error}")
        except MemoryError:
            self.counts["out of memory"] += 1
        except Exception as error:
            self.findings.append(
                Finding("exception", type(error).__name__, f"in an operator's evaluation: {error}")
            )

    def _add(self, kind: str, message: str) -> None:
        ops = {node.op_type for node in self.proto.graph.node}
        where = next((word for word in message.replace("'", " ").split() if word in ops), "")
        self.findings.append(Finding(kind, where, message))

    @staticmethod
    def _may_compare(mine: Known, node: NodeProto) -> bool:
        return (
            mine.value is not None and mine.dtype.bits >= 8 and node.op_type not in ("Constant", "Identity")
        )

    def _checked(
        self,
        step: Step,
        name: str,
        mine: Known,
        trace: Mapping[str, Array] | None,
        values: Mapping[str, Known],
    ) -> Known:
        """Compares one output; gives the value that the nodes behind it read."""
        node = self.makers[name]
        theirs = trace.get(name) if trace is not None and name not in self.apart else None
        source, is_traced = ORT, theirs is not None
        if theirs is None:
            theirs, source = self._alone(node, name, values)
        if theirs is None or (source != ORT and not _all_finite(step)):
            return mine  # onnx's evaluator takes no care of NaN and infinity
        assert mine.value is not None
        ours = mine.value
        if source == ONNX:
            theirs = _narrowed(theirs, ours)
        self.counts["operators compared"] += 1
        wrong = self._difference(step, name, ours, theirs, source)
        if wrong is not None:
            judged = ""
            if is_traced and self._agrees_alone(step, name, values, ours):
                self.counts["onnxruntime differs"] += 1
                self.apart.add(name)
                return mine
            if source == ORT:
                third = self._referee(node, name, values)
                judged = self._judgement(step, name, wrong, ours, theirs, third)
                if judged == "differs":
                    self.counts["onnxruntime differs"] += 1
                    self.apart.add(name)
                    return mine
            message = f"{source} has {wrong.words}{judged}: {_described(step)}"
            self.findings.append(Finding("operator", node.op_type, message))
        if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
            if is_traced:
                self.apart.add(name)
            return mine
        return Known(TensorType(mine.dtype, theirs.shape), theirs)

    def _agrees_alone(self, step: Step, name: str, values: Mapping[str, Known], ours: Array) -> bool:
        """Whether onnxruntime has our result where the node is all of the model.

        Within one, it may know inputs more precisely than they are stored: floats of 16 bits, of which equal
        ones need not be equal then.
        """
        theirs, source = self._alone(self.makers[name], name, values)
        return (
            theirs is not None and source == ORT and self._difference(step, name, ours, theirs, ORT) is None
        )

    def _judgement(
        self, step: Step, name: str, wrong: Difference, ours: Array, theirs: Array, third: Array | None
    ) -> str:
        if third is None:
            return ""
        third = _narrowed(third, ours)
        if wrong.mask is not None and third.shape == ours.shape and third.dtype == ours.dtype:
            third = np.where(wrong.mask, third, ours)  # where the two agree, the third has no say
        if self._difference(step, name, ours, third, ONNX) is None:
            return "differs"
        agrees = self._difference(step, name, theirs, third, ONNX) is None
        return "; onnx's evaluator agrees" if agrees else "; onnx's evaluator agrees with neither"

    def _difference(
        self, step: Step, name: str, ours: Array, theirs: Array, source: str
    ) -> Difference | None:
        at = step.node.outputs.index(name)

        def sample(which: int) -> Array | None:
            try:
                traits = ORT_TRAITS if source == ORT else TRAITS
                disturbance = RandomDisturbance(np.random.default_rng(which), traits, which)
                made = evaluated(step.node, list(step.known), disturbance).outputs[at]
            except (vkml.Error, Mismatch):
                return None
            return made

        # What the node is called upgraded says nothing of how others read it.
        stated = replace(step.node, version=self.opset)
        free = freedom(stated, step.inputs, ours, source)
        if np.all(free):
            return None  # shapes may differ, too
        if np.any(free) and theirs.dtype == ours.dtype and theirs.shape == ours.shape:
            theirs = np.where(np.broadcast_to(free, ours.shape), ours, theirs)
        return difference(theirs, ours, sample)

    # -- single nodes elsewhere -----------------------------------------------------------------------------

    def _alone(self, node: NodeProto, name: str, values: Mapping[str, Known]) -> tuple[Array | None, str]:
        """One output of a node by onnxruntime or, where it has no such kernel, by onnx's evaluator."""
        arrays = self._arrays(node, values)
        if arrays is None:
            return None, ""
        kernel = (
            node.op_type,
            self.proto.opset_import[0].version,
            *(array.dtype for array in arrays.values()),
        )
        if kernel not in absent:
            try:
                model = trusted.single(node, arrays, self.proto.opset_import)
                return trusted.Onnxruntime(model).run(arrays).get(name), ORT
            except trusted.Refused as error:
                if "NotImplemented" in str(error):
                    absent.add(kernel)
        return self._referee(node, name, values), ONNX

    def _referee(self, node: NodeProto, name: str, values: Mapping[str, Known]) -> Array | None:
        node = _without_idle_roi(node)
        arrays = self._arrays(node, values)
        if arrays is None:
            return None
        try:
            found = trusted.reference(trusted.single(node, arrays, self.proto.opset_import), arrays).get(name)
        except trusted.Refused:
            return None
        if node.op_type == "Dropout" and self.opset < 10 and found is not None:
            return found.astype(arrays[node.input[0]].dtype)  # its masks are those of opset 10
        return found

    def _arrays(self, node: NodeProto, values: Mapping[str, Known]) -> dict[str, Array] | None:
        """A node's inputs by name; None where one of them has no form that others take."""
        arrays: dict[str, Array] = {}
        for source in node.input:
            known = values.get(source)
            if known is not None and known.value is not None:
                arrays[source] = known.value
            elif source in self.constants:
                arrays[source] = numpy_helper.to_array(self.constants[source])
            elif source:
                return None
        return arrays


def _without_idle_roi(node: NodeProto) -> NodeProto:
    """A Resize without the regions that only one mode reads: onnx's evaluator wants them right in all."""
    modes = [entry.s for entry in node.attribute if entry.name == "coordinate_transformation_mode"]
    if node.op_type != "Resize" or len(node.input) < 3 or b"tf_crop_and_resize" in modes:
        return node
    changed = NodeProto()
    changed.CopyFrom(node)
    changed.input[1] = ""
    return changed


def _narrowed(theirs: Array, ours: Array) -> Array:
    """A result of onnx's evaluator, which widens numbers where ONNX does not, in the type it should have."""
    kinds = {theirs.dtype.kind, ours.dtype.kind}
    return theirs.astype(ours.dtype) if kinds <= set("iu") or kinds == {"f"} else theirs


def _all_finite(step: Step) -> bool:
    arrays = [
        array
        for array in step.inputs
        if array is not None and (array.dtype.kind == "c" or is_computed_float(array))
    ]
    return all(np.isfinite(array).all() for array in arrays)


def _described(step: Step) -> str:
    shapes = ", ".join("–" if array is None else f"{array.dtype}{list(array.shape)}" for array in step.inputs)
    attributes = {key: value for key, value in step.node.attributes.items() if value is not None}
    return f"{step.node.op}({shapes}) {attributes}"
