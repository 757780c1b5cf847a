"""`DataParallel`: a module that computes each batch on several devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkml.engine.devices import devices
from vkml.errors import InvalidArgument
from vkml.nn.module import Module
from vkml.nn.parallel.lockstep import together
from vkml.nn.parallel.replicas import Replicas, detached, device_named
from vkml.nn.parallel.scatter_gather import gather, scatter, sent
from vkml.nn.parallel.speeds import measured_shares, tensors_in
from vkml.nn.parallel.sync_batch_norm import SyncBatchNorm
from vkml.nn.states import Incompatible
from vkml.tensors.capture import captures, is_capturing
from vkml.tensors.generator import drawing_from

_PREFIX = "module."


class WrongDevice(InvalidArgument, RuntimeError):
    """A module is not on the first of the devices that it is to compute on."""


class DataParallel(Module):
    """Computes a module on several devices at a time: each takes a share of the samples.

    The module's parameters are on the first device, and an optimizer takes them as ever. The other devices
    have replicas whose parameters stay there: gradients by them are sent to the first device, in buckets that
    travel while the rest of the backward pass runs, added up in the order of the devices, and what an
    optimizer has made of them is sent back. All devices therefore have the same parameters, bit for bit,
    whatever they are: GPUs of several vendors, the CPU. Losses of the gathered results are those of one
    device with the same batch. Within `vkml.jit` a whole training step over all devices is one plan.

    Each replica of a BatchNorm normalises by its own share of the batch, of a `SyncBatchNorm` by the whole
    batch, and the first device's running statistics are kept; each replica draws random numbers of its own.

    Args:
        module: on the first of the devices.
        device_ids: names or numbers of devices, "cpu" among them; all GPUs where left out.
        output_device: where results are brought together; the first device where left out.
        dim: the axis of samples.
        shares: what part of the samples each device takes, in any unit: their speeds, say; equal ones where
            left out. "measured": by forward passes of each with the first batch that is no capture's, so that
            all are done at the same time; what is rounded then differs from run to run.
        bucket_cap_mb: gradients are sent when so many MiB of them are there.

    Shape:
        Inputs and outputs as the module's; a module that returns a single number has a vector of one number a
        device that had samples.

    Raises:
        ValueError: a device is not there, or is named twice; shares are negative, or not one for each device.
        RuntimeError: parameters or buffers are on another device than the first.

    Example:
        >>> import vkml
        >>> model = vkml.nn.DataParallel(vkml.nn.Linear(4, 2), device_ids=["cpu"])
        >>> model(vkml.ones(3, 4)).shape
        vkml.Size([3, 2])
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        *,
        shares: Sequence[float] | str | None = None,
        bucket_cap_mb: float = 25,
    ) -> None:
        super().__init__()
        named = _all_gpus() if device_ids is None else [device_named(device) for device in device_ids]
        if not named or len(set(named)) < len(named):
            raise InvalidArgument(f"device_ids are {named}: they name one device or more, each once")
        self.module = module
        self.device_ids = named
        self.output_device = named[0] if output_device is None else device_named(output_device)
        self.dim = dim
        self._is_measured = shares != "measured"
        """Whether shares are those that are to be."""
        self.shares = _checked_shares(None if shares == "measured" else shares, len(named))
        self._is_sent = True
        self._check_place()
        bucket_bytes = max(1, int(bucket_cap_mb * (1 << 20)))
        self._replicas = [Replicas(module, device, bucket_bytes) for device in named[1:]]

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if len(self.device_ids) == 1:
            [(given, named)] = scatter((inputs, kwargs), self.device_ids, self.dim)
            return _on(self.output_device, self.module(*given, **named))
        self._check_place()
        self._follow()
        if not self._is_measured and not is_capturing():
            self._measure((inputs, kwargs))
        parts = scatter((inputs, kwargs), self.device_ids, self.dim, self.shares)
        runs = []
        for at, part in enumerate(parts):
            if part is not None:
                module = self._replicas[at - 1].made(self._is_sent) if at else self.module
                runs.append(functools.partial(_replica_run, at, module, part))
        if any(isinstance(each, SyncBatchNorm) for each in self.module.modules()):
            outputs = together(runs)
        else:
            outputs = [run() for run in runs]
        return gather(outputs, self.output_device, self.dim)

    def _measure(self, inputs: Any) -> None:
        """Has shares be the devices' speeds, where each of them has a sample."""
        parts = scatter(inputs, self.device_ids, self.dim)
        if len(parts) < len(self.device_ids) or None in parts:
            return
        samples = [tensors_in(part)[0].shape[self.dim] for part in parts]
        modules = [
            functools.partial(detached, self.module),
            *(functools.partial(replicas.made, is_sent=True) for replicas in self._replicas),
        ]
        self.shares = measured_shares(modules, parts, self.device_ids, samples)
        self._is_measured = True

    def _follow(self) -> None:
        """Has the replicas be like the module: now, and in each run of what is captured."""
        for replicas in self._replicas:
            replicas.update()
        latest = captures.latest
        if latest is not None and id(self) not in latest.endings:
            latest.endings[id(self)] = self._end_capture
            latest.restored.append(self._note)
            latest.guards.append(self._is_followed)

    def _end_capture(self) -> None:
        for replicas in self._replicas:
            replicas.follow()

    def _note(self) -> None:
        for replicas in self._replicas:
            replicas.note()

    def _is_followed(self) -> bool:
        """Before each run of a capture: has the replicas be what they are taken for."""
        for replicas in self._replicas:
            replicas.update()
        return True

    def _check_place(self) -> None:
        first = self.device_ids[0]
        for tensor in self.module._tensors():
            if tensor.device != first:
                raise WrongDevice(
                    f"module must have its parameters and buffers on device {first} (device_ids[0]) but "
                    f"found one of them on device: {tensor.device}"
                )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients of what is computed stay where they are, to be sent with later ones.

        As DistributedDataParallel's: of several batches whose gradients are added up, all but the last are
        computed and differentiated within it.
        """
        before, self._is_sent = self._is_sent, False
        try:
            yield
        finally:
            self._is_sent = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, those that have not been sent among them.

        Args:
            set_to_none: whether they are None afterwards; else zeros.
        """
        for replicas in self._replicas:
            for mirror in replicas.mirrors():
                mirror.local = None
        super().zero_grad(set_to_none)

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """The module's, under the names that it has there: what is saved loads with and without devices.

        Arguments as for `Module.state_dict`.
        """
        return self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Incompatible:
        """As the module's; names may begin with "module.", as those of torch's DataParallel do.

        Arguments as for `Module.load_state_dict`.
        """
        if state_dict and all(name.startswith(_PREFIX) for name in state_dict):
            state_dict = {name.removeprefix(_PREFIX): value for name, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, strict, assign)

    def extra_repr(self) -> str:
        return f"device_ids={self.device_ids}, output_device={self.output_device!r}"


def _replica_run(number: int, module: Module, part: tuple[Any, Any]) -> Any:
    """What a replica makes of its part of a batch."""
    given, named = part
    with drawing_from(number):
        return module(*given, **named)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Computes a module on several devices once; `DataParallel` keeps its replicas from call to call.

    Args:
        module: on the first of the devices.
        inputs: of it, in a tuple where there are several.
        device_ids: see `DataParallel`.
        output_device: likewise.
        dim: likewise.
        module_kwargs: its named arguments.
    """
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*given, **(module_kwargs or {}))


def _on(device: str, outputs: Any) -> Any:
    return gather([outputs], device) if not _is_number(outputs) else sent(outputs, device)


def _is_number(outputs: Any) -> bool:
    return getattr(outputs, "ndim", None) == 0


def _all_gpus() -> list[str]:
    found = [device.name for device in devices() if device.name != "cpu"]
    return found or ["cpu"]


def _checked_shares(shares: Sequence[float] | str | None, count: int) -> list[float]:
    if isinstance(shares, str):
        raise InvalidArgument(f"shares are numbers or 'measured', not {shares!r}")
    found = [1.0] * count if shares is None else [float(share) for share in shares]
    total = sum(found)
    if len(found) != count or min(found) < 0 or not 0 < total < float("inf"):
        raise InvalidArgument(f"shares are {found}: {count} devices have one each, none of them negative")
    return [share / total for share in found]
