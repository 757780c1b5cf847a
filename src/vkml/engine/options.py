"""Settings of a session, in the shape of onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """How far a graph may be rewritten; `ORT_DISABLE_ALL` runs it node by node."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted for compatibility; vkml orders work by its dependencies in either mode."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


Progress = Callable[[str, int, int], None]
"""Called with a stage ("load", "compile", "upload"), what is done and what there is to do."""


@dataclass
class SessionOptions:
    """Settings of an `InferenceSession`."""

    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    enable_profiling: bool = False
    profile_file_prefix: str = "vkml_profile"
    intra_op_num_threads: int = 0
    """Threads the CPU device uses; 0: one a core."""
    inter_op_num_threads: int = 0
    log_severity_level: int = 2
    logid: str = ""
    memory_limit: float = 0.95
    """Share of a device's memory that may be in use, by everyone together."""
    plan_cache_size: int = 8
    """Plans kept, one for each set of input shapes; as many for each segment of a model that data cuts."""
    progress: Progress | None = None
    guard_bytes: int = 0
    """Bytes of known pattern round each intermediate buffer, checked after each run: for tests of kernels."""
