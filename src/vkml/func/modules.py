"""Modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkml.nn.module import Module
from vkml.tensors import Tensor
from vkml.tensors.shapes import stack


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """What a module computes with other parameters and buffers; those that are not named stay its own.

    Args:
        module: is as it was afterwards, also where it fails.
        parameter_and_buffer_dicts: tensors by their names in the module, or several such tables.
        args: of the module: a tuple of arguments, or the only one.
        kwargs: its named arguments.
        tie_weights: whether a tensor that the module has under several names is replaced under all of them.
        strict: whether all of the module's tensors have to be named.

    Raises:
        RuntimeError: a name is not one of the module's, or with `strict` one is missing.
    """
    given: dict[str, Tensor] = {}
    tables = (
        [parameter_and_buffer_dicts]
        if isinstance(parameter_and_buffer_dicts, Mapping)
        else list(parameter_and_buffer_dicts)
    )
    for table in tables:
        twice = given.keys() & table.keys()
        if twice:
            raise ValueError(f"{sorted(twice)[0]} is in more than one of the tables")
        given.update(table)
    places: dict[str, tuple[dict[str, Any], str]] = {}
    held: dict[str, Any]
    for prefix, owner in module.named_modules():
        tensors: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        for each in tensors:
            for name in each:
                places[f"{prefix}.{name}" if prefix else name] = (each, name)
    unknown = [name for name in given if name not in places]
    missing = [name for name in places if name not in given] if strict else []
    if unknown or missing:
        raise RuntimeError(f"functional_call: unexpected {unknown}, missing {missing}")
    if tie_weights:
        replaced = {id(places[name][0][places[name][1]]): value for name, value in given.items()}
        for name, (held, key) in places.items():
            value = held[key]
            if name not in given and value is not None and id(value) in replaced:
                given[name] = replaced[id(value)]
    before = {name: places[name][0][places[name][1]] for name in given}
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    try:
        for name, tensor in given.items():
            held, key = places[name]
            held[key] = tensor
        return module(*arguments, **(kwargs or {}))
    finally:
        for name, own in before.items():
            held, key = places[name]
            held[key] = own


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of modules of one kind, those of each name stacked along a new first axis.

    With `vkml.vmap` and `functional_call` the modules are computed, and trained, as one.

    Args:
        models: of the same class and mode, whose tensors have the same names and shapes.

    Returns:
        parameters, leaves that require grad where all of a name do, and buffers, by their names.

    Raises:
        RuntimeError: there is none, or they are of several kinds.
    """
    if not models:
        raise RuntimeError("stack_module_state: at least one module is needed")
    if len({type(model) for model in models}) > 1 or len({model.training for model in models}) > 1:
        raise RuntimeError("stack_module_state: modules are of one class, and all in training or none")

    def stacked(tables: Sequence[Mapping[str, Tensor]], is_learnt: bool) -> dict[str, Tensor]:
        if any(table.keys() != tables[0].keys() for table in tables):
            raise RuntimeError("stack_module_state: modules have tensors of different names")
        found = {}
        for name in tables[0]:
            each = [table[name] for table in tables]
            made = stack([one.detach() for one in each])
            if is_learnt and len({one.requires_grad for one in each}) > 1:
                raise RuntimeError(f"stack_module_state: of {name} some require grad and some do not")
            found[name] = made.requires_grad_() if is_learnt and each[0].requires_grad else made
        return found

    parameters = [dict(model.named_parameters()) for model in models]
    return stacked(parameters, True), stacked([dict(model.named_buffers()) for model in models], False)
