"""Values that go from one device to another as part of what is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkml.ir import Node, Operator
from vkml.ir.gradients import Emitter
from vkml.tracing.value import Application, Traced

if TYPE_CHECKING:
    from vkml.vulkan import Device

CPU = "cpu"


class Moved(Application):
    """A value that is computed on one device and read on another, in one plan of both.

    Computed it is an Identity of its device.

    Args:
        value: what is moved.
        device: where to; None for the CPU.
        bucket_bytes: see `moved`.
    """

    __slots__ = ("bucket_bytes",)

    def __init__(self, value: Traced, device: Device | None, bucket_bytes: int | None) -> None:
        super().__init__(_NODE, _MOVE, (value,), [value.type])
        self.device = device
        self.is_free = False
        self.bucket_bytes = bucket_bytes

    @property
    def is_between(self) -> bool:
        """Whether two devices compute: elements of the host go to a device with whatever reads them there."""
        [value] = self.inputs
        return value is not None and (value.data is None or value.device is not None)


class _Move(Operator):
    """What is moved, as an operator: only its gradient, which is moved back, is ever asked for."""

    def vjp(  # type: ignore[override]
        self,
        build: Emitter[Traced],
        node: Node,
        inputs: Sequence[Traced | None],
        outputs: Sequence[Traced],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> Sequence[Traced | None]:
        [cotangent], [value] = cotangents, inputs
        if cotangent is None or value is None:
            return [None]
        made = outputs[0].application
        bucket_bytes = made.bucket_bytes if isinstance(made, Moved) else None
        return [moved(cotangent, value.device, bucket_bytes)]


_NODE = Node("Identity", ("x",), ("y",), {}, "moved")
"""One for all of them."""
_MOVE = _Move("to")


def moved(value: Traced, device: Device | None, bucket_bytes: int | None = None) -> Traced:
    """A value on another device, through which gradients flow; nothing is computed yet.

    Args:
        value: computed or not.
        device: where to; None for the CPU.
        bucket_bytes: how many bytes that other devices wait for a piece of work makes before it ends and they
            are sent; None: as many as the device makes before it waits itself.
    """
    if value.is_free or value.device is device:
        return value
    return Moved(value, device, bucket_bytes).output(0)


def name_of(device: Device | None) -> str:
    """A device's name."""
    return CPU if device is None else device.info.name


def devices_of(applications: Sequence[Application], wanted: Sequence[Traced]) -> Mapping[int, str]:
    """Where each of some applications is computed, by its position, where that is not anywhere.

    What is made of constants alone, and single numbers of the host, are computed where they are read.

    Args:
        applications: in the order of recording.
        wanted: what is asked for of what they make.
    """
    numbers = {application.serial: at for at, application in enumerate(applications)}
    found: dict[int, str] = {}
    for value in wanted:
        # Numbers that a tensor of a device is filled with belong to no device, but the tensor does.
        if value.application is not None and value.device is not None:
            found[numbers[value.application.serial]] = name_of(value.device)
    for at, application in enumerate(applications):
        if application.device is not None or isinstance(application, Moved):
            found[at] = name_of(application.device)
        elif not _is_anywhere(application):
            found.setdefault(at, CPU)
    for at in range(len(applications) - 1, -1, -1):
        where = found.get(at)
        if where is None:
            continue
        for read in applications[at].inputs:
            if read is not None and read.data is None and read.application is not None:
                found.setdefault(numbers[read.application.serial], where)
    return found


def late_values(applications: Sequence[Application]) -> list[tuple[int, int]]:
    """Of what is moved in buckets, the serial of the application that makes it and which output it is."""
    found = []
    for application in applications:
        if not isinstance(application, Moved) or application.bucket_bytes is None:
            continue
        value = application.inputs[0]
        while value is not None and value.data is None and value.application is not None:
            made = value.application
            if made.node.op != "Identity" or isinstance(made, Moved):
                found.append((made.serial, value.index))
                break
            value = made.inputs[0]  # passes leave it out
    return found


def _is_anywhere(application: Application) -> bool:
    """Whether what is of no device may be computed on any."""
    if application.is_free:
        return True
    read = [value for value in application.inputs if value is not None and not value.is_free]
    return not any(value.dims for value in read) and not any(type_.dims for type_ in application.types)
