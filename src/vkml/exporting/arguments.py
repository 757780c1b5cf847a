"""What an exported function is called with: tensors by the names of the model's inputs, and all else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.exporting.sizes import OpenSize, stated_sizes
from vkml.tensors import Tensor
from vkml.tensors.creation import as_tensor


@dataclass
class Argument:
    """A tensor among the arguments.

    Attributes:
        name: of the model's input.
        tensor: the example.
        sizes: the open ones, by axis.
    """

    name: str
    tensor: Tensor
    sizes: dict[int, OpenSize]


def named_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    """Arguments by the names of parameters; those of ``*args`` are numbered.

    Returns:
        These, and what the function is to be called with to have them in the same order.

    Raises:
        TypeError: the function does not take them.
    """
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # of a builtin, whose signature is not known
        names = {f"input_{at}": value for at, value in enumerate(args)}
        return {**names, **kwargs}, tuple(args), dict(kwargs)
    parameters = bound.signature.parameters
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update((f"{name}_{at}", one) for at, one in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found, bound.args, bound.kwargs


def read_arguments(
    given: Mapping[str, Any], dynamic_shapes: Any, input_names: Sequence[str] | None, device: str | None
) -> list[Argument]:
    """The tensors among arguments, in order.

    Args:
        given: arguments by name.
        dynamic_shapes: as `export` takes it.
        input_names: of the tensors, from the first on; others are called as the function calls them.
        device: where arrays go.

    Raises:
        InvalidArgument: names or sizes do not fit what there is.
    """
    found: list[Argument] = []
    for name, spec in _specs(given, dynamic_shapes):
        _read(given[name], spec, name, device, found)
    names = list(input_names or ())
    if len(names) > len(found):
        raise InvalidArgument(
            f"input_names has {len(names)} names, there are {len(found)} tensors: "
            f"{[one.name for one in found]}"
        )
    for argument, name in zip(found, names, strict=False):
        argument.name = str(name)
    every = [argument.name for argument in found]
    twice = sorted({name for name in every if every.count(name) > 1 or not name})
    if twice:
        raise InvalidArgument(f"inputs need names of their own: {twice[0]!r} is that of several, or empty")
    return found


def _specs(given: Mapping[str, Any], dynamic_shapes: Any) -> list[tuple[str, Any]]:
    if dynamic_shapes is None:
        return [(name, None) for name in given]
    if isinstance(dynamic_shapes, Mapping):
        unknown = sorted(set(dynamic_shapes) - set(given))
        if unknown:
            raise InvalidArgument(
                f"dynamic_shapes names {unknown[0]!r}, the arguments are {', '.join(given) or 'none'}"
            )
        return [(name, dynamic_shapes.get(name)) for name in given]
    if isinstance(dynamic_shapes, tuple | list):
        if len(dynamic_shapes) != len(given):
            raise InvalidArgument(
                f"dynamic_shapes is of {len(dynamic_shapes)} arguments, there are {len(given)}: "
                f"{', '.join(given)}"
            )
        return list(zip(given, dynamic_shapes, strict=True))
    raise InvalidArgument(
        "dynamic_shapes is a dict by the names of arguments or a tuple in their order, not "
        f"{type(dynamic_shapes).__name__}"
    )


def _read(value: Any, spec: Any, name: str, device: str | None, found: list[Argument]) -> None:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        tensor = value if isinstance(value, Tensor) else as_tensor(value, device=device)
        found.append(Argument(name, tensor, stated_sizes(spec, tuple(tensor.shape), name)))
    elif isinstance(value, Mapping):
        _inner(value, dict(value), spec, name, device, found)
    elif isinstance(value, tuple | list):
        _inner(value, dict(enumerate(value)), spec, name, device, found)
    elif spec not in (None, {}, (), []):
        raise InvalidArgument(f"dynamic_shapes: the argument {name!r} is no tensor")


def _inner(
    value: Any, items: Mapping[Any, Any], spec: Any, name: str, device: str | None, found: list[Argument]
) -> None:
    if spec is None:
        specs: Mapping[Any, Any] = {}
    elif isinstance(spec, Mapping):
        specs = spec
    elif isinstance(spec, tuple | list) and len(spec) == len(items) and not isinstance(value, Mapping):
        specs = dict(enumerate(spec))
    else:
        raise InvalidArgument(f"dynamic_shapes: the argument {name!r} is of another form: {spec!r}")
    unknown = [key for key in specs if key not in items]
    if unknown:
        raise InvalidArgument(f"dynamic_shapes: there is no {unknown[0]!r} in the argument {name!r}")
    for key, item in items.items():
        _read(item, specs.get(key), f"{name}_{key}", device, found)


def filled(value: Any, tensors: list[Tensor]) -> Any:
    """Arguments with other tensors, which are taken from the front of `tensors`."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return tensors.pop(0)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(filled(item, tensors) for item in value))
    if isinstance(value, list | tuple):
        return type(value)([filled(item, tensors) for item in value])
    if isinstance(value, Mapping):
        made = {key: filled(item, tensors) for key, item in value.items()}
        return made if type(value) is dict else type(value)(made)  # type: ignore[call-arg]
    return value


def named_results(made: Any, output_names: Sequence[str] | None) -> list[tuple[str, Tensor]]:
    """The tensors among what a function returns, with the names of the model's outputs.

    Those of a mapping are called by their keys, others by their numbers; None is left out.

    Raises:
        InvalidArgument: there are none, something else is among them, or names do not fit.
    """
    found: list[tuple[str, Tensor]] = []
    _results(made, "", found)
    if not found:
        raise InvalidArgument("the function returns no tensor: a model needs an output")
    if len(found) == 1 and not found[0][0]:
        found = [("output", found[0][1])]
    found = [(f"output_{name}" if name[:1].isdigit() else name, value) for name, value in found]
    names = list(output_names or ())
    if len(names) > len(found):
        raise InvalidArgument(
            f"output_names has {len(names)} names, the function returns {len(found)} tensors"
        )
    found[: len(names)] = [(str(name), value) for name, (_, value) in zip(names, found, strict=False)]
    every = [name for name, _ in found]
    twice = sorted({name for name in every if every.count(name) > 1 or not name})
    if twice:
        raise InvalidArgument(f"outputs need names of their own: {twice[0]!r} is that of several, or empty")
    return found


def _results(value: Any, name: str, found: list[tuple[str, Tensor]]) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _results(item, f"{name}_{key}" if name else str(key), found)
    elif isinstance(value, tuple | list):
        keys = getattr(value, "_fields", range(len(value)))
        for key, item in zip(keys, value, strict=True):
            _results(item, f"{name}_{key}" if name else str(key), found)
    elif value is not None:
        raise InvalidArgument(
            f"the function returns {value.__class__.__name__} beside its tensors: outputs of a model are "
            "tensors"
        )
