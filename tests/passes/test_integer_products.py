"""Products of dequantised numbers as products of bytes: which are found, and that numbers stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
