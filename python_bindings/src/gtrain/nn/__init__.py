"""Layers, containers, losses and initialisation, named as in torch.nn."""

from .._tensor import Parameter
from . import functional, init, utils
from .layers import (
    GELU,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    MaxPool2d,
    ModuleDict,
    ModuleList,
    MSELoss,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    resnet18,
    resnet50,
)
from .module import Module

__all__ = [
    "GELU", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten",
    "Identity", "LayerNorm", "Linear", "LogSoftmax", "MSELoss", "MaxPool2d", "Module", "ModuleDict", "ModuleList", "Parameter", "ReLU", "Residual",
    "Sequential", "SiLU", "Sigmoid", "Softmax", "Tanh", "functional", "init", "resnet18", "resnet50", "utils",
]  # fmt: skip
