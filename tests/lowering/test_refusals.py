"""What no Vulkan kernel is made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  the registry
from tests.kernels.gpu_targets import like_h200
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


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one dimension": ((2, 3, 9), (4, 3, 3), {}),
    "two": ((1, 16, 12, 11), (32, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "three": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 1), {"strides": (1, 2, 1), "dilations": (2, 1, 1)}),
    "1x1": ((3, 64, 7, 7), (128, 64, 1, 1), {}),
    "groups": ((1, 12, 8, 8), (20, 3, 3, 3), {"group": 4}),
    "depthwise": ((2, 32, 9, 9), (32, 1, 3, 3), {"group": 32}),
    "more groups than a grid has": ((1, 140000, 2, 2), (140000, 2, 1, 1), {"group": 70000}),
    "many pixels": ((1, 1, 3000, 3000), (1, 1, 5, 5), {}),
    "no images": ((0, 3, 4, 4), (2, 3, 3, 3), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "computed"])
def test_convolutions_that_are_not_lowered_to_find_out_have_kernels(
    name: str, is_constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On devices that have nothing besides Vulkan 1.3, and on large ones."""
    image, weight, given = CONVOLUTIONS[name]
    spatial = len(weight) - 2
    attributes = {
        "auto_pad": "NOTSET", "dilations": (1,) * spatial, "group": 1, "kernel_shape": None,
        "pads": (0,) * 2 * spatial, "strides": (1,) * spatial, **given,
    }  # fmt: skip
    node = Node("Conv", ("x", "w"), ("y",), attributes, version=NEWEST)
    operator = find(node)
    types = {"x": TensorType(dtypes.FLOAT32, image), "w": TensorType(dtypes.FLOAT32, weight)}
    [made] = operator.infer(node, [types["x"], types["w"]])
    assert isinstance(made, TensorType)
    types["y"] = made
    array = np.broadcast_to(np.float32(1), weight)
    constants = {"w": Constant(dtypes.FLOAT32, weight, array)} if is_constant else {}
    for target in (Target(frozenset()), like_h200(True), like_h200(False)):
        forget_lowerings()
        with monkeypatch.context() as patched:
            patched.setattr(operator, "lower", None)
            assert not refusals([node], types, constants, target)
        with monkeypatch.context() as patched:
            patched.setattr(operator, "always_lowers", lambda inputs, outputs: False)
            assert not refusals([node], types, constants, target)
    forget_lowerings()


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
