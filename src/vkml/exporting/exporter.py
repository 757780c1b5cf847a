"""`export`: a module, or a function of tensors, as a model of ONNX."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import vkml
from vkml.errors import CaptureError, InvalidArgument
from vkml.exporting.arguments import Argument, filled, named_arguments, named_results, read_arguments
from vkml.exporting.graphs import graph_of
from vkml.exporting.opsets import OLDEST
from vkml.exporting.recording import record
from vkml.exporting.sizes import ClosedSizes, Dim, OpenSizes, stated_sizes
from vkml.exporting.standard import is_kept, written_in_standard
from vkml.exporting.tidying import tidied
from vkml.ir import Graph
from vkml.ir.size import TooOpen
from vkml.nn.module import Module
from vkml.nn.onnx import BUFFERS
from vkml.onnx import save_graph
from vkml.ops.upgrading import NEWEST
from vkml.passes import expand_steps
from vkml.passes.stated_sizes import with_named_sizes, with_stated_sizes
from vkml.tensors.backward import compute
from vkml.tracing import Traced
from vkml.tracing.value import tensor_type


class TrainingMode(Enum):
    """The mode in which a module is exported; the names are those of `torch.onnx.TrainingMode`."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


def export(
    module: Module | Callable[..., Any],
    args: Any = (),
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    external_data: bool | str | None = None,
    training: TrainingMode = TrainingMode.EVAL,
) -> bytes | None:
    """Writes what a module computes as a model of ONNX.

    It is called once, with tensors whose elements nobody can look at, and what it applies to them is
    recorded. The model has ONNX's own operators alone, so other runtimes take it; its initializers have the
    names of the module's `state_dict`, its nodes those of the modules that they came from.

    Args:
        module: a module, a captured function (`vkml.jit`) or any function of tensors.
        args: what it is called with, a tuple; a single tensor or array may stand for itself. Tensors become
            the model's inputs, anything else is part of what is recorded.
        path: of the file, which appears whole or not at all; without it the bytes are returned.
        kwargs: what it is called with by name.
        input_names: of the tensors among the arguments, from the first on; the others have the names of
            parameters of `forward`, those within an argument with their key or number behind.
        output_names: of the tensors that it returns; ``output``, ``output_0``, … or the keys of a mapping
            where left out. None that is returned is no output.
        opset_version: of ONNX; from 18 on the first that has all operators, where left out.
        dynamic_shapes: which sizes the model leaves open, as `torch.export` takes it: for each argument, by
            name in a dict or by place in a tuple, None or ``{axis: size}``, a size being a name, a `Dim`,
            ``Dim.DYNAMIC`` or ``Dim.AUTO``. Equal names are equal sizes. They are taken to be 2 or more while
            the function is recorded.
        dynamic_axes: the older form of it, ``{input: {axis: name}}`` or ``{input: [axis]}``, by the names of
            the model's inputs; entries of outputs are let pass, their sizes follow.
        external_data: True puts the weights into a file beside the model, named like it and ``.data``, a
            string names that file; None does so where the model would pass 2 GiB.
        training: the mode in which the module is recorded, all modules within it included; as they were
            afterwards.

    Returns:
        The model's bytes, where there is no path.

    Raises:
        InvalidArgument: arguments, names or sizes do not fit.
        CaptureError: what it computes hangs on elements of tensors (``if x.sum() > 0``), or on sizes that
            are to be open.
        UnsupportedOperator: it computes what ONNX has no operator for; the message names all of that.
        Fail: the file cannot be written.

    Example:
        >>> import vkml
        >>> model = vkml.nn.Sequential(vkml.nn.Linear(3, 5), vkml.nn.ReLU())
        >>> x = vkml.zeros(4, 3)
        >>> made = vkml.onnx.export(model, (x,), dynamic_shapes=({0: "batch"},))
        >>> session = vkml.InferenceSession(made, devices=["cpu"])
        >>> session.get_inputs()[0].shape, session.get_outputs()[0].shape
        (['batch', 3], ['batch', 5])
    """
    if opset_version is not None and not OLDEST <= opset_version <= NEWEST:
        raise InvalidArgument(f"opset_version is one of {OLDEST} to {NEWEST}, not {opset_version!r}")
    if dynamic_shapes is not None and dynamic_axes is not None:
        raise InvalidArgument("dynamic_axes is the older form of dynamic_shapes: give one of the two")
    owner = _module_of(module)
    if isinstance(args, Mapping) or not isinstance(args, tuple | list):
        args = (args,)
    called = module.forward if isinstance(module, Module) else module
    given, positional, named = named_arguments(called, args, kwargs or {})
    device = None if owner is None else next((one.device for one in owner.parameters()), None)
    arguments = read_arguments(given, dynamic_shapes, input_names, device)
    if dynamic_axes is not None:
        _state_axes(arguments, dynamic_axes)
    compute([argument.tensor for argument in arguments])
    closed: set[str] = set()

    def made(known: set[int] | None, is_multiplied: bool = False) -> _Made:
        sizes = OpenSizes(known, is_multiplied)
        with sizes.sizes.deciding():
            inputs = [(one.name, _input(one, sizes, closed)) for one in arguments]
            try:
                graph = _graph(
                    module, owner, inputs, (positional, named), output_names, training, opset_version
                )
            except TooOpen as error:
                fixed = sizes.fixed()
                if fixed:
                    return None, sizes, fixed
                raise CaptureError(
                    f"{sizes.named(str(error))}: say that the size is known (leave it out of "
                    "dynamic_shapes), or compute with what a model can compute sizes with: sums, products "
                    "and whole quotients"
                ) from error
        return graph, sizes, sizes.closed()

    while True:
        graph, sizes, more = _with_any_examples(made, _known_sizes(owner, arguments))
        if not more:
            break
        closed |= more
    assert graph is not None
    relations = sizes.relations()
    metadata = {"vkml.sizes": "; ".join(relations)} if relations else {}
    graph = replace(with_named_sizes(graph, sizes.text), metadata={**graph.metadata, **metadata})
    return save_graph(
        graph, path, external_data=external_data, producer="vkml", producer_version=vkml.__version__
    )


_Made = tuple[Graph | None, OpenSizes, set[str]]


def _with_any_examples(made: Callable[..., _Made], known: set[int]) -> _Made:
    """What is made with the sizes of the example, or others near them where these are equal by chance.

    Args:
        made: a graph, its sizes, and those of them that cannot be open after all; by what `OpenSizes` takes.
        known: these sizes.

    Raises:
        CaptureError: sizes cannot be open.
    """
    refused: ClosedSizes | None = None
    found: _Made | None = None
    try:
        found = made(None)
        if not found[2]:
            return found
    except ClosedSizes as error:
        refused = error
    for is_multiplied in (False, True):
        # What other sizes do not fit says less than what the sizes at hand have in common.
        with contextlib.suppress(Exception):
            other = made(known, is_multiplied)
            if not other[2] and other[1].goes_another_way():
                continue  # a model of the other sizes, not of those that were given
            if not other[2] or found is None or len(other[2]) < len(found[2]):
                return other
    if found is not None:
        return found
    assert refused is not None
    raise refused


def _graph(
    module: Any, owner: Module | None, inputs: Sequence[tuple[str, Traced]], arguments: tuple[Any, Any],
    output_names: Sequence[str] | None, training: TrainingMode, opset: int | None,
) -> Graph:  # fmt: skip
    def call(tensors: Sequence[Any]) -> Any:
        left = list(tensors)
        positional, named = filled(arguments[0], left), filled(arguments[1], left)
        return module(*positional, **named)

    with _in_mode(owner, training):
        try:
            outputs, seen = record(
                owner, [value for _, value in inputs], call, lambda made: named_results(made, output_names)
            )
        except CaptureError as error:
            raise CaptureError(
                f"{error}; what is exported is recorded once for all inputs, so no branch, loop or size can "
                "hang on the elements of a tensor: write a branch with vkml.where, or export its parts"
            ) from error
    taken = {name for name, _ in inputs}
    for name, _ in outputs:
        if name in taken:
            raise InvalidArgument(
                f"an input and an output are called {name!r}: see input_names, output_names"
            )
    label = type(owner).__name__ if owner is not None else getattr(module, "__name__", "graph")
    graph, stated = graph_of(inputs, outputs, seen.states, seen.scopes, label)
    graph = expand_steps(graph, lambda _, nodes: {n.key for n in nodes if is_kept(n)}, on_host=True)
    graph, needed = written_in_standard(graph, opset)
    graph = tidied(with_stated_sizes(graph), needed, stated)
    learned = set() if owner is None else {name for name, _ in owner.named_parameters()}
    others = sorted(name for name in graph.constants if name not in learned)
    return replace(graph, metadata={BUFFERS: json.dumps(others)}) if others else graph


def _module_of(module: Any) -> Module | None:
    """The module whose parameters are named: itself, or that of a method, captured or not."""
    if isinstance(module, Module):
        return module
    found = getattr(inspect.unwrap(module), "__self__", None)
    if not callable(module):
        raise InvalidArgument(f"a module or a function is exported, not {type(module).__name__}")
    return found if isinstance(found, Module) else None


def _input(argument: Argument, sizes: OpenSizes, closed: set[str]) -> Traced:
    """What stands for a tensor: its type, with open sizes."""
    value = argument.tensor.value
    dims: list[Any] = list(value.dims)
    for axis, stated in argument.sizes.items():
        if stated.name not in closed:
            dims[axis] = sizes.size(stated, dims[axis])
    return Traced(tensor_type(value.type.dtype, tuple(dims)), value.device, value.data)


def _known_sizes(owner: Module | None, arguments: Sequence[Argument]) -> set[int]:
    found: set[int] = set()
    for argument in arguments:
        found.update(size for axis, size in enumerate(argument.tensor.shape) if axis not in argument.sizes)
    if owner is not None:
        for tensor in (*owner.parameters(), *owner.buffers()):
            found.update(tensor.shape)
    return found


def _state_axes(arguments: Sequence[Argument], dynamic_axes: Mapping[str, Any]) -> None:
    """Takes open sizes in the older form."""
    for argument in arguments:
        axes = dynamic_axes.get(argument.name)
        if axes is None:
            continue
        spec = axes if isinstance(axes, Mapping) else dict.fromkeys(axes, Dim.DYNAMIC)
        argument.sizes = stated_sizes(spec, tuple(argument.tensor.shape), argument.name)


@contextlib.contextmanager
def _in_mode(owner: Module | None, training: TrainingMode) -> Iterator[None]:
    """Has a module, and all in it, be in a mode."""
    if owner is None or training is TrainingMode.PRESERVE:
        yield
        return
    before = [(inner, inner.training) for inner in owner.modules()]
    owner.train(training is TrainingMode.TRAINING)
    try:
        yield
    finally:
        for inner, was in before:
            inner.training = was
