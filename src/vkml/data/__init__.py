"""Datasets, their orders, and batches of them for training."""

from vkml.data.collate import default_collate, default_convert
from vkml.data.dataset import (
    ArrayDataset,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from vkml.data.fetching import Skipped
from vkml.data.loader import DataLoader
from vkml.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from vkml.data.streams import Stream, random_stream
from vkml.data.worker_info import WorkerInfo, get_worker_info

__all__ = [
    "ArrayDataset", "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset",
    "DistributedSampler", "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "Skipped",
    "StackDataset", "Stream", "Subset", "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler",
    "WorkerInfo", "default_collate", "default_convert", "get_worker_info", "random_split", "random_stream",
]  # fmt: skip
