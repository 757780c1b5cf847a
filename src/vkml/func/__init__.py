"""Functions of functions: gradients, products with Jacobians, modules as functions, as in `torch.func`."""

from vkml.func.modules import functional_call, stack_module_state
from vkml.func.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, value_and_grad, vjp
from vkml.func.vmap import vmap

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "stack_module_state",
    "value_and_grad", "vjp", "vmap",
]  # fmt: skip
