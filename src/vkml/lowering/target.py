"""What lowering needs to know of a Vulkan device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from vkml.dataclasses import dataclass
from vkml.kernels.candidates import Picks
from vkml.kernels.fragment_layout import FragmentLayouts
from vkml.kernels.packed_weights import Fragment

BYTE_NEEDS = frozenset(("int8", "storage_8bit", "integer_dot"))
"""Capabilities of a device whose products of quantised numbers are such."""


@dataclass(frozen=True)
class Target:
    """What lowering needs to know of a device."""

    capabilities: frozenset[str]
    push_bytes: int = 128
    shared_bytes: int = 16384
    max_invocations: int = 256
    subgroup_size: int = 4
    max_groups: int = 65535
    processors: int = 1
    """Workgroups of 256 threads that run at once, roughly: what split-K aims to fill."""
    strict_fp32: bool = True
    """Whether products of float32 keep all of its bits: precision "highest"."""
    fragment: Fragment | None = None
    """What the device's matrix units multiply in one instruction: fp16, added up in fp32."""
    wide_fragment: Fragment | None = None
    """One of as much k and 16 columns, where the device has it beside `fragment`."""
    bfloat16_fragment: Fragment | None = None
    """Of bfloat16: what products of float32 are made of whose operands are split into pieces."""
    byte_fragment: Fragment | None = None
    """Of int8 and int32 sums: what products of 8-bit integers are made of."""
    picks: Picks | None = None
    """What measurement has found about launches; None: rules decide."""
    fragment_layouts: Callable[[Fragment], FragmentLayouts | None] = field(
        default=lambda fragment: None, compare=False
    )
    """Which elements of a fragment each lane holds, where that is a formula; asks the device."""
    holds_elements_once: Callable[[Fragment], bool] = field(default=lambda fragment: True, compare=False)
    """Whether a subgroup's lanes share a fragment's elements, as packed weights want it; asks the device."""

    @property
    def multiplies_bytes(self) -> bool:
        """Whether it multiplies 8-bit integers as such."""
        return self.capabilities >= BYTE_NEEDS

    @property
    def policy(self) -> str:
        """The precision that it is for."""
        return "highest" if self.strict_fp32 else "high"

    @property
    def has_units(self) -> bool:
        """Whether there are matrix units, and precision allows them."""
        return self.fragment is not None and not self.strict_fp32
