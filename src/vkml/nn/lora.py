"""Adapters of low rank for fine-tuning: a frozen layer and a small product that is learned beside it.

Source: E. Hu et al., "LoRA: Low-rank adaptation of large language models", 2021. Files are those of Hugging
Face's PEFT ("PEFT checkpoint format" in its documentation).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vkml.errors import InvalidArgument, InvalidCheckpoint, NoSuchFile
from vkml.nn import functional, init
from vkml.nn import linear as linears
from vkml.nn.activation import Identity
from vkml.nn.conv import Conv1d, Conv2d, Conv3d
from vkml.nn.dropout import Dropout
from vkml.nn.embedding import Embedding
from vkml.nn.module import Module, Parameter
from vkml.saving import load as load_tensors
from vkml.saving import save as save_tensors
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import zeros

__all__ = [
    "LoraLayer", "apply", "disable_adapter", "load", "load_state_dict", "mark_only_lora_as_trainable",
    "merge", "merge_and_unload", "save", "state_dict", "unmerge",
]  # fmt: skip

_PREFIX = "base_model.model."
"""Of the names of tensors in PEFT's files."""
_TENSORS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
BIASES = ("none", "all", "lora_only")


class InvalidAdapter(InvalidArgument, ValueError):
    """An adapter cannot be what is asked for."""


class LoraLayer(Module):
    """What layers with an adapter share: `weight` and `bias` as before, `lora_A` and `lora_B` beside them.

    The scale of what is added is `alpha / r`. While `merged`, the weight has it in itself.
    """

    weight: Parameter
    r: int
    lora_alpha: float
    scaling: float
    merged: bool
    disabled: bool
    lora_dropout: Module

    def _adapt(self, r: int, alpha: float, dropout: float) -> None:
        """Adds parameters to a layer whose class has just become this one."""
        raise NotImplementedError

    def _settings(self, r: int, alpha: float, dropout: float) -> None:
        self.r, self.lora_alpha, self.scaling, self.merged = r, alpha, alpha / r, False
        self.disabled = False
        self.lora_dropout = Dropout(dropout) if dropout else Identity()

    def _delta(self) -> Tensor:
        """What is added to the weight."""
        raise NotImplementedError

    def _plain(self) -> type[Module]:
        """The class of the layer without an adapter."""
        found: type[Module] = type(self).__bases__[-1]
        return found

    def _write(self, sign: float, is_shared: bool = False) -> None:
        with no_grad():
            changed = op.add(self.weight, op.mul(self._delta(), sign).to(self.weight.dtype))
            if is_shared:
                self.weight = Parameter(changed, self.weight.requires_grad)
            else:
                self.weight.copy_(changed)
        self.merged = sign > 0


class _Linear(LoraLayer, linears.Linear):
    """x Wᵀ + b + α/r · drop(x) Aᵀ Bᵀ."""

    def _adapt(self, r: int, alpha: float, dropout: float) -> None:
        self._settings(r, alpha, dropout)
        like: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.lora_A = linears.Linear(self.in_features, r, bias=False, **like)
        self.lora_B = linears.Linear(r, self.out_features, bias=False, **like)
        init.zeros_(self.lora_B.weight)

    def _delta(self) -> Tensor:
        return op.mul(op.matmul(self.lora_B.weight, self.lora_A.weight), self.scaling)

    def forward(self, x: Tensor) -> Tensor:
        found = op.linear(x, self.weight, self.bias)
        if self.merged or self.disabled:
            return found
        return op.add(found, op.mul(self.lora_B(self.lora_A(self.lora_dropout(x))), self.scaling))


class _Embedding(LoraLayer, Embedding):
    """Rows of a table, and of B A, of which `lora_embedding_A` has a column for each."""

    def _adapt(self, r: int, alpha: float, dropout: float) -> None:
        self._settings(r, alpha, dropout)
        like: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.lora_embedding_A = Parameter(zeros(r, self.num_embeddings, **like))
        self.lora_embedding_B = Parameter(zeros(self.embedding_dim, r, **like))
        init.normal_(self.lora_embedding_B)

    def _delta(self) -> Tensor:
        return op.mul(op.matmul(self.lora_embedding_B, self.lora_embedding_A).T, self.scaling)

    def forward(self, input: Tensor) -> Tensor:
        found = super().forward(input)
        if self.merged or self.disabled:
            return found
        rows = functional.embedding(
            input, self.lora_embedding_A.T, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return op.add(found, op.mul(op.matmul(rows, self.lora_embedding_B.T), self.scaling))


class _Conv(LoraLayer):
    """A convolution, and beside it one into r channels and one of 1 × 1 from there."""

    lora_A: Any
    lora_B: Any

    def _adapt(self, r: int, alpha: float, dropout: float) -> None:
        self._settings(r, alpha, dropout)
        layer: Any = self
        kind: Any = self._plain()
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self.lora_A = kind(
            layer.in_channels, r, *sizes, bias=False, padding_mode=layer.padding_mode, **like
        )  # fmt: skip
        self.lora_B = kind(r, layer.out_channels, 1, bias=False, **like)
        init.zeros_(self.lora_B.weight)

    def _delta(self) -> Tensor:
        into, out = self.lora_A.weight, self.lora_B.weight
        found = op.matmul(op.flatten(out, 1), op.flatten(into, 1))
        return op.mul(op.reshape(found, *self.weight.shape), self.scaling)

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = super().forward(input)
        if self.merged or self.disabled:
            return found
        return op.add(found, op.mul(self.lora_B(self.lora_A(self.lora_dropout(input))), self.scaling))


class _Conv1d(_Conv, Conv1d): ...


class _Conv2d(_Conv, Conv2d): ...


class _Conv3d(_Conv, Conv3d): ...


for _kind in (_Linear, _Embedding, _Conv1d, _Conv2d, _Conv3d):
    _kind.__name__ = _kind.__qualname__ = f"Lora{_kind.__name__.removeprefix('_')}"
_ADAPTED: dict[type[Module], type[LoraLayer]] = {
    linears.Linear: _Linear, Embedding: _Embedding, Conv1d: _Conv1d, Conv2d: _Conv2d, Conv3d: _Conv3d,
}  # fmt: skip


# -- adapting a model ----------------------------------------------------------------------------------------


def apply(
    model: Module, r: int = 8, alpha: float = 16, dropout: float = 0.0,
    targets: str | Sequence[str] | None = None, bias: str = "none",
) -> Module:  # fmt: skip
    """Gives layers of a model adapters, and has nothing else be learned.

    The layers stay where and what they are, with their parameters under the same names; they compute the same
    as before until something has been learned. `Linear`, `Embedding` and convolutions without groups can be
    adapted.

    Args:
        model: whose layers they are.
        r: the rank of what is added to a weight.
        alpha: that is multiplied by alpha / r.
        dropout: share of an adapter's inputs that is dropped while it is trained; of embeddings none is.
        targets: names of layers, whole or their last parts ("q_proj", "attention.out"), or a regular
            expression that a whole name has to match; all `Linear` where left out.
        bias: which biases are learned, too: "none", "all", or "lora_only", those of the adapted layers.

    Returns:
        the model.

    Raises:
        ValueError: a rank is not positive, nothing is named so, or what is cannot be adapted or has an
            adapter.

    Example:
        >>> from vkml import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> model = nn.lora.apply(model, r=2, targets=["0"])
        >>> [name for name, value in model.named_parameters() if value.requires_grad]
        ['0.lora_A.weight', '0.lora_B.weight']
    """
    if r <= 0:
        raise InvalidAdapter(f"the rank r has to be positive, not {r}")
    if bias not in BIASES:
        raise InvalidAdapter(f"bias has to be one of {', '.join(BIASES)}, not {bias!r}")
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if not isinstance(module, LoraLayer) and _is_target(name, module, targets)
    ]
    if not chosen:
        raise InvalidAdapter(f"targets {targets!r} are no layers of the {type(model).__name__}")
    for name, module in chosen:
        _check(name, module)
    for _, module in chosen:
        module.__class__ = _ADAPTED[type(module)]
        assert isinstance(module, LoraLayer)
        module._adapt(r, alpha, dropout)
        module.train(module.training)
    return mark_only_lora_as_trainable(model, bias)


def _is_target(name: str, module: Module, targets: str | Sequence[str] | None) -> bool:
    if targets is None:
        return type(module) is linears.Linear and not _is_part(name)
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == one or name.endswith(f".{one}") for one in targets) and not _is_part(name)


def _is_part(name: str) -> bool:
    """Whether a layer is one of an adapter's own."""
    return name.rpartition(".")[2] in ("lora_A", "lora_B")


def _check(name: str, module: Module) -> None:
    if type(module) not in _ADAPTED:
        raise InvalidAdapter(
            f"{name!r} is a {type(module).__name__}, which has no adapter; there are some for "
            + ", ".join(kind.__name__ for kind in _ADAPTED)
        )
    if getattr(module, "groups", 1) != 1:
        raise InvalidAdapter(f"{name!r} is a convolution of {module.groups} groups, which has no adapter")


def _layers(model: Module) -> Iterator[LoraLayer]:
    return (module for module in model.modules() if isinstance(module, LoraLayer))


def mark_only_lora_as_trainable(model: Module, bias: str = "none") -> Module:
    """Has the parameters of adapters, and of biases as `apply` says, require grad, and no others.

    Args:
        model: with adapters.
        bias: "none", "all", or "lora_only": of adapted layers.

    Returns:
        the model.

    Raises:
        ValueError: `bias` is something else.
    """
    if bias not in BIASES:
        raise InvalidAdapter(f"bias has to be one of {', '.join(BIASES)}, not {bias!r}")
    names = set(_names(model, bias))
    for name, value in model.named_parameters(remove_duplicate=False):
        value.requires_grad_(name in names)
    return model


def _names(model: Module, bias: str) -> Iterator[str]:
    """Of the parameters that are learned."""
    adapted = {name for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, _ in model.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        is_adapter = "lora_" in last or _is_part(owner)
        is_bias = last == "bias" and (bias == "all" or (bias == "lora_only" and owner in adapted))
        if is_adapter or is_bias:
            yield name


def merge(model: Module) -> Module:
    """Adds what adapters add to the weights themselves: the model computes as fast as without them.

    A weight that an adapted layer shares with others, an embedding and the head of a language model, say,
    becomes one of its own.

    Args:
        model: with adapters.

    Returns:
        the model.
    """
    owners = Counter(id(value) for module in model.modules() for value in module._parameters.values())
    for layer in _layers(model):
        if not layer.merged:
            layer._write(1.0, owners[id(layer.weight)] > 1)
    return model


def unmerge(model: Module) -> Module:
    """Takes from the weights what `merge` added; they are as before up to rounding.

    Args:
        model: with adapters.

    Returns:
        the model.
    """
    for layer in _layers(model):
        if layer.merged:
            layer._write(-1.0)
    return model


@contextmanager
def disable_adapter(model: Module) -> Iterator[Module]:
    """Has a model compute as without adapters inside of the block, which must not be merged.

    Args:
        model: with adapters.

    Raises:
        ValueError: they are merged.
    """
    layers = list(_layers(model))
    if any(layer.merged for layer in layers):
        raise InvalidAdapter("merged adapters cannot be disabled: unmerge them first")
    before = [layer.disabled for layer in layers]
    for layer in layers:
        layer.disabled = True
    try:
        yield model
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.disabled = was


def merge_and_unload(model: Module) -> Module:
    """Merges the adapters and removes them: the layers are again of the classes that they were of.

    Args:
        model: with adapters.

    Returns:
        the model.
    """
    for layer in list(_layers(merge(model))):
        for name in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_dropout"):
            if hasattr(layer, name):
                delattr(layer, name)
        for name in ("r", "lora_alpha", "scaling", "merged", "disabled"):
            delattr(layer, name)
        layer.__class__ = layer._plain()  # type: ignore[assignment]
    return model


# -- states and files ----------------------------------------------------------------------------------------


def state_dict(model: Module, bias: str = "none") -> dict[str, Any]:
    """The parameters of adapters alone, by their names; of biases, too, as `apply` says.

    Args:
        model: with adapters.
        bias: "none", "all", or "lora_only": of adapted layers.
    """
    names = set(_names(model, bias))
    return {name: value for name, value in model.state_dict().items() if name in names}


def load_state_dict(model: Module, state: Mapping[str, Any]) -> None:
    """Takes what `state_dict` gave.

    Args:
        model: with adapters of the same layers and rank.
        state: tensors or arrays by name.

    Raises:
        ValueError: it is not of this model's adapters.
        RuntimeError: shapes do not fit.
    """
    own = set(_names(model, "none"))
    missing, more = sorted(own - set(state)), sorted(set(state) - set(model.state_dict()))
    if missing or more:
        raise InvalidAdapter(
            f"the state is not of these adapters; missing: {', '.join(missing) or 'nothing'}; not known: "
            f"{', '.join(more) or 'nothing'}"
        )
    merged = [layer for layer in _layers(model) if layer.merged]
    unmerge(model)
    model.load_state_dict(state, strict=False)
    for layer in merged:
        layer._write(1.0)


def save(model: Module, path: str | os.PathLike[str]) -> None:
    """Writes the adapters of a model to a folder, as PEFT does.

    Args:
        model: whose they are; all have the same rank and scale.
        path: of the folder, which is made where it is not there.

    Raises:
        ValueError: the model has none, or ones that differ.
        OSError: something cannot be written.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    settings = {(layer.r, layer.lora_alpha, _dropout(layer)) for layer in layers.values()}
    if len(settings) != 1:
        raise InvalidAdapter("the model has " + ("adapters that differ" if settings else "no adapters"))
    [(r, alpha, dropout)] = settings
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors({_PREFIX + name: value for name, value in state_dict(model).items()}, folder / _TENSORS)
    config = {
        "peft_type": "LORA", "r": r, "lora_alpha": alpha, "lora_dropout": dropout, "bias": "none",
        "target_modules": sorted(layers), "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
        "inference_mode": True, "base_model_name_or_path": None, "task_type": None,
    }  # fmt: skip
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _dropout(layer: LoraLayer) -> float:
    return layer.lora_dropout.p if isinstance(layer.lora_dropout, Dropout) else 0.0


def load(model: Module, path: str | os.PathLike[str]) -> Module:
    """Gives a model the adapters of a folder that `save`, or PEFT, wrote.

    Args:
        model: without adapters, or with those of the same layers and rank.
        path: of the folder.

    Returns:
        the model.

    Raises:
        NoSuchFile: a file of it is missing.
        InvalidCheckpoint: it is damaged.
        ValueError: it has what there is not here (DoRA, other ranks for some layers), or is of another model.
    """
    folder = Path(path)
    if not (folder / _CONFIG).is_file():
        raise NoSuchFile(f"there is no file {_CONFIG!r} in {str(folder)!r}")
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        r, alpha, targets = int(config["r"]), float(config["lora_alpha"]), config["target_modules"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidCheckpoint(f"{str(folder / _CONFIG)!r} is damaged: {error!r}") from None
    wanted = {"peft_type": ("LORA",), "bias": ("none", None)}
    unknown = [f"{key}={config[key]!r}" for key, have in wanted.items() if config.get(key) not in have]
    others = (
        "use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias",
        "layers_to_transform", "layer_replication",
    )  # fmt: skip
    unknown += [f"{key}={config[key]!r}" for key in others if config.get(key)]
    if unknown:
        raise InvalidAdapter(f"the adapter in {str(folder)!r} has what is not known: {', '.join(unknown)}")
    if config.get("use_rslora"):
        alpha *= math.sqrt(r)  # which divides by the root of r
    if targets == "all-linear":
        targets = None
    tensors = load_tensors(folder / _TENSORS)
    state = {name.removeprefix(_PREFIX): value for name, value in tensors.items()}
    if not any(_layers(model)):
        apply(model, r, alpha, float(config.get("lora_dropout") or 0.0), targets)
    for layer in _layers(model):
        if (layer.r, layer.scaling) != (r, alpha / r):
            raise InvalidAdapter(
                f"the model has adapters of r={layer.r} and alpha={layer.lora_alpha}, the file "
                f"has ones of r={r} and alpha={alpha}"
            )
    load_state_dict(model, state)
    return model
