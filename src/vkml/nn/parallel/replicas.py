"""Replicas of a module on other devices, whose parameters stay there and follow the module's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vkml.engine.ort_value import device_of
from vkml.ir import Node, Operator
from vkml.ir.gradients import Emitter
from vkml.nn.module import Module
from vkml.nn.parallel.scatter_gather import sent
from vkml.tensors import Tensor
from vkml.tensors.backward import compute
from vkml.tensors.capture import captures, uncaptured
from vkml.tracing import Joined, Traced, apply
from vkml.tracing.moves import moved
from vkml.tracing.value import mode, tracking


class Mirror:
    """A tensor of a device that has the elements of one elsewhere.

    Args:
        master: that one.
        device: where the mirror is.
    """

    def __init__(self, master: Tensor, device: str) -> None:
        self.master = master
        self.device = device
        with uncaptured(), tracking(False):
            self.tensor = Tensor(sent(master.detach(), device).value)
            compute([self.tensor])
        self._apart = 0
        self.note()
        self.local: Tensor | None = None
        """The gradients by it that have not been sent yet."""

    def note(self) -> None:
        """Notes that both are the same now; runs of a capture that write both keep them so."""
        self._apart = self.master._version - self.tensor._version

    @property
    def is_current(self) -> bool:
        """Whether nothing has been written to the other one since they were the same."""
        return self.master._version - self.tensor._version == self._apart

    def refresh(self) -> None:
        """Has it take the elements of the other one, with whatever is computed next."""
        with tracking(False):
            self.tensor._put(sent(self.master.detach(), self.device).value)
        self.note()


class _Replicated(Operator):
    """A mirror as an operator of its master: gradients by it flow there.

    Args:
        mirror: the mirror.
        bucket_bytes: see `moved`.
        is_sent: whether gradients are sent; else they are added up where they are.
    """

    def __init__(self, mirror: Mirror, bucket_bytes: int, is_sent: bool) -> None:
        super().__init__("replicate")
        self._mirror, self._bucket_bytes, self._is_sent = mirror, bucket_bytes, is_sent

    def vjp(  # type: ignore[override]
        self,
        build: Emitter[Traced],
        node: Node,
        inputs: Sequence[Traced | None],
        outputs: Sequence[Traced],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> Sequence[Traced | None]:
        [cotangent], mirror = cotangents, self._mirror
        if cotangent is None:
            return [None]
        # Who forgets the gradients of the module forgets those that are part of them, too.
        local = mirror.local if mirror.master.grad is not None else None
        mirror.local = None
        if local is not None:
            cotangent = apply("Add", local.value, cotangent)
        if not self._is_sent:
            mirror.local = Tensor(cotangent)
            return [None]
        return [moved(cotangent, mirror.master.value.device, self._bucket_bytes)]


class Replicas:
    """A module's mirrors on a device, and the replicas that compute with them.

    Args:
        module: of another device.
        device: this one.
        bucket_bytes: see `moved`.
    """

    def __init__(self, module: Module, device: str, bucket_bytes: int) -> None:
        self.device = device
        self._module = module
        self._bucket_bytes = bucket_bytes
        self._mirrors: dict[int, Mirror] = {}
        self.update()

    def mirrors(self) -> Iterator[Mirror]:
        """Those of all parameters and buffers."""
        return iter(self._mirrors.values())

    def update(self) -> None:
        """Has mirrors be of the parameters and buffers that the module has now, and like them."""
        latest = captures.latest
        found: dict[int, Mirror] = {}
        behind: list[Tensor] = []
        for master in self._module._tensors():
            mirror = self._mirrors.get(id(master))
            if mirror is None or mirror.master is not master:
                mirror = Mirror(master, self.device)
            found[id(master)] = mirror
            if mirror.is_current:
                continue
            if latest is None or id(master) in latest.written:
                mirror.refresh()
            else:  # what was written before the capture is no part of it
                with uncaptured():
                    mirror.refresh()
                behind.append(mirror.tensor)
        self._mirrors = found
        if behind:
            with uncaptured():
                compute(behind)

    def follow(self) -> None:
        """Has mirrors follow what a capture has written, at its end, so that each run of it does so."""
        latest = captures.latest
        assert latest is not None
        for mirror in self._mirrors.values():
            if id(mirror.master) in latest.written and not mirror.is_current:
                mirror.refresh()

    def note(self) -> None:
        """Notes that all mirrors are like their masters."""
        for mirror in self._mirrors.values():
            mirror.note()

    def made(self, is_sent: bool) -> Module:
        """A replica for one call, of the module as it is now.

        Args:
            is_sent: whether gradients are sent to the module's own parameters by the next `backward`.
        """
        tensors: dict[int, Tensor] = {}
        for master_id, mirror in self._mirrors.items():
            # A tensor of its own: what a replica writes into a buffer is lost, as torch has it.
            tensor, source = mirror.tensor.detach().clone(), mirror.master.value
            if source.tracks and mode.tracks:
                operator = _Replicated(mirror, self._bucket_bytes, is_sent)
                tensor = Tensor(Joined(operator, [tensor.value], [source]).output(0))
            tensors[master_id] = tensor
        return _replica(self._module, tensors, {})


def detached(module: Module) -> Module:
    """A copy of a module that computes with the same elements, and writes nothing of it."""
    return _replica(module, {id(tensor): tensor.detach().clone() for tensor in module._tensors()}, {})


def _replica(module: Module, tensors: dict[int, Tensor], made: dict[int, Module]) -> Module:
    """A copy of a module that shares everything but parameters and buffers."""
    found = made.get(id(module))
    if found is not None:
        return found
    found = made[id(module)] = object.__new__(type(module))
    own = dict(module.__dict__)
    for table in ("_parameters", "_buffers"):
        own[table] = {
            name: None if value is None else tensors[id(value)] for name, value in own[table].items()
        }
    own["_modules"] = {
        name: None if inner is None else _replica(inner, tensors, made)
        for name, inner in own["_modules"].items()
    }
    own["_compiled"] = None
    found.__dict__.update(own)
    return found


def device_named(device: Any) -> str:
    """The full name of a device that is given by its name, its number or what has a name."""
    name = f"vulkan:{device}" if isinstance(device, int) else str(getattr(device, "name", device))
    found = device_of(name)
    return "cpu" if found is None else found.info.name
