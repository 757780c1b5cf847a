"""Functions of NumPy arrays, computed at once on a device, and their gradients: `vkml.ops`."""

from vkml.array_functions import functions, layers
from vkml.array_functions.calls import forget_calls

FUNCTIONS = {**functions.TABLE.functions, **layers.TABLE.functions, "forget_calls": forget_calls}
"""By name."""
