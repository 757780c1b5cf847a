"""PyTorch, eager and as a CUDA graph, running a model's graph operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkml.onnx
from benchmarks.measure import Array, Feed, NotAvailable, Prepared
from vkml.ir.graph import Graph, Node

Operation = Callable[[Any, Node, list[Any], dict[str, Array]], Any]


def _padding(node: Node) -> list[int]:
    """Symmetric padding of each spatial axis."""
    pads = list(node.attributes.get("pads", ()))
    half = len(pads) // 2
    if pads[:half] != pads[half:] or node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise NotAvailable(f"{node.label}: only symmetric padding is translated to PyTorch")
    return pads[:half] or [0]


def _conv(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    attributes = node.attributes
    rank = inputs[0].dim() - 2
    function = getattr(torch.nn.functional, f"conv{rank}d")
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    bias = inputs[2] if len(inputs) > 2 else None
    padding = _padding(node) if attributes.get("pads") else [0] * rank
    return function(inputs[0], inputs[1], bias, strides, padding, dilations, attributes.get("group", 1))


def _max_pool(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    attributes = node.attributes
    kernel = attributes["kernel_shape"]
    padding = _padding(node) if attributes.get("pads") else [0] * len(kernel)
    return torch.nn.functional.max_pool2d(inputs[0], kernel, attributes.get("strides", (1, 1)), padding)


def _gemm(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    attributes = node.attributes
    left = inputs[0].T if attributes.get("transA") else inputs[0]
    right = inputs[1].T if attributes.get("transB") else inputs[1]
    return torch.addmm(
        inputs[2], left, right, beta=attributes.get("beta", 1.0), alpha=attributes.get("alpha", 1.0)
    )


def _batch_norm(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    x, scale, shift, mean, variance = inputs
    epsilon = node.attributes.get("epsilon", 1e-5)
    return torch.nn.functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, epsilon)


def _resize(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    if node.attributes.get("mode") != "nearest" or node.attributes.get("nearest_mode") != "floor":
        raise NotAvailable(f"{node.label}: only nearest, rounded down, is translated to PyTorch")
    scales = constants[node.inputs[2]].tolist()[2:]
    return torch.nn.functional.interpolate(inputs[0], scale_factor=scales, mode="nearest")


def _clip(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    return torch.clamp(inputs[0], float(constants[node.inputs[1]]), float(constants[node.inputs[2]]))


def _reshape(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    return inputs[0].reshape(constants[node.inputs[1]].tolist())


def _gather(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    axis, indices = node.attributes.get("axis", 0), inputs[1]
    if indices.dim() == 0:
        return inputs[0].select(axis, int(constants[node.inputs[1]]))
    if axis != 0:
        raise NotAvailable(f"{node.label}: only axis 0 is translated to PyTorch")
    return torch.nn.functional.embedding(indices, inputs[0])


def _layer_norm(torch: Any, node: Node, inputs: list[Any], constants: dict[str, Array]) -> Any:
    epsilon = node.attributes.get("epsilon", 1e-5)
    return torch.nn.functional.layer_norm(inputs[0], inputs[1].shape, inputs[1], inputs[2], epsilon)


OPERATIONS: Mapping[str, Operation] = {
    "Add": lambda torch, node, inputs, constants: inputs[0] + inputs[1],
    "Sub": lambda torch, node, inputs, constants: inputs[0] - inputs[1],
    "Mul": lambda torch, node, inputs, constants: inputs[0] * inputs[1],
    "Div": lambda torch, node, inputs, constants: inputs[0] / inputs[1],
    "MatMul": lambda torch, node, inputs, constants: inputs[0] @ inputs[1],
    "Relu": lambda torch, node, inputs, constants: torch.relu(inputs[0]),
    "Sigmoid": lambda torch, node, inputs, constants: torch.sigmoid(inputs[0]),
    "Erf": lambda torch, node, inputs, constants: torch.erf(inputs[0]),
    "Identity": lambda torch, node, inputs, constants: inputs[0],
    "Softmax": lambda torch, node, inputs, constants: inputs[0].softmax(node.attributes.get("axis", -1)),
    "Transpose": lambda torch, node, inputs, constants: inputs[0].permute(node.attributes["perm"]),
    "Concat": lambda torch, node, inputs, constants: torch.cat(inputs, node.attributes["axis"]),
    "Flatten": lambda torch, node, inputs, constants: inputs[0].flatten(1),
    "GlobalAveragePool": lambda torch, node, inputs, constants: inputs[0].mean((2, 3), keepdim=True),
    "Conv": _conv,
    "MaxPool": _max_pool,
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Resize": _resize,
    "Clip": _clip,
    "Reshape": _reshape,
    "Gather": _gather,
}


@dataclass(frozen=True)
class Torch:
    """Runs the graph in PyTorch, with TF32 where the device has it."""

    name: str
    device: str
    is_graph: bool

    def prepare(self, path: str) -> Prepared:
        try:
            import torch
        except ImportError:
            raise NotAvailable("the package torch is not installed") from None
        if self.device == "cuda" and not torch.cuda.is_available():
            raise NotAvailable("the installed torch finds no CUDA device")
        graph = vkml.onnx.load_graph(path)
        unknown = sorted({node.op for node in graph.nodes} - set(OPERATIONS))
        if unknown:
            raise NotAvailable(f"no translation to PyTorch for {', '.join(unknown)}")
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        return _prepare(torch, graph, self.device, self.is_graph)


def _prepare(torch: Any, graph: Graph, device: str, is_graph: bool) -> Prepared:
    arrays = {name: constant.array for name, constant in graph.constants.items()}
    weights = {name: torch.from_numpy(np.array(value)).to(device) for name, value in arrays.items()}

    def forward(feed: Mapping[str, Any]) -> list[Any]:
        values = weights | dict(feed)
        for node in graph.nodes:
            inputs = [values[name] if name else None for name in node.inputs]
            values[node.outputs[0]] = OPERATIONS[node.op](torch, node, inputs, arrays)
        return [values[output.name] for output in graph.outputs]

    def eager(feed: Feed) -> list[Array]:
        tensors = {name: torch.from_numpy(value).to(device) for name, value in feed.items()}
        with torch.inference_mode():
            return [output.cpu().numpy() for output in forward(tensors)]

    if not is_graph:
        return Prepared(eager, lambda: None, device)
    bound: dict[str, Any] = {}
    recorded: list[Any] = []

    def replay(feed: Feed) -> list[Array]:
        with torch.inference_mode():
            if not recorded:
                bound.update({name: torch.from_numpy(value).to(device) for name, value in feed.items()})
                forward(bound)
                torch.cuda.synchronize()
                launches = torch.cuda.CUDAGraph()
                with torch.cuda.graph(launches):
                    recorded.extend((launches, forward(bound)))
            for name, value in feed.items():
                bound[name].copy_(torch.from_numpy(value))
            recorded[0].replay()
            return [output.cpu().numpy() for output in recorded[1]]

    return Prepared(replay, lambda: None, device)
