"""Models of ONNX as modules: `from_onnx`."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np

from vkml.errors import CaptureError, InvalidArgument
from vkml.ir import Constant, Graph, find
from vkml.ir.graph import every_node
from vkml.nn.module import Module, Parameter
from vkml.onnx import load_graph
from vkml.passes import normalise
from vkml.tensors import Tensor
from vkml.tensors.capture import is_capturing
from vkml.tensors.creation import as_tensor, tensor
from vkml.tracing import Traced
from vkml.tracing.graphs import MOST_FOLDED, GraphRecorder, elements

BUFFERS = "vkml.buffers"
"""Key of the metadata of exported models under which the names of initializers are that are no parameters."""


def from_onnx(path: Any) -> OnnxModule:
    """A module that computes what a model does, and learns.

    Args:
        path: of the model, or its bytes.

    Returns:
        The module, on the CPU. Initializers of floats are its parameters under the model's names, but for
        those that decide shapes or are statistics (the mean and variance of BatchNormalization), or were
        buffers of what the model was exported from (`vkml.onnx.export`), which are buffers.

    Raises:
        ModelError: the model cannot be read.
        UnsupportedOperator: operators are not known.

    Example:
        >>> import vkml
        >>> model = vkml.nn.from_onnx("digits.onnx")  # doctest: +SKIP
        >>> optimizer = vkml.optim.SGD(model.parameters(), lr=0.1)  # doctest: +SKIP
    """
    return OnnxModule(load_graph(path))


class OnnxModule(Module):
    """A graph of ONNX; see `from_onnx`.

    Args:
        graph: as it was loaded.

    Attributes:
        input_names: of what it is called with, in order.
        output_names: of what it gives.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        stated = dict(graph.constants)
        self._graph = normalise(graph)
        self.input_names = tuple(value.name for value in self._graph.inputs)
        self.output_names = tuple(value.name for value in self._graph.outputs)
        deciding, statistics = _not_learned(self._graph)
        statistics.update(_stated_buffers(graph))
        self._places: list[tuple[Constant, Module, str]] = []
        for name, constant in stated.items():
            is_float = constant.dtype.is_float and constant.dtype.bits >= 16 and name not in deciding
            if is_float and name not in statistics:
                self._enter(name, constant, Parameter(tensor(constant.array, dtype=constant.dtype)))
            elif is_float or (constant.dtype.kind != "s" and constant.array.size > MOST_FOLDED):
                self._enter(name, constant, tensor(constant.array, dtype=constant.dtype))
        # What bodies and Constant nodes state moves with the module, too, where it is large.
        for number, constant in enumerate(_others(self._graph, stated)):
            if constant.array.size > MOST_FOLDED and constant.dtype.kind != "s":
                name = f"constant_{number}"
                self._enter(name, constant, tensor(constant.array, dtype=constant.dtype), is_saved=False)

    def _enter(self, name: str, constant: Constant, value: Tensor, is_saved: bool = True) -> None:
        """Adds a parameter or buffer; dots in its name are modules in modules, as PyTorch's names have it."""
        owner, key = self._owner(name)
        if isinstance(value, Parameter):
            owner.register_parameter(key, value)
        else:
            owner.register_buffer(key, value, persistent=is_saved)
        self._places.append((constant, owner, key))

    def _owner(self, name: str) -> tuple[Module, str]:
        owner: Module = self
        *parts, key = name.split(".")
        for part in parts:
            held = owner._modules.get(part)
            if held is None:
                if not part or part in owner._parameters or part in owner._buffers or hasattr(owner, part):
                    return self, self._free(name.replace(".", "_"))
                held = Module()
                owner.add_module(part, held)
            owner = held
        is_taken = key in owner._parameters or key in owner._buffers or hasattr(owner, key)
        return (self, self._free(name.replace(".", "_"))) if is_taken or not key else (owner, key)

    def _free(self, wanted: str) -> str:
        """A name that the module does not have."""
        found = wanted or "unnamed"
        while hasattr(self, found):
            found += "_"
        return found

    def __deepcopy__(self, memo: dict[Any, Any]) -> OnnxModule:
        memo.update({id(shared): shared for shared in (self._graph, *(place[0] for place in self._places))})
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(deepcopy(self.__dict__, memo))
        return made

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's output; a tuple where it has several.

        Args:
            inputs: tensors or arrays, in the model's order.
            named: by the model's names.

        Raises:
            InvalidArgument: an input is missing, unknown, or of another type or rank than the model says.
            CaptureError: in a captured function, what a shape, a branch or a loop hangs on is not known.
        """
        if len(inputs) > len(self.input_names):
            raise InvalidArgument(
                f"the model has the inputs {list(self.input_names)}, {len(inputs)} were given"
            )
        given = {**dict(zip(self.input_names, inputs, strict=False)), **named}
        wrong = given.keys() ^ set(self.input_names)
        if wrong or len(inputs) + len(named) != len(given):
            raise InvalidArgument(
                f"the model has the inputs {list(self.input_names)}, given were {len(inputs)} and {[*named]}"
            )
        values: list[Any] = []
        for value in self._graph.inputs:
            x = given[value.name]
            found = x if isinstance(x, Tensor) else as_tensor(np.asarray(x))
            shape = value.tensor.shape
            if found.dtype != value.tensor.dtype or (shape is not None and len(shape) != found.ndim):
                raise InvalidArgument(
                    f"input '{value.name}' is {value.type} in the model, given was "
                    f"{found.dtype.numpy_name}{list(found.shape)}"
                )
            values.append(found.value)
        own = {id(constant): getattr(owner, key).value for constant, owner, key in self._places}
        made = GraphRecorder(own, _looked_at).run(self._graph, values)
        results = [_shown(item) for item in made]
        return results[0] if len(results) == 1 else tuple(results)


def _shown(item: Any) -> Any:
    """A tensor, or a list of them."""
    if isinstance(item, list):
        return [_shown(each) for each in item]
    return Tensor(item) if isinstance(item, Traced) else item


def _looked_at(value: Traced) -> np.ndarray[Any, Any]:
    if is_capturing():
        raise CaptureError(
            "the model's shapes, branches or trips hang on what a captured function computes: "
            "call it uncaptured"
        )
    return elements(value)


def _stated_buffers(graph: Graph) -> list[str]:
    """Names of buffers that an export has noted; metadata that is something else says nothing."""
    try:
        found = json.loads(graph.metadata.get(BUFFERS, "[]"))
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _not_learned(graph: Graph) -> tuple[set[str], set[str]]:
    """Values that decide shapes, and those that are statistics of what has been seen."""
    deciding: set[str] = set()
    statistics: set[str] = set()
    for node in every_node(graph):
        operator = find(node)
        for numbers, found in (
            ((*operator.value_inputs, *operator.sizing_inputs), deciding),
            (operator.statistic_inputs, statistics),
        ):
            found.update(node.inputs[at] for at in numbers if at < len(node.inputs))
    return deciding, statistics


def _others(graph: Graph, stated: dict[str, Constant]) -> list[Constant]:
    """Constants of the graph and its bodies that are no initializers of the model."""
    own = {id(constant) for constant in stated.values()}
    found = [constant for constant in graph.constants.values() if id(constant) not in own]
    for node in every_node(graph):
        for body in node.subgraphs:
            found += body.constants.values()
    return [constant for constant in found if id(constant) not in own]
