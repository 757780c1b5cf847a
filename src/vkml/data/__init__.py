"""Datasets, their orders, and batches of them for training."""

from vkml.data import transforms
from vkml.data.collate import default_collate, default_convert
from vkml.data.csv_files import CSVDataset, read_csv
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
from vkml.data.files import BinaryDataset, NumpyDataset
from vkml.data.folders import ImageFolder
from vkml.data.loader import DataLoader
from vkml.data.parquet_files import ParquetDataset, read_parquet
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
from vkml.data.tables import Table, TableDataset
from vkml.data.worker_info import WorkerInfo, get_worker_info

__all__ = [
    "ArrayDataset", "BatchSampler", "BinaryDataset", "CSVDataset", "ChainDataset", "ConcatDataset",
    "DataLoader", "Dataset", "DistributedSampler", "ImageFolder", "IterableDataset", "NumpyDataset",
    "ParquetDataset", "RandomSampler", "Sampler", "SequentialSampler", "Skipped", "StackDataset", "Stream",
    "Subset", "SubsetRandomSampler", "Table", "TableDataset", "TensorDataset", "WeightedRandomSampler",
    "WorkerInfo", "default_collate", "default_convert", "get_worker_info", "random_split", "random_stream",
    "read_csv", "read_parquet", "transforms",
]  # fmt: skip
