"""Writes graphs of convolutional networks in ncnn's own file format.

ncnn's converter (pnnx) starts from PyTorch, so models are translated here, with the fusions that converter
does: batch normalisation and activations into convolutions, x·sigmoid(x) into Swish. Operators outside that
family are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.measure import NotAvailable
from vkml.ir.graph import Graph, Node

Array = np.ndarray[Any, Any]
Scalar = int | float | tuple[float, ...]

MAGIC = 7767517
"""First line of every .param file."""

BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3}
RELU, CLIP = 1, 3
"""Values of a convolution's activation type."""


def translate(graph: Graph) -> tuple[str, bytes]:
    """The .param file's text and the .bin file's bytes; `NotAvailable` names what has no translation."""
    return _Writer(graph).write()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arrays: Mapping[str, Array] = {name: each.array for name, each in graph.constants.items()}
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.users.setdefault(name, []).append(node)
        self.done: set[int] = set()
        """Nodes that an earlier layer has taken in."""
        self.layers: list[tuple[str, list[str], str, dict[int, Scalar]]] = []
        self.alias: dict[str, str] = {}
        self.weights: list[bytes] = []

    def write(self) -> tuple[str, bytes]:
        for value in self.graph.inputs:
            shape = value.tensor.dims
            if len(shape) > 1 and shape[0] != 1:
                raise NotAvailable("ncnn has no batches")
            self.layer("Input", [], value.name)
        for node in self.graph.nodes:
            if id(node) not in self.done:
                self.translate(node)
        return self.text(), b"".join(self.weights)

    def layer(
        self, kind: str, inputs: list[str], output: str, parameters: dict[int, Scalar] | None = None
    ) -> None:
        self.layers.append((kind, [self.alias.get(name, name) for name in inputs], output, parameters or {}))

    def translate(self, node: Node) -> None:
        x, attributes = node.inputs[0], node.attributes
        output = node.outputs[0]
        constants = [self.arrays.get(name) for name in node.inputs]
        if node.op == "Conv":
            self.convolution(node)
        elif node.op in ("Gemm", "MatMul") and constants[1] is not None:
            self.linear(node)
        elif node.op in BINARY:
            self.binary(node)
        elif node.op == "MaxPool":
            pads = attributes.get("pads", (0, 0, 0, 0))
            kernel, stride = attributes["kernel_shape"], attributes.get("strides", (1, 1))
            # Padding mode 1: output sizes are rounded down, as ONNX does.
            self.layer("Pooling", [x], output, {0: 0, 1: kernel[0], 2: stride[0], 3: pads[0], 5: 1})
        elif node.op == "GlobalAveragePool":
            self.layer("Pooling", [x], output, {0: 1, 4: 1})
        elif node.op == "Sigmoid":
            product = self.only_user(node)
            users = self.users.get(x, [])
            partner = next((each for each in users if each.op == "Mul" and output in each.inputs), None)
            if product is not None and product is partner and set(product.inputs) == {x, output}:
                self.done.add(id(product))
                self.layer("Swish", [x], product.outputs[0])
            else:
                self.layer("Sigmoid", [x], output)
        elif node.op == "Relu":
            self.layer("ReLU", [x], output)
        elif node.op == "Clip":
            low, high = float(constants[1]), float(constants[2])  # type: ignore[arg-type]
            self.layer("Clip", [x], output, {0: low, 1: high})
        elif node.op == "Softmax":
            self.layer("Softmax", [x], output, {0: 0, 1: 1})
        elif node.op == "Concat":
            self.layer("Concat", list(node.inputs), output, {0: attributes["axis"] - 1})
        elif node.op == "Flatten" or (
            node.op == "Reshape" and constants[1] is not None and constants[1].size == 2
        ):
            self.layer("Flatten", [x], output)
        elif node.op == "Resize" and attributes.get("mode") == "nearest" and constants[2] is not None:
            self.layer("Interp", [x], output, {0: 1, 1: float(constants[2][2]), 2: float(constants[2][3])})
        elif node.op == "Identity":
            self.alias[output] = self.alias.get(x, x)
        else:
            raise NotAvailable(f"no translation of {node.op} to ncnn")

    def only_user(self, node: Node) -> Node | None:
        users = self.users.get(node.outputs[0], [])
        return users[0] if len(users) == 1 else None

    def take(self, node: Node, op: str) -> Node | None:
        """The node's one user, if it is of that operator: the caller takes it in."""
        user = self.only_user(node)
        if user is None or user.op != op or user.inputs[0] != node.outputs[0]:
            return None
        self.done.add(id(user))
        return user

    def convolution(self, node: Node) -> None:
        attributes = node.attributes
        weight = np.array(self.arrays[node.inputs[1]], np.float32)
        bias = np.zeros(len(weight), np.float32)
        if len(node.inputs) > 2:
            bias = np.array(self.arrays[node.inputs[2]], np.float32)
        last = node
        normalisation = self.take(node, "BatchNormalization")
        if normalisation is not None:
            scale, shift, mean, variance = (self.arrays[name] for name in normalisation.inputs[1:5])
            factor = scale / np.sqrt(variance + normalisation.attributes.get("epsilon", 1e-5))
            weight, bias = weight * factor[:, None, None, None], (bias - mean) * factor + shift
            last = normalisation
        height, width = attributes["kernel_shape"]
        strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
        pads, groups = attributes.get("pads", (0, 0, 0, 0)), attributes.get("group", 1)
        parameters: dict[int, Scalar] = {
            0: len(weight),
            1: width,
            11: height,
            2: dilations[1],
            12: dilations[0],
        }
        parameters |= {3: strides[1], 13: strides[0], 4: pads[1], 14: pads[0], 15: pads[3], 16: pads[2]}
        parameters |= {5: 1, 6: weight.size}
        if groups > 1:
            parameters[7] = groups
        relu, clip = self.take(last, "Relu"), None
        if relu is None:
            clip = self.take(last, "Clip")
        if relu is not None:
            parameters[9] = RELU
        if clip is not None:
            parameters |= {9: CLIP, 10: tuple(float(self.arrays[name]) for name in clip.inputs[1:3])}
        last = relu or clip or last
        kind = "ConvolutionDepthWise" if groups > 1 else "Convolution"
        self.layer(kind, [node.inputs[0]], last.outputs[0], parameters)
        self.store(weight, bias)

    def linear(self, node: Node) -> None:
        weight = np.array(self.arrays[node.inputs[1]], np.float32)
        bias = self.arrays[node.inputs[2]] if len(node.inputs) > 2 else None
        if not node.attributes.get("transB"):
            weight = weight.T
        last = node
        addition = self.only_user(node)
        if (
            bias is None
            and addition is not None
            and addition.op == "Add"
            and addition.inputs[1] in self.arrays
        ):
            self.done.add(id(addition))
            bias, last = self.arrays[addition.inputs[1]], addition
        has_bias = bias is not None
        sizes: dict[int, Scalar] = {0: len(weight), 1: int(has_bias), 2: weight.size}
        self.layer("InnerProduct", [node.inputs[0]], last.outputs[0], sizes)
        self.store(weight, bias)

    def binary(self, node: Node) -> None:
        constant = self.arrays.get(node.inputs[1])
        parameters: dict[int, Scalar] = {0: BINARY[node.op]}
        if constant is None:
            self.layer("BinaryOp", list(node.inputs), node.outputs[0], parameters)
        elif constant.size == 1:
            parameters |= {1: 1, 2: float(constant.ravel()[0])}
            self.layer("BinaryOp", [node.inputs[0]], node.outputs[0], parameters)
        else:
            raise NotAvailable(
                f"no translation to ncnn of {node.op} with a constant of shape {constant.shape}"
            )

    def store(self, weight: Array, bias: Array | None) -> None:
        self.weights.append(b"\0\0\0\0")  # what follows is plain float32
        self.weights.append(np.ascontiguousarray(weight, np.float32).tobytes())
        if bias is not None:
            self.weights.append(np.ascontiguousarray(bias, np.float32).tobytes())

    def text(self) -> str:
        """The layers in order; a value with several readers goes through a Split, one output for each."""
        counts = Counter(name for _, inputs, _, _ in self.layers for name in inputs)
        next_copy: Counter[str] = Counter()
        lines: list[str] = []
        blobs = 0
        for index, (kind, inputs, output, parameters) in enumerate(self.layers):
            names = []
            for name in inputs:
                names.append(f"{name}#{next_copy[name]}" if counts[name] > 1 else name)
                next_copy[name] += 1
            settings = " ".join(_setting(key, value) for key, value in sorted(parameters.items()))
            lines.append(
                f"{kind} {index}_{kind} {len(names)} 1 {' '.join([*names, output])} {settings}".rstrip()
            )
            blobs += 1
            if counts[output] > 1:
                copies = [f"{output}#{copy}" for copy in range(counts[output])]
                lines.append(f"Split {index}_Split 1 {len(copies)} {output} {' '.join(copies)}")
                blobs += len(copies)
        return f"{MAGIC}\n{len(lines)} {blobs}\n" + "\n".join(lines) + "\n"


def _setting(key: int, value: Scalar) -> str:
    if isinstance(value, tuple):
        return f"{-23300 - key}={len(value)}," + ",".join(f"{each:e}" for each in value)
    return f"{key}={value:e}" if isinstance(value, float) else f"{key}={value}"
