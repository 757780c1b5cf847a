"""Modules that compute on several devices at a time, as in `torch.nn.parallel`."""

from vkml.nn.parallel.data_parallel import DataParallel, data_parallel
from vkml.nn.parallel.scatter_gather import gather, scatter
from vkml.nn.parallel.sync_batch_norm import SyncBatchNorm

__all__ = ["DataParallel", "SyncBatchNorm", "data_parallel", "gather", "scatter"]
