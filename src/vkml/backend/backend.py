"""ONNX's backend interface over sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.backend.backend_rep import VkmlBackendRep
from vkml.engine.environment import get_device
from vkml.engine.options import SessionOptions
from vkml.engine.session import InferenceSession
from vkml.errors import InvalidArgument, NoDevice
from vkml.ir import TensorType, dtypes
from vkml.ir.types import UNKNOWN
from vkml.onnx import messages
from vkml.onnx.messages import GraphProto, ModelProto, OperatorSetIdProto
from vkml.onnx.value_types import write_value
from vkml.onnx.wire import encode_message, read_message
from vkml.ops.upgrading import NEWEST

_IR_VERSION = 8
"""Of the models that nodes are put into."""

_OPTIONS = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
    "log_verbosity_level", "logid", "use_deterministic_compute", "use_per_session_threads",
)  # fmt: skip
"""Settings of sessions that may come this way: none that writes files."""


class VkmlBackend:
    """The functions that ``onnx.backend.base.Backend`` has; the package onnx is not needed for them."""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **options: Any) -> bool:
        """Whether there is such a device; what of a model cannot run, `prepare` says.

        Args:
            model: any.
            device: as for `prepare`.
            options: passed over.
        """
        return device is None or cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a device.

        Args:
            device: "CPU", "GPU", either with a number behind a colon; "CUDA" stands for "GPU".
        """
        kind = str(device).partition(":")[0].upper()
        return kind == "CPU" or (kind in ("GPU", "CUDA", "VULKAN") and get_device() == "GPU")

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **options: Any) -> VkmlBackendRep:
        """A model ready to run.

        Args:
            model: a path, bytes, a ``ModelProto``, a session, or what this has returned before.
            device: see `supports_device`; None for the best there is.
            options: settings of `SessionOptions`; others are passed over.

        Raises:
            NoDevice: there is no such device.
            InvalidArgument: the model is none of these, or a setting is not to be had this way.
        """
        if isinstance(model, VkmlBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return VkmlBackendRep(model)
        if hasattr(model, "SerializeToString"):
            model = model.SerializeToString()
        if not isinstance(model, str | os.PathLike | bytes):
            raise InvalidArgument(
                f"a model is a path, bytes, a ModelProto or a session, not {type(model).__name__}"
            )
        if device is not None and not cls.supports_device(device):
            raise NoDevice(f"there is no device {device!r}; the best of this machine is {get_device()}")
        settings = SessionOptions()
        for name, value in options.items():
            if name in _OPTIONS:
                setattr(settings, name, value)
            elif hasattr(settings, name):
                raise InvalidArgument(f"the setting {name!r} is not to be had by the backend's functions")
        return VkmlBackendRep(InferenceSession(model, settings, devices=_name(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **options: Any) -> list[Any]:
        """The outputs of a model.

        Args:
            model: as for `prepare`.
            inputs: as for `VkmlBackendRep.run`.
            device: as for `prepare`.
            options: as for `prepare`.

        Returns:
            An array for each output.
        """
        return cls.prepare(model, device, **options).run(inputs, **options)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Sequence[Any],
        device: str | None = None,
        outputs_info: Sequence[Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        """The outputs of one node.

        Args:
            node: a ``NodeProto``.
            inputs: arrays in the order of its inputs.
            device: as for `prepare`.
            outputs_info: element type and shape of each output, of which only how many there are counts.
            options: as for `prepare`, and ``opset_version``: which opset's the node is, or ``opset_imports``.
        """
        arrays = [np.asarray(each) for each in inputs]
        written = memoryview(node.SerializeToString())
        proto = read_message(messages.TABLES["NodeProto"], written, 0, len(written))
        names = [name for name in proto.input if name]
        if len(names) != len(arrays):
            raise InvalidArgument(f"the node has {len(names)} inputs ({names}), got {len(arrays)}")
        types = [TensorType(dtypes.from_numpy(array.dtype), array.shape) for array in arrays]
        imports = options.pop("opset_imports", None) or [
            OperatorSetIdProto(node.domain, options.pop("opset_version", NEWEST if not node.domain else 1))
        ]
        graph = GraphProto(
            node=(proto,),
            name="node",
            input=tuple(write_value(name, type_) for name, type_ in zip(names, types, strict=True)),
            output=tuple(write_value(name, UNKNOWN) for name in proto.output if name),
        )
        opsets = tuple(OperatorSetIdProto(each.domain, each.version) for each in imports)
        model = ModelProto(ir_version=_IR_VERSION, opset_import=opsets, graph=graph)
        pieces, _ = encode_message(messages.MODEL, model)
        return cls.run_model(b"".join(pieces), arrays, device, **options)


def _name(device: str | None) -> str:
    """The device of vkml that a device of a backend is."""
    if device is None:
        return "auto"
    kind, _, number = device.partition(":")
    if kind.upper() == "CPU":
        return "cpu"
    return f"vulkan:{number}" if number and number != "0" else "auto"


is_compatible = VkmlBackend.is_compatible
prepare = VkmlBackend.prepare
run = VkmlBackend.run_model
run_model = VkmlBackend.run_model
run_node = VkmlBackend.run_node
supports_device = VkmlBackend.supports_device
