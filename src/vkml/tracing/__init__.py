"""Values recorded by operators that are applied to them, and computed when they are looked at."""

from vkml.tracing.emit import EMITTER, apply, apply_all, constant, number
from vkml.tracing.evaluation import evaluate
from vkml.tracing.gradient import gradients, tracked
from vkml.tracing.value import Joined, Traced, value_of

__all__ = [
    "EMITTER", "Joined", "Traced", "apply", "apply_all", "constant", "evaluate", "gradients", "number",
    "tracked", "value_of",
]  # fmt: skip
