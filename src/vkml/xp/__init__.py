"""The Python array API standard, 2024.12, over vkml's tensors.

Arrays are tensors with the standard's operators: they are recorded, fused, and computed when they are looked
at, on any device, and take part in gradients and captures. Complex numbers, factorisations and Fourier
transforms are computed by NumPy on the CPU.

Example:
    >>> from vkml import xp
    >>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> xp.sum(x @ x, axis=0)
    Array([22., 32.])
"""

from __future__ import annotations

import math

from vkml import __version__ as _version
from vkml.ir import dtypes as _dtypes
from vkml.xp import fft as fft
from vkml.xp import linalg as linalg
from vkml.xp.array import Array as Array
from vkml.xp.creation import *  # noqa: F403
from vkml.xp.elementwise import *  # noqa: F403
from vkml.xp.information import __array_namespace_info__ as __array_namespace_info__
from vkml.xp.manipulation import *  # noqa: F403
from vkml.xp.reductions import *  # noqa: F403

__array_api_version__ = "2024.12"
__version__ = _version
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi
bool = _dtypes.BOOL
int8, int16, int32, int64 = _dtypes.INT8, _dtypes.INT16, _dtypes.INT32, _dtypes.INT64
uint8, uint16, uint32, uint64 = _dtypes.UINT8, _dtypes.UINT16, _dtypes.UINT32, _dtypes.UINT64
float16, bfloat16, float32, float64 = _dtypes.FLOAT16, _dtypes.BFLOAT16, _dtypes.FLOAT32, _dtypes.FLOAT64
complex64, complex128 = _dtypes.COMPLEX64, _dtypes.COMPLEX128
