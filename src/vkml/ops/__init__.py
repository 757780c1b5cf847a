"""The operators, one module a family; importing this package fills the registry.

For programs `vkml.ops` is functions of NumPy arrays, ``vkml.ops.add(a, b, out=c)``: `vkml.array_functions`.
"""

import importlib
from typing import Any

FAMILIES = (
    "elementwise",
    "unary",
    "comparison",
    "bitwise",
    "activation",
    "experts",
    "expression",
    "cast",
    "quantization",
    "reduce",
    "moments",
    "arg_reduce",
    "cumulative",
    "softmax",
    "cross_entropy",
    "dropout",
    "philox",
    "random_state",
    "random",
    "places",
    "linear_algebra",
    "matrix_exponential",
    "attention",
    "attention_gradient",
    "onnx_attention",
    "rotary",
    "causal_conv",
    "matmul",
    "einsum",
    "conv_gradients",
    "conv",
    "quantized_products",
    "quantized_extensions",
    "activation_extensions",
    "product_extensions",
    "norm_extensions",
    "attention_extensions",
    "grouped_attention",
    "rotary_extension",
    "linear_attention",
    "flex_attention",
    "quantized_attention",
    "renamed_extensions",
    "block_quantization",
    "conv_transpose",
    "pool_gradients",
    "pool",
    "complex",
    "fourier",
    "signal",
    "transforms",
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
    "deform_conv",
    "roi_pool",
    "roi_gradient",
    "unpool",
    "sequence",
    "optional",
    "control",
    "training",
    "tree_ensembles",
    "features",
    "labels",
    "string_extensions",
    "strings",
    "ngrams",
    "linear_models",
    "maps",
    "optimizers",
    "image_files",
    "fused",
)

for _family in FAMILIES:
    importlib.import_module(f"vkml.ops.{_family}")

# Modules are imported by their whole names; as attributes, functions have theirs: `vkml.ops.matmul(a, b)`.
for _name in ("cross_entropy", "matmul", "softmax"):
    globals().pop(_name, None)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'vkml.ops' has no attribute {name!r}")
    from vkml.array_functions import FUNCTIONS

    found = FUNCTIONS.get(name)
    if found is None:
        raise AttributeError(f"module 'vkml.ops' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from vkml.array_functions import FUNCTIONS

    return sorted(FUNCTIONS)
