"""Operations whose gradient the program states, as in `torch.autograd.function`."""

from vkml.tensors.functions import Function, FunctionContext, once_differentiable

FunctionCtx = FunctionContext

__all__ = ["Function", "FunctionContext", "FunctionCtx", "once_differentiable"]
