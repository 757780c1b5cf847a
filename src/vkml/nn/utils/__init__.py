"""Gradients and parameters of whole models, as in `torch.nn.utils`."""

from vkml.nn.utils import parametrizations, parametrize, rnn
from vkml.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from vkml.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm",
    "parameters_to_vector", "parametrizations", "parametrize", "rnn", "vector_to_parameters",
]  # fmt: skip
