"""Optimizers, as in `torch.optim`."""

from vkml.optim import lr_scheduler, swa_utils
from vkml.optim.adadelta import Adadelta
from vkml.optim.adafactor import Adafactor
from vkml.optim.adagrad import Adagrad
from vkml.optim.adam import Adam, AdamW
from vkml.optim.adamax import Adamax
from vkml.optim.asgd import ASGD
from vkml.optim.lbfgs import LBFGS
from vkml.optim.lion import Lion
from vkml.optim.muon import Muon
from vkml.optim.nadam import NAdam
from vkml.optim.optimizer import Optimizer
from vkml.optim.radam import RAdam
from vkml.optim.rmsprop import RMSprop
from vkml.optim.rprop import Rprop
from vkml.optim.sgd import SGD

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
