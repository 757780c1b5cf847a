"""`IOBinding`: inputs and outputs of a session that stay where they are from run to run."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.array_likes import as_integer, as_sizes
from vkml.engine.device_array import DeviceArray, Place, Value, at_address, on_host
from vkml.engine.ort_value import OrtValue, OrtValueVector, device_of, dtype_of
from vkml.errors import InvalidArgument
from vkml.ir import DType

if TYPE_CHECKING:
    from vkml.engine.programs import Prepared
    from vkml.engine.session import InferenceSession
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]


class IOBinding:
    """Where a session finds its inputs and leaves its outputs; in the shape of onnxruntime's.

    A run with values on the session's device copies nothing. A bound array of the host is read at each run,
    a bound output written. An output for which only a device is named is a fresh value of each run.

    Args:
        session: it is for.

    Example:
        >>> import vkml, numpy as np
        >>> session = vkml.InferenceSession("digits.onnx", devices="cpu")
        >>> binding = session.io_binding()
        >>> binding.bind_cpu_input("image", np.zeros((1, 1, 8, 8), np.float32))
        >>> binding.bind_output(session.get_outputs()[0].name)
        >>> session.run_with_iobinding(binding)
        >>> binding.copy_outputs_to_cpu()[0].shape
        (1, 10)
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Array | Place | None] = {}
        """Of each bound output a value, the device for a fresh one, or None for a fresh array."""
        self.results: list[OrtValue] = []
        self.repeat: Prepared | None = None
        """Runs it once more as it was run last; returns None where that is not possible any more."""
        fed = [*session.get_inputs(), *session.get_overridable_initializers()]
        self._input_names = {value.name for value in fed}
        self._output_names = {value.name for value in session.get_outputs()}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Has runs read an array of the host.

        Args:
            name: of the input.
            arr_on_cpu: its value; read at each run.
        """
        self._bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Has runs read memory that somebody else owns and keeps.

        Args:
            name: of the input.
            device_type: where the memory is; see `OrtValue`.
            device_id: likewise.
            element_type: a NumPy type, or ONNX's number of one.
            shape: sizes of the value.
            buffer_ptr: its address: any on the CPU, on a device `OrtValue.data_ptr` of a value there.
        """
        self._bind_input(name, _memory(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Has runs read a value.

        Args:
            name: of the input.
            ortvalue: its value.
        """
        self._bind_input(name, _checked(ortvalue).value)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Has runs leave an output on a device, in memory of its own or in given memory.

        Args:
            name: of the output.
            device_type: where; see `OrtValue`.
            device_id: likewise.
            element_type: of the memory given.
            shape: likewise.
            buffer_ptr: its address, as for `bind_input`; None for memory of its own at each run.
        """
        if buffer_ptr is None:
            self._bind_output(name, device_of(device_type, device_id))
            return
        if element_type is None or shape is None:
            raise InvalidArgument(f"output '{name}': memory that is given has an element_type and a shape")
        self._bind_output(name, _memory(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Has runs write an output into a value.

        Args:
            name: of the output.
            ortvalue: of the output's type and shape; may be bound as an input, too, and is then overwritten.
        """
        self._bind_output(name, _checked(ortvalue).value)

    def synchronize_inputs(self) -> None:
        """Waits until inputs may be read: they may, for copies to devices return when they are done."""

    def synchronize_outputs(self) -> None:
        """Waits until outputs are there: they are when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self.results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """As `get_outputs`."""
        return OrtValueVector(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays that nobody else has; sequences as lists of them, or None."""
        return [_copied(value.value) for value in self.results]

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self.inputs.clear()
        self.repeat = None

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and those of the last run."""
        self.outputs.clear()
        self.results = []
        self.repeat = None

    def _bind_input(self, name: str, value: Any) -> None:
        if name not in self._input_names:
            raise InvalidArgument(
                f"the model has no input {name!r}; its inputs are {sorted(self._input_names)}"
            )
        self.inputs[name] = value
        self.repeat = None

    def _bind_output(self, name: str, place: Array | Place | None) -> None:
        if name not in self._output_names:
            raise InvalidArgument(
                f"the model has no output {name!r}; its outputs are {sorted(self._output_names)}"
            )
        memory = _start(place)
        if memory is not None and any(
            other != name and _start(bound) == memory for other, bound in self.outputs.items()
        ):
            raise InvalidArgument(f"output '{name}' is bound to memory that another output is bound to")
        self.outputs[name] = place
        self.repeat = None

    def places(self) -> dict[str, Place]:
        """Of outputs that are to be on devices, where."""
        return {
            name: place
            for name, place in self.outputs.items()
            if place is not None and not isinstance(place, np.ndarray)
        }

    def holds(self, feeds: Sequence[Value]) -> bool:
        """Whether these are the very values that are bound, and no arrays made of them for one run.

        Args:
            feeds: values of inputs.
        """
        bound = [id(value) for value in self.inputs.values()]
        return len(bound) == len(feeds) and all(id(value) in bound for value in feeds)

    def take(self, made: Sequence[Value]) -> None:
        """Keeps what a run has made of the bound outputs, in their order.

        Args:
            made: values of outputs.

        Raises:
            InvalidArgument: an array that is bound is not of its output's type and shape.
        """
        results = []
        for (name, place), value in zip(self.outputs.items(), made, strict=True):
            if isinstance(place, np.ndarray):
                array = on_host(value)
                if not isinstance(array, np.ndarray):
                    raise InvalidArgument(f"output '{name}' is no tensor; bind it to the CPU without memory")
                if (place.dtype, place.shape) != (array.dtype, array.shape):
                    raise InvalidArgument(
                        f"output '{name}' is {array.dtype}{list(array.shape)}, the array bound to it "
                        f"{place.dtype}{list(place.shape)}"
                    )
                np.copyto(place, array)
                value = place
            results.append(OrtValue(value))
        self.results = results


SessionIOBinding = IOBinding
"""onnxruntime's name of the same, one layer below."""


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return None if value is None else np.array(on_host(value))


def _start(place: Array | Place | None) -> tuple[Device | None, int] | None:
    """The device and the address of memory that is given for an output."""
    if isinstance(place, np.ndarray | DeviceArray) and place.nbytes:
        value = OrtValue(place)
        return (place.device if isinstance(place, DeviceArray) else None), value.data_ptr()
    return None


def _checked(value: Any) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise InvalidArgument(f"a vkml.OrtValue is bound here, not {type(value).__name__}")
    return value


def _memory(device_type: str, device_id: int, element_type: Any, shape: Sequence[int], address: int) -> Value:
    """Memory that the caller owns, as a value."""
    dtype: DType = dtype_of(element_type)
    sizes, address = as_sizes(shape, "a shape"), as_integer(address, "an address")
    device: Device | None = device_of(device_type, device_id)
    if device is None:
        if dtype.kind == "s":
            raise InvalidArgument("strings are bound as arrays, not by their address")
        count = int(np.prod(sizes, dtype=np.int64))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        array: Array = np.frombuffer(memoryview(memory), dtype.storage).reshape(sizes)
        return array
    found = at_address(device, address)
    if found is None or (found.dtype, found.shape) != (dtype, sizes):
        raise InvalidArgument(
            f"there is no value of {dtype.numpy_name}{list(sizes)} at 0x{address:x} on {device.info.name}: "
            "on a device, bind what OrtValue.data_ptr() says of a value that is alive"
        )
    return found
