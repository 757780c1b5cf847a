"""`vkml.fit` and what belongs to it: callbacks, metrics, checkpoints, the history of a training."""

from vkml.training.callbacks import Callback, CSVLogger, EarlyStopping, LearningCurve, LRSchedule
from vkml.training.checkpoint import Checkpoint
from vkml.training.history import History
from vkml.training.metrics import (
    F1,
    MAE,
    MSE,
    R2,
    RMSE,
    Accuracy,
    Mean,
    Metric,
    Precision,
    Recall,
    TopK,
)  # fmt: skip
from vkml.training.tensorboard import TensorBoard
from vkml.training.trainer import Trainer, evaluate, fit

__all__ = [
    "F1", "MAE", "MSE", "R2", "RMSE", "Accuracy", "CSVLogger", "Callback", "Checkpoint", "EarlyStopping",
    "History", "LRSchedule", "LearningCurve", "Mean", "Metric", "Precision", "Recall", "TensorBoard", "TopK",
    "Trainer", "evaluate", "fit",
]  # fmt: skip
