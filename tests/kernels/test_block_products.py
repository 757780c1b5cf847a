"""Products with weights of few bits by the launches that GPUs get; software devices read single words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkml
from tests.kernels.gpu_targets import GPU
from tests.kernels.test_gemv import processors
from tests.kernels.test_tiles import lavapipe
from tests.quantized.few_bits import FewBits, Model, packed, random_weights
from vkml import vulkan
from vkml.engine.devices import target_of
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.packing import unpacked
from vkml.kernels import block_product, half_weights, matrix_tiles, matrix_units
from vkml.kernels.packed_codes import why_no_codes
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder

__all__ = ["lavapipe", "processors"]


@pytest.mark.parametrize(
    ("inner", "bits", "block", "columns"),
    [(256, 4, 32, 2100), (210, 4, 16, 1100), (35, 8, 16, 70), (70, 2, 32, 600)],
)
def test_threads_share_columns(
    lavapipe: str, processors: int, inner: int, bits: int, block: int, columns: int
) -> None:
    weights = random_weights(inner, columns, bits=bits, block=block, has_zeros=True)
    for rows in (1, 6):
        model = Model(inner, rows=rows)
        with vkml.InferenceSession(model.bytes(model.product("x", weights)), devices=lavapipe) as session:
            x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, x @ weights.matrix, atol=2e-5)
            [step] = session.report().steps
        assert (step.kernel, step.operators) == ("block_product", ("MatMulNBits",))
        if processors == 8 and columns > 2000 and rows == 1:
            assert "4 columns a thread" in step.variant


@pytest.fixture
def units(lavapipe: str) -> Iterator[Target]:
    """A device with matrix units."""
    yield target_of(vulkan.find_device(lavapipe, True), "high")
    matrix_units.forced = half_weights.forced = None
    forget_lowerings()


def run(weights: FewBits, x: np.ndarray, device: str) -> tuple[np.ndarray, list[str]]:
    """The product with rows at precision high, and the kernels that made it."""
    model = Model(x.shape[1], x.dtype, rows=len(x))
    data = model.bytes(model.product("x", weights))
    with vkml.InferenceSession(data, devices=device, precision="high") as session:
        [found] = session.run(None, {"x": x})
        return found, [step.kernel for step in session.report().steps]


@pytest.mark.parametrize("has_codes", [False, True], ids=["halves", "codes"])
@pytest.mark.parametrize(("splits", "has_pass"), [(1, True), (2, False)])
def test_fragments_of_few_bits(
    lavapipe: str,
    units: Target,
    monkeypatch: pytest.MonkeyPatch,
    splits: int,
    has_pass: bool,
    has_codes: bool,
) -> None:
    """As exact as TF32, whatever numbers come to; rows of very different magnitudes too."""
    monkeypatch.setattr(block_product, "MOST_CODED", 128 if has_codes else 0)
    fragment = units.fragment
    assert fragment is not None
    tile = matrix_tiles.Tile(2 * fragment.m, 2 * fragment.n, 2, 1, 32, 1, 1.0, 1.0)
    matrix_units.forced = matrix_tiles.Choice(tile, splits, has_pass)
    for inner, bits, block, columns, has_zeros in (
        (256, 4, 32, 70, False),
        (210, 4, 16, 33, True),
        (70, 2, 32, 40, True),
        (35, 8, 16, 24, False),
        (96, 8, 32, 40, True),
        (64, 2, 64, 33, False),
        (160, 4, 16, 90, True),
    ):
        forget_lowerings()
        weights = random_weights(inner, columns, bits=bits, block=block, has_zeros=has_zeros)
        # The exponents of the columns' powers of two are not all alike.
        powers = np.exp2(np.arange(columns) % 7).astype(np.float32)
        weights = replace(weights, scales=weights.scales * powers[:, None])
        random = np.random.default_rng(bits)
        x = random.standard_normal((37, inner)).astype(np.float32)
        x *= 10.0 ** random.integers(-20, 12, (37, 1)).astype(np.float32)
        found, kernels = run(weights, x, lavapipe)
        expected = x.astype(np.float64) @ weights.matrix
        # Two operands, each rounded by 2^-12 to 2^-11.
        bound = np.abs(x).astype(np.float64) @ np.abs(weights.matrix) * 2.0**-10
        assert (np.abs(found - expected) <= bound).all()
        assert np.linalg.norm(found[:1] - expected[:1]) < 1e-3 * np.linalg.norm(expected[:1])
        is_unpacked = not has_codes or inner % tile.step_k != 0 or bool(why_no_codes(units, bits, block))
        assert ("unpack_fragments" in kernels) == is_unpacked and ("split_rows" in kernels) == has_pass
    x[5, 3], x[6, 0] = np.inf, np.nan
    found, _ = run(weights, x, lavapipe)
    with np.errstate(invalid="ignore"):
        special = x @ weights.matrix.astype(np.float32)
    assert np.isnan(found[6]).all()
    # Infinities by the sign of the number, NaN where it is 0.
    np.testing.assert_array_equal(found[5], special[5])


@pytest.mark.parametrize("splits", [1, 2])
def test_codes_by_rows_of_halves(lavapipe: str, units: Target, splits: int) -> None:
    """Numbers are rounded to float16, products are exact and sums those of float32."""
    fragment = units.fragment
    assert fragment is not None
    half_weights.forced = (
        matrix_tiles.Tile(2 * fragment.m, 2 * fragment.n, 2, 1, 32, 1, 1.0, 1.0),
        splits,
    )
    for inner, bits, block, columns, has_zeros in (
        (256, 4, 32, 70, False),
        (96, 8, 32, 40, True),
        (160, 4, 16, 90, True),
        (192, 4, 64, 33, False),
    ):
        forget_lowerings()
        weights = random_weights(
            inner, columns, bits=bits, block=block, has_zeros=has_zeros, dtype=np.float16
        )
        x = np.random.default_rng(bits).standard_normal((37, inner)).astype(np.float16)
        found, kernels = run(weights, x, lavapipe)
        assert kernels[0] == "matmul"
        rounded = weights.matrix.astype(np.float16).astype(np.float64)
        expected = x.astype(np.float64) @ rounded
        np.testing.assert_allclose(found, expected, rtol=2**-10, atol=2**-12)
    x[5, 3], x[6, 0] = np.inf, np.nan
    found, _ = run(weights, x, lavapipe)
    with np.errstate(invalid="ignore"):
        special = x.astype(np.float32) @ rounded.astype(np.float32)
    assert np.isnan(found[6]).all()
    np.testing.assert_array_equal(found[5], special[5].astype(np.float16))


SHARED = {
    "zero points, of more blocks": ("zeros", (96, 40), (128, 40)),
    "zero points, of more columns": ("zeros", (128, 40), (64, 80)),
    "scales, of more columns": ("scales", (128, 40), (64, 80)),
    "codes, of more columns": ("codes", (128, 40), (64, 80)),
}


@pytest.mark.parametrize("has_codes", [False, True], ids=["a row", "codes"])
@pytest.mark.parametrize("name", SHARED)
def test_nodes_that_see_one_constant_in_several_shapes(
    lavapipe: str, units: Target, name: str, has_codes: bool
) -> None:
    """Operands of MatMulNBits may come in one dimension each, so nodes of other sizes may share them."""
    what, *shapes = SHARED[name]
    rows, fragment = 16 if has_codes else 1, units.fragment
    assert fragment is not None
    if has_codes:
        tile = matrix_tiles.Tile(2 * fragment.m, 2 * fragment.n, 2, 1, 32, 1, 1.0, 1.0)
        matrix_units.forced = matrix_tiles.Choice(tile, 1)
    forget_lowerings()
    models, expected, feed = [], [], {}
    first = random_weights(*shapes[0], has_zeros=True)
    for number, (inner, columns) in enumerate(shapes):
        weights = random_weights(inner, columns, has_zeros=True, seed=number)
        blocks = inner // weights.block
        if what == "zeros":
            seen = unpacked(packed(first.zeros, 4).reshape(columns, -1), 4, blocks)
            weights = replace(weights, zeros=seen.astype(np.int64))
        elif what == "scales":
            weights = replace(weights, scales=first.scales.reshape(columns, blocks))
        else:
            weights = replace(weights, codes=first.codes.reshape(columns, inner))
        x = np.random.default_rng(number).standard_normal((rows, inner)).astype(np.float32)
        feed[f"x{number}"] = x
        models.append(weights)
        expected.append(x.astype(np.float64) @ weights.matrix)
    with vkml.InferenceSession(of_shared(models, what, rows), devices=lavapipe, precision="high") as session:
        found = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    assert kernels.count("matmul" if has_codes else "block_product") == 2
    for y, exact in zip(found, expected, strict=True):
        assert np.linalg.norm(y - exact) < 1e-3 * np.linalg.norm(exact)


def of_shared(models: list[FewBits], what: str, rows: int) -> bytes:
    """A MatMulNBits for each, which have one of their operands in common."""
    arrays: list[np.ndarray] = []
    nodes, given, made = [], [], []
    for number, weights in enumerate(models):
        columns, inner = weights.codes.shape
        operands = {
            "codes": packed(weights.codes.reshape(columns, -1, weights.block), 4),
            "scales": weights.scales.reshape(-1),
            "zeros": packed(weights.zeros, 4).reshape(-1),
        }
        names = [f"x{number}"]
        for name, array in operands.items():
            if name == what and number:
                same = next(at for at, one in enumerate(arrays) if one.tobytes() == array.tobytes())
                names.append(f"w{same}")
                continue
            names.append(f"w{len(arrays)}")
            arrays.append(array.reshape(-1))
        sizes = {"K": inner, "N": columns, "bits": 4, "block_size": weights.block}
        nodes.append(helper.make_node("MatMulNBits", names, [f"y{number}"], domain="com.microsoft", **sizes))
        given.append(helper.make_tensor_value_info(f"x{number}", onnx.TensorProto.FLOAT, [rows, inner]))
        made.append(helper.make_tensor_value_info(f"y{number}", onnx.TensorProto.FLOAT, None))
    held = [numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(arrays)]
    graph = helper.make_graph(nodes, "shared", given, made, held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_find_room_on_small_devices(bits: int) -> None:
    """In what devices have at the least; what the kernel takes is counted as it is there."""
    small = replace(GPU, shared_bytes=16384, max_invocations=128, fragment=None)
    weights = random_weights(512, 64, bits=bits, block=64)
    for rows in (1, 3, 8):
        [launch] = launches_of(small, weights, rows)
        named = dict(re.findall(r"static const int (\w+) = (\d+);", launch.kernel.source))
        m, lanes, columns, own, words = (
            int(named[name]) for name in ("M", "LANES", "COLUMNS", "OWN", "WORDS")
        )
        fours = words * 32 // bits // 4 | 1
        assert m == rows and 16 * m * lanes * fours <= small.shared_bytes
        assert 4 * lanes * columns * own * m <= small.shared_bytes


def kernels_of(target: Target, weights: FewBits, rows: int = 128) -> list[str]:
    """The labels of the launches of a product with weights without zero points."""
    return [launch.kernel.label for launch in launches_of(target, weights, rows)]


def launches_of(target: Target, weights: FewBits, rows: int) -> list[Dispatch]:
    columns, inner = weights.codes.shape
    build = VulkanBuilder(target)
    type_ = TensorType(dtypes.FLOAT32, (rows, inner))
    a = contiguous(Buffer(BufferKind.INPUT, type_.bytes, "x"), type_)

    def constant(array: np.ndarray, name: str) -> View:
        return build.constant(Constant(dtypes.from_numpy(array.dtype), array.shape, array), name)

    codes = constant(packed(weights.codes, weights.bits), "codes")
    scales = constant(weights.scales, "scales")
    with build.step(TensorType(dtypes.FLOAT32, (rows, columns))):
        build.block_matmul(a, codes, scales, None, weights.bits, weights.block, rounds=False)
    return build.launches


def test_which_weights_become_fragments() -> None:
    """Those of whose bounds one scale a column suits; at precision high."""
    weights = random_weights(2048, 2048)
    assert kernels_of(GPU, weights, rows=2048)[0] == "unpack_fragments"
    assert kernels_of(GPU, weights) == ["split_rows", "matmul"]
    unknown = replace(GPU, fragment_layouts=lambda fragment: None)
    assert kernels_of(unknown, weights)[0] == "unpack_fragments"
    assert kernels_of(GPU, weights, rows=4) == ["block_product"]
    assert kernels_of(replace(GPU, strict_fp32=True), weights, rows=8) == ["block_product"]
    assert kernels_of(unknown, weights, rows=8) == ["block_product"]
    assert kernels_of(replace(GPU, strict_fp32=True), weights)[0] == "unpack_blocks"
    # A step of k that is multiplied by zeros alone; a scale of 0; one that is no number; too different ones.
    codes = weights.codes.copy()
    codes[:, 100] = 8
    assert kernels_of(GPU, replace(weights, codes=codes))[0] == "unpack_blocks"
    for scale in (0, np.nan, np.inf, 1e-11):
        scales = weights.scales.copy()
        scales[7, 2] = scale
        assert kernels_of(GPU, replace(weights, scales=scales))[0] == "unpack_blocks", scale
