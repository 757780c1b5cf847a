"""Capabilities that certain drivers state wrongly: a table, by driver, of what is turned off and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vkml.dataclasses import dataclass
from vkml.vulkan.info import DeviceInfo
from vkml.vulkan.structures import constants


@dataclass(frozen=True)
class Quirk:
    """One known fault of a driver."""

    driver_id: int
    capability: str
    reason: str
    applies: Callable[[DeviceInfo], bool] = lambda info: True
    """Narrows it, for example to driver versions."""


def _has_narrow_lavapipe_vectors(info: DeviceInfo) -> bool:
    # lavapipe compiles cooperative matrices for vectors of eight floats only; others crash.
    return info.limits.subgroup_size != 8


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        constants.VK_DRIVER_ID_MESA_LLVMPIPE,
        "has_cooperative_matrix",
        "lavapipe's cooperative matrices crash unless LP_NATIVE_VECTOR_WIDTH=256",
        _has_narrow_lavapipe_vectors,
    ),
)


def apply_quirks(info: DeviceInfo, quirks: tuple[Quirk, ...] = QUIRKS) -> DeviceInfo:
    """The description with the capabilities turned off that the table names for its driver."""
    capabilities = info.capabilities
    reasons = []
    for quirk in quirks:
        if quirk.driver_id != info.driver_id or not getattr(capabilities, quirk.capability):
            continue
        if quirk.applies(info):
            off: Any = () if isinstance(getattr(capabilities, quirk.capability), tuple) else False
            changes: dict[str, Any] = {quirk.capability: off}
            capabilities = replace(capabilities, **changes)
            reasons.append(f"{quirk.capability}: {quirk.reason}")
    if not capabilities.has_cooperative_matrix:
        capabilities = replace(
            capabilities,
            cooperative_matrix=(),
            cooperative_matrix2=(),
            flexible_matrix=(),
            bfloat16_cooperative_matrix=False,
            float8_cooperative_matrix=False,
        )
    return replace(info, capabilities=capabilities, quirks=tuple(reasons))
