"""The fragments that a device's matrix units multiply."""

from __future__ import annotations

from dataclasses import dataclass

from vkml.vulkan import DeviceInfo


@dataclass(frozen=True)
class Fragment:
    """The product of one instruction (m × n × k) and the subgroup that computes it."""

    m: int
    n: int
    k: int
    lanes: int


def fragments_of(info: DeviceInfo) -> list[Fragment]:
    """The device's fp16 × fp16 → fp32 fragments, the best first: most k, then the smallest."""
    lanes = info.limits.subgroup_size
    wanted = ("float16", "float16", "float32", "float32", "subgroup")
    found = [
        Fragment(each.m, each.n, each.k, lanes)
        for each in info.capabilities.cooperative_matrix
        if (each.a, each.b, each.c, each.result, each.scope) == wanted
    ]
    return sorted(found, key=lambda each: (-each.k, each.m * each.n))
