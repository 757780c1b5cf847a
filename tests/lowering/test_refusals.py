"""What no Vulkan kernel is made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  the registry
from vkml.ir import Constant, Node, TensorType, dtypes, find
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Sizes
from vkml.kernels.writer import NEEDS, STORAGE
from vkml.lowering.kept import forget_lowerings
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


def test_nodes_that_are_alike_are_asked_about_once_unless_constants_decide() -> None:
    target, floats = Target(frozenset(), max_groups=2**31), TensorType(dtypes.FLOAT32, (2, 3))
    seen: list[str] = []
    operator = find(Node("Softmax", (), ()))
    real = operator.lower

    def lower(build: Any, node: Node, inputs: Any) -> Any:
        seen.append(node.name)
        if node.name == "asks" and build.contents(inputs[0])[0, 0] > 1:
            raise CannotLower("too large a number")
        return real(build, node, inputs)

    def refused(name: str, array: np.ndarray[Any, Any] | None, **attributes: int) -> bool:
        node = Node("Softmax", ("x",), ("y",), {"axis": -1, "is_flattened": False, **attributes}, name)
        constants = {} if array is None else {"x": Constant(dtypes.FLOAT32, (2, 3), array)}
        return "y" in refusals([node], {"x": floats, "y": floats}, constants, target)

    ones = np.ones((2, 3), np.float32)
    forget_lowerings()
    operator.lower = lower  # type: ignore[method-assign]
    try:
        assert not refused("first", None) and not refused("second", None)
        assert seen == ["first"]
        assert not refused("asks", ones, axis=0)
        assert refused("asks", 2 * ones, axis=0)
        assert not refused("asks", ones, axis=0)
    finally:
        del operator.lower
        forget_lowerings()
