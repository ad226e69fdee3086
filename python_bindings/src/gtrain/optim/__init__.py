"""Update rules, named and with defaults as in torch.optim. Learning-rate schedules are in optim.lr_scheduler."""

from . import lr_scheduler
from .optimizer import SGD, Adam, AdamW, Optimizer
from .schedule import Schedule

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule", "lr_scheduler"]
