"""Gradients, as in `torch.autograd`."""

from vkml.autograd import functional
from vkml.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from vkml.tensors.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from vkml.tensors.autograd import (
    backward,
    enable_grad,
    grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)  # fmt: skip
from vkml.tensors.functions import Function, FunctionContext, once_differentiable

__all__ = [
    "Function", "FunctionContext", "GradcheckError", "backward", "detect_anomaly", "enable_grad",
    "functional", "grad", "gradcheck", "gradgradcheck", "inference_mode", "is_anomaly_enabled",
    "is_grad_enabled", "no_grad", "once_differentiable", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip
