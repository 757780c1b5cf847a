"""Training in mixed precision, as in `torch.amp`."""

from vkml.amp.grad_scaler import GradScaler
from vkml.tensors.autocast import autocast, get_autocast_dtype, is_autocast_enabled

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]
