"""Losses, optimizers and precisions as `vkml.fit` takes them: by name, class, instance or function."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from vkml import nn, optim
from vkml.errors import InvalidArgument
from vkml.ir import DType, dtypes
from vkml.precisions import PRECISIONS
from vkml.tensors import Tensor

LossFunction = Callable[[Any, Any], Tensor]
_LOSSES = {
    "cross_entropy": "cross_entropy", "nll": "nll_loss", "bce": "binary_cross_entropy",
    "binary_cross_entropy": "binary_cross_entropy", "bce_with_logits": "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits", "mse": "mse_loss",
    "l1": "l1_loss", "mae": "l1_loss", "huber": "huber_loss", "smooth_l1": "smooth_l1_loss",
    "kl_div": "kl_div", "poisson_nll": "poisson_nll_loss", "soft_margin": "soft_margin_loss",
    "multi_margin": "multi_margin_loss", "multilabel_soft_margin": "multilabel_soft_margin_loss",
}  # fmt: skip
"""Names of losses, and what they are called in `vkml.nn.functional`."""
ELEMENTWISE = frozenset(
    ["bce", "binary_cross_entropy", "bce_with_logits", "binary_cross_entropy_with_logits", "mse", "l1", "mae",
     "huber", "smooth_l1", "poisson_nll", "soft_margin"]
)  # fmt: skip
"""Names of losses that compare element by element."""
_OPTIMIZERS = {
    name.lower(): getattr(optim, name)
    for name in optim.__all__
    if isinstance(getattr(optim, name), type) and name != "Optimizer"
}


def chosen(what: str, name: str, among: Iterable[str]) -> str:
    """A name as it is spelt in a list of names, case and hyphens aside.

    Raises:
        InvalidArgument: it is none of them; the message names the nearest.
    """
    names = sorted(among)
    plain = name.lower().replace("-", "_").removesuffix("_loss")
    if plain in names:
        return plain
    near = difflib.get_close_matches(plain, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidArgument(f"there is no {what} {name!r}{hint} (known: {', '.join(names)})")


def loss_function(loss: Any) -> LossFunction:
    """What computes a loss of a model's output and a target.

    Losses by name that compare element by element take targets of integers, and [batch] for an output of
    [batch, 1], where PyTorch's functions would broadcast one against the other.

    Args:
        loss: a name as in `vkml.nn.functional` ("cross_entropy", "mse"), a loss module or its class, or any
            function of output and target.

    Raises:
        InvalidArgument: there is no such loss.
    """
    if isinstance(loss, str):
        name = chosen("loss", loss, _LOSSES)
        function: LossFunction = getattr(nn.functional, _LOSSES[name])
        return _element_by_element(function) if name in ELEMENTWISE else function
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        made: LossFunction = loss()
        return made
    if callable(loss):
        given: LossFunction = loss
        return given
    raise InvalidArgument(
        f"a loss is a name, a module or a function of output and target, not {type(loss).__name__}"
    )


def takes_probabilities(loss: Any) -> bool:
    """Whether a loss takes probabilities of one class, where others take logits."""
    if isinstance(loss, str):
        return loss.lower() in ("bce", "binary_cross_entropy")
    return loss is nn.BCELoss or isinstance(loss, nn.BCELoss)


def _element_by_element(function: LossFunction) -> LossFunction:
    def compared(output: Tensor, target: Tensor) -> Tensor:
        return function(output, alike(target, output))

    return compared


def alike(target: Tensor, output: Tensor) -> Tensor:
    """A target in the element type of an output, and in its shape where only axes of size 1 differ.

    Raises:
        InvalidArgument: the shapes differ otherwise.
    """
    if target.shape != output.shape:
        if [size for size in target.shape if size != 1] != [size for size in output.shape if size != 1]:
            raise InvalidArgument(
                f"the model gives {list(output.shape)}, the target is {list(target.shape)}: this loss "
                "compares them element by element"
            )
        target = target.reshape(output.shape)
    return target if target.dtype.is_float else target.to(output.dtype)


def optimizer_of(optimizer: Any, parameters: Iterable[Tensor], lr: float | None) -> optim.Optimizer:
    """An optimizer of a model's parameters.

    Args:
        optimizer: a name as in `vkml.optim` ("adamw"), a class or another function of parameters, or an
            optimizer.
        parameters: those that require grad are optimized.
        lr: its learning rate; the optimizer's default where left out.

    Raises:
        InvalidArgument: there is no such optimizer; nothing requires grad; or a learning rate is given
            beside an optimizer that has one.
    """
    if isinstance(optimizer, optim.Optimizer):
        if lr is not None:
            raise InvalidArgument("the optimizer is made already: give it the learning rate, not vkml.fit")
        return optimizer
    found = [parameter for parameter in parameters if parameter.requires_grad]
    if not found:
        raise InvalidArgument("no parameter of the model requires grad: there is nothing to train")
    settings = {} if lr is None else {"lr": lr}
    if isinstance(optimizer, str):
        name = chosen("optimizer", optimizer, _OPTIMIZERS)
        if name == "sgd" and lr is None:
            settings = {"lr": 0.01}
        made = _OPTIMIZERS[name](found, **settings)
    elif callable(optimizer):
        made = optimizer(found, **settings)
    else:
        made = None
    if not isinstance(made, optim.Optimizer):
        raise InvalidArgument(
            "an optimizer is a name, an optimizer, its class, or a function of parameters that returns one, "
            f"not {type(optimizer if made is None else made).__name__}"
        )
    return made


_HALVES = {
    "float16": dtypes.FLOAT16, "fp16": dtypes.FLOAT16, "half": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16,
    "bf16": dtypes.BFLOAT16,
}  # fmt: skip


def half_type(precision: Any) -> DType | None:
    """The narrow element type that a precision means; None for one of float32 products.

    Raises:
        InvalidArgument: there is no such precision.
    """
    if precision is None or precision in PRECISIONS:
        return None
    if isinstance(precision, DType) and precision in _HALVES.values():
        return precision
    if precision not in _HALVES:
        raise InvalidArgument(
            f"there is no precision {precision!r} (known: {', '.join([*PRECISIONS, 'bfloat16', 'float16'])})"
        )
    return _HALVES[precision]
