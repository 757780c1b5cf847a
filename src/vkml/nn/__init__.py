"""Layers, losses and what they are made of, as in `torch.nn`."""

from vkml.nn import functional, init
from vkml.nn.activation import (
    ELU,
    GELU,
    Hardswish,
    Identity,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)  # fmt: skip
from vkml.nn.containers import ModuleDict, ModuleList, Sequential
from vkml.nn.linear import Embedding, Flatten, Linear
from vkml.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from vkml.nn.module import Module, Parameter

__all__ = [
    "ELU",
    "GELU",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "Embedding",
    "Flatten",
    "Hardswish",
    "Identity",
    "L1Loss",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "functional",
    "init",
]  # fmt: skip
