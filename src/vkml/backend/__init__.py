"""ONNX's backend interface: models and nodes run through the functions that all backends have.

Example:
    >>> import vkml.backend
    >>> vkml.backend.supports_device("CPU")
    True
"""

from vkml.backend.backend import (
    VkmlBackend,
    is_compatible,
    prepare,
    run,
    run_model,
    run_node,
    supports_device,
)
from vkml.backend.backend_rep import VkmlBackendRep

__all__ = [
    "VkmlBackend", "VkmlBackendRep", "is_compatible", "prepare", "run", "run_model", "run_node",
    "supports_device",
]  # fmt: skip
