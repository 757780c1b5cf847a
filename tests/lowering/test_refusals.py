"""What no Vulkan kernel is made for."""

from __future__ import annotations

import vkml.ops  # noqa: F401  the registry
from vkml.ir import Node, TensorType, dtypes
from vkml.ir.size import Sizes
from vkml.lowering.target import Target
from vkml.lowering.vulkan import refusals


def test_kernels_of_open_sizes_do_not_hold_for_more_elements_than_they_count_to() -> None:
    """The inputs are within the limit, what they are broadcast to is not: it is planned anew."""
    sizes = Sizes()
    n, m = sizes.symbol("n", 3), sizes.symbol("m", 5)
    types = {
        name: TensorType(dtypes.FLOAT32, shape)
        for name, shape in {"x": (n, 1), "y": (1, m), "z": (n, m)}.items()
    }
    with sizes.deciding():
        assert not refusals(
            [Node("Add", ("x", "y"), ("z",))], types, {}, Target(frozenset(), max_groups=2**31)
        )
    assert sizes.holds({"n": 2**16 - 1, "m": 2**15})
    assert not sizes.holds({"n": 2**16, "m": 2**15})
