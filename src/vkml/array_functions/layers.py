"""The functions of `vkml.ops` that layers are made of, and losses."""

from __future__ import annotations

from typing import Any

from vkml.array_functions.defining import Table
from vkml.nn import functional
from vkml.tensors import Tensor

TABLE = Table()
_define = TABLE.define

# -- convolutions, pooling -----------------------------------------------------------------------------------

for _rank in (1, 2, 3):
    _define(
        f"conv{_rank}d", "input weight bias=None", getattr(functional, f"conv{_rank}d"),
        f"A convolution over {_rank} spatial axes; see `vkml.nn.functional.conv{_rank}d`.",
        "stride=1 padding=0 dilation=1 groups=1",
    )  # fmt: skip
    _define(
        f"conv_transpose{_rank}d", "input weight bias=None",
        getattr(functional, f"conv_transpose{_rank}d"),
        f"A transposed convolution; see `vkml.nn.functional.conv_transpose{_rank}d`.",
        "stride=1 padding=0 output_padding=0 groups=1 dilation=1",
    )  # fmt: skip
    _define(
        f"max_pool{_rank}d", "input",
        getattr(functional, f"max_pool{_rank}d"),
        "The greatest element of each window.",
        "kernel_size stride=None padding=0 dilation=1 ceil_mode=False",
    )  # fmt: skip
    _define(
        f"avg_pool{_rank}d", "input", getattr(functional, f"avg_pool{_rank}d"), "The mean of each window.",
        "kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True",
    )  # fmt: skip
    _define(
        f"adaptive_avg_pool{_rank}d", "input", getattr(functional, f"adaptive_avg_pool{_rank}d"),
        "The means of so many windows as the result has elements.", "output_size",
    )  # fmt: skip
_define(
    "pad", "input", functional.pad, "The input with more elements round it; see `vkml.nn.functional.pad`.",
    "pad mode='constant' value=None",
)  # fmt: skip
_define(
    "embedding", "input weight", lambda places, weight: functional.embedding(places, weight),
    "Rows of the weight by number.", by=(1,),
)  # fmt: skip


# -- normalisation -------------------------------------------------------------------------------------------


def _batch_norm(
    x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    made = functional.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
    if not training:
        return made
    return [made, *(one for one in (mean, variance) if one is not None)]


def _batch_norm_alone(*given: Any) -> Tensor:
    made = _batch_norm(*given)
    return made if isinstance(made, Tensor) else made[0]


_define(
    "batch_norm", "input running_mean=None running_var=None weight=None bias=None", _batch_norm_alone,
    "Each channel standardised by its batch's statistics (`training`), or by the running ones, which are "
    "left as they are; `batch_norm_update` moves them. See `vkml.nn.functional.batch_norm`.",
    "training=False momentum=0.1 eps=1e-5", by=(0, 3, 4),
)  # fmt: skip
_define(
    "batch_norm_update", "input running_mean running_var weight=None bias=None",
    lambda x, mean, variance, weight, bias, momentum, eps: _batch_norm(
        x, mean, variance, weight, bias, True, momentum, eps
    ),
    "`batch_norm` in training, which moves `running_mean` and `running_var`, in place, towards the batch's."
    "\n\nArguments as for `batch_norm`.",
    "momentum=0.1 eps=1e-5", by=(), updated=(1, 2),
)  # fmt: skip
_define(
    "layer_norm", "input weight=None bias=None",
    lambda x, weight, bias, shape, eps: functional.layer_norm(x, _trailing(shape), weight, bias, eps),
    "Trailing axes standardised.", "normalized_shape eps=1e-5",
)  # fmt: skip
_define(
    "rms_norm", "input weight=None",
    lambda x, weight, shape, eps: functional.rms_norm(x, _trailing(shape), weight, eps),
    "Trailing axes over the root of their mean square.", "normalized_shape eps=None",
)  # fmt: skip
_define(
    "group_norm", "input weight=None bias=None",
    lambda x, weight, bias, groups, eps: functional.group_norm(x, groups, weight, bias, eps),
    "Groups of channels of each sample standardised.", "num_groups eps=1e-5",
)  # fmt: skip
_define(
    "instance_norm", "input weight=None bias=None",
    lambda x, weight, bias, eps: functional.instance_norm(x, weight=weight, bias=bias, eps=eps),
    "Each channel of each sample standardised.", "eps=1e-5",
)  # fmt: skip


def _trailing(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


# -- losses --------------------------------------------------------------------------------------------------


def _loss(function: Any) -> Any:
    return lambda x, t, reduction: function(x, t, reduction=reduction)


for _name, _text in {
    "mse_loss": "The mean of (input - target)².",
    "l1_loss": "The mean of |input - target|.",
    "binary_cross_entropy": "The cross entropy of probabilities and targets between 0 and 1.",
    "binary_cross_entropy_with_logits": "`binary_cross_entropy` of the sigmoid of the input.",
    "kl_div": "target (log target - input), the input being logarithms.",
}.items():  # fmt: skip
    _define(
        _name, "input target",
        _loss(getattr(functional, _name)),
        f"{_text}\n\nSee `vkml.nn.functional.{_name}`.", "reduction='mean'", by=(0,),
    )  # fmt: skip
_define(
    "smooth_l1_loss", "input target",
    lambda x, t, reduction, beta: functional.smooth_l1_loss(x, t, reduction=reduction, beta=beta),
    "(input - target)² / (2 beta) below beta, |input - target| - beta / 2 above.",
    "reduction='mean' beta=1.0", by=(0,),
)  # fmt: skip
_define(
    "huber_loss", "input target",
    lambda x, t, reduction, delta: functional.huber_loss(x, t, reduction=reduction, delta=delta),
    "`smooth_l1_loss` times delta.\n\nSee `vkml.nn.functional.huber_loss`.",
    "reduction='mean' delta=1.0", by=(0,),
)  # fmt: skip
_define(
    "cross_entropy", "input target weight=None",
    lambda x, t, weight, ignored, reduction, smoothing: functional.cross_entropy(
        x, t, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    ),
    "The cross entropy of logits [batch, classes, ...] and classes, or probabilities.",
    "ignore_index=-100 reduction='mean' label_smoothing=0.0", by=(0,),
)  # fmt: skip
_define(
    "nll_loss", "input target weight=None",
    lambda x, t, weight, ignored, reduction: functional.nll_loss(
        x, t, weight, ignore_index=ignored, reduction=reduction
    ),
    "`cross_entropy` of logarithms of probabilities.\n\nSee `vkml.nn.functional.nll_loss`.",
    "ignore_index=-100 reduction='mean'", by=(0,),
)  # fmt: skip
