"""What no Vulkan kernel is made for."""

from __future__ import annotations

import pytest

import vkml.ops  # noqa: F401  the registry
from vkml.ir import Node, TensorType, dtypes
from vkml.ir.size import Sizes
from vkml.kernels.writer import NEEDS, STORAGE
from vkml.lowering.target import Target
from vkml.lowering.vulkan import refusals
from vkml.ops.upgrading import NEWEST


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


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_values_that_no_kernel_stores_are_refused_by_name(dtype: dtypes.DType) -> None:
    """DepthToSpace makes no view of what it reads; complex numbers are NumPy's own, and no kernel's."""
    types = {"x": TensorType(dtype, (1, 12, 2, 2)), "y": TensorType(dtype, (1, 3, 4, 4))}
    node = Node("DepthToSpace", ("x",), ("y",), {"blocksize": 2, "mode": "DCR"}, version=NEWEST)
    target = Target(frozenset(need for needs in NEEDS.values() for need in needs))
    found = refusals([node], types, {}, target)
    if dtype in STORAGE:
        assert not found
    else:
        assert found == {"y": f"no Vulkan kernel handles {dtype.name}"}
