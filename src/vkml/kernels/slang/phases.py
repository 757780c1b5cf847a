"""Programs that are phases of another: where their invocations are, and what their workgroups take."""

from __future__ import annotations

from vkml.kernels.slang import types
from vkml.kernels.slang.arithmetic import binary
from vkml.kernels.slang.body import Body, Value
from vkml.kernels.slang.types import UINT


def place_in_grid(
    body: Body, semantic: str, group: Value, thread: Value, workgroup: tuple[int, int, int]
) -> Value:
    """What an entry point's parameter is given by the device, computed.

    Args:
        body: where instructions go.
        semantic: the parameter's.
        group: the place of the workgroup in its grid.
        thread: the invocation's number in its workgroup.
        workgroup: the size of that.
    """
    if semantic == "SV_GroupIndex":
        return thread
    if semantic == "SV_GroupID":
        return group
    x, y, _ = workgroup
    places = [
        _step(body, "%", thread, x),
        _step(body, "%", _step(body, "/", thread, x), y),
        _step(body, "/", thread, x * y),
    ]
    if semantic == "SV_DispatchThreadID":
        first = [
            _step(body, "*", body.extract(group, axis, UINT), size) for axis, size in enumerate(workgroup)
        ]
        places = [binary(body, "+", *each) for each in zip(first, places, strict=True)]
    return body.construct(types.vector(UINT, 3), places)


def _step(body: Body, operation: str, value: Value, number: int) -> Value:
    return binary(body, operation, value, Value(UINT, 0, number))


def bytes_of(type_: types.Type) -> int:
    """What a variable takes of a workgroup's memory."""
    if isinstance(type_, types.Array):
        return type_.count * bytes_of(type_.element)
    return types.size_of(type_)


def name_of(type_: types.Type) -> str:
    """Equal for variables of a workgroup that are of the same type."""
    if isinstance(type_, types.Array):
        return f"{name_of(type_.element)}[{type_.count}]"
    if isinstance(type_, types.Vector):
        return f"{type_.element.name}{type_.count}"
    assert isinstance(type_, types.Scalar)
    return type_.name


def has_records(type_: types.Type) -> bool:
    """Whether a type is one of structs."""
    return has_records(type_.element) if isinstance(type_, types.Array) else isinstance(type_, types.Record)
