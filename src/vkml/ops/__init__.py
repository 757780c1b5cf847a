"""The operators, one module a family; importing this package fills the registry."""

import importlib

FAMILIES = (
    "elementwise",
    "unary",
    "comparison",
    "bitwise",
    "activation",
    "expression",
    "cast",
    "reduce",
    "arg_reduce",
    "cumulative",
    "softmax",
    "dropout",
    "attention",
    "matmul",
    "einsum",
    "conv_gradients",
    "conv",
    "conv_transpose",
    "pool_gradients",
    "pool",
    "shape",
    "slicing",
    "resample",
    "padding",
    "rearrange",
    "creation",
    "index",
    "selection",
    "detection",
    "recurrent",
    "norm",
    "unscaled_norm",
    "image",
    "sampling",
    "roi_gradient",
    "unpool",
    "sequence",
    "optional",
    "control",
    "fused",
)

for _family in FAMILIES:
    importlib.import_module(f"vkml.ops.{_family}")
