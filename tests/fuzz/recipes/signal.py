"""Transforms of signals, windows, random numbers, determinants, bits."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.fuzz.graphs import GraphBuilder, Skip, codes_of
from tests.fuzz.recipes.registry import recipe
from tests.fuzz.tensors import BOOL, DOUBLE, FLOAT, FLOAT16, INT32, INT64, Fill


@recipe("DFT")
def dft(build: GraphBuilder, op: str) -> None:
    rank = build.integer(2, 4)
    parts = build.pick(1, 1, 2)
    shape = (*(build.integer(1, 9) for _ in range(rank - 1)), parts)
    data = build.new(build.code(codes_of(op, build.opset, 0)), shape, Fill("ordinary"))
    axis = build.integer(0, rank - 2)
    attributes = {"inverse": build.pick(None, 0, 1), "onesided": build.pick(None, 0, 1)}
    if attributes["onesided"] and not attributes["inverse"] and parts == 2:
        attributes["onesided"] = None  # the half of a complex transform says little
    if attributes["onesided"] and attributes["inverse"] and (parts == 1 or shape[axis] == 1):
        raise Skip("nothing to transform back")
    length = build.decided(np.array(build.integer(1, 10), np.int64)) if build.chance(0.4) else None
    if build.opset < 20:
        build.node(op, [data, length], {**attributes, "axis": axis})
        return
    stated = axis - rank if build.chance(0.4) else axis
    build.node(op, [data, length, build.decided(np.array(stated, np.int64))], attributes)


@recipe("STFT")
def stft(build: GraphBuilder, op: str) -> None:
    length, size = build.integer(2, 8), build.integer(8, 30)
    code = build.code(codes_of(op, build.opset, 0))
    data = build.new(code, (build.integer(1, 2), size, 1), Fill("ordinary"))
    step = build.decided(np.array(build.integer(1, 5), np.int64))
    window = build.new(code, (length,), Fill("ordinary")) if build.chance(0.6) else None
    stated = build.decided(np.array(length, np.int64)) if window is None or build.chance(0.5) else None
    build.node(op, [data, step, window, stated], {"onesided": build.pick(None, 0, 1)})


@recipe("HannWindow", "HammingWindow", "BlackmanWindow")
def window(build: GraphBuilder, op: str) -> None:
    size = build.decided(np.array(build.integer(2, 20), build.pick(np.int64, np.int32)))
    attributes = {"periodic": build.pick(None, 0, 1), "output_datatype": build.pick(None, FLOAT, DOUBLE)}
    build.node(op, [size], attributes)


@recipe("MelWeightMatrix")
def mel_weights(build: GraphBuilder, op: str) -> None:
    rate = build.pick(8000, 16000)
    numbers = [build.integer(1, 8), build.integer(8, 40), rate]
    edges = [build.pick(0.0, 100.0), rate / build.pick(2.0, 3.0)]
    inputs = [build.decided(np.array(number, np.int64)) for number in numbers]
    inputs += [build.decided(np.array(edge, np.float32)) for edge in edges]
    build.node(op, inputs, {"output_datatype": build.pick(None, FLOAT, DOUBLE)})


@recipe("RandomNormal", "RandomUniform")
def random_numbers(build: GraphBuilder, op: str) -> None:
    attributes = {"shape": list(build.shape(0, 3)), "seed": float(build.integer(0, 9))}
    build.node(op, [], {**attributes, "dtype": build.pick(None, FLOAT, DOUBLE, FLOAT16)})


@recipe("RandomNormalLike", "RandomUniformLike")
def random_numbers_like(build: GraphBuilder, op: str) -> None:
    like = build.take([FLOAT, DOUBLE, INT32], 0, 3)
    kind = FLOAT if like.code == INT32 else build.pick(None, FLOAT, FLOAT16)
    build.node(op, [like], {"seed": float(build.integer(0, 9)), "dtype": kind})


@recipe("Bernoulli")
def bernoulli(build: GraphBuilder, op: str) -> None:
    data = build.new(build.code([FLOAT, DOUBLE, FLOAT16]), build.shape(0, 3), Fill("unit"))
    build.node(op, [data], {"seed": float(build.integer(0, 9)), "dtype": build.pick(None, BOOL, INT64)})


@recipe("Multinomial")
def multinomial(build: GraphBuilder, op: str) -> None:
    shape = (build.integer(1, 3), build.integer(1, 5))
    data = build.new(build.code([FLOAT, DOUBLE, FLOAT16]), shape, Fill("ordinary"))
    attributes = {"seed": float(build.integer(0, 9)), "dtype": build.pick(None, INT32, INT64)}
    build.node(op, [data], {**attributes, "sample_size": build.pick(None, 4)})


@recipe("Det")
def determinant(build: GraphBuilder, op: str) -> None:
    size = build.integer(1, 4)
    shape = (*build.shape(0, 2), size, size)
    build.node(op, [build.new(build.code(codes_of(op, build.opset, 0)), shape, Fill("ordinary"))])


@recipe("BitCast")
def bit_cast(build: GraphBuilder, op: str) -> None:
    pairs = ((FLOAT, INT32), (INT32, FLOAT), (DOUBLE, INT64), (FLOAT16, TensorProto.INT16))
    source, target = build.pick(*pairs)
    build.node(op, [build.take([source], 0, 4)], {"to": int(target)})
