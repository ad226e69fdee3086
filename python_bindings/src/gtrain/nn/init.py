"""Initialisation in place, from the context's random numbers; names and defaults as in torch.nn.init."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import _api
from .._errors import ArgumentError, check
from .._library import lib

if TYPE_CHECKING:
    from .._tensor import Tensor

_FANS = {"fan_in": _api.GT_NN_FAN_IN, "fan_out": _api.GT_NN_FAN_OUT}


def _slope(a, nonlinearity):
    if nonlinearity == "leaky_relu":
        return a
    if nonlinearity == "relu":
        return 0.0
    if nonlinearity in ("linear", "sigmoid"):
        return 1.0  # a gain of 1
    raise ArgumentError(f"nonlinearity {nonlinearity!r}: give 'leaky_relu', 'relu' or 'linear'")


def _done(tensor, status):
    check(status, tensor._ctx)
    return tensor


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element is `val`. Returns the tensor, as all functions here."""
    return _done(tensor, lib.gt_nn_init_constant(tensor._h, val))


def zeros_(tensor: Tensor) -> Tensor:
    """Every element is 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Every element is 1."""
    return constant_(tensor, 1.0)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """U[a, b)."""
    return _done(tensor, lib.gt_nn_init_uniform(tensor._h, a, b))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """N(mean, std^2)."""
    return _done(tensor, lib.gt_nn_init_normal(tensor._h, mean, std))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Glorot & Bengio 2010: U(-r, r), r = gain sqrt(6 / (fan_in + fan_out)). Fans are counted for shape [out, in, ...]."""
    return _done(tensor, lib.gt_nn_init_xavier_uniform(tensor._h, gain))


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Glorot & Bengio 2010: N(0, gain^2 2 / (fan_in + fan_out)). Fans are counted for shape [out, in, ...]."""
    return _done(tensor, lib.gt_nn_init_xavier_normal(tensor._h, gain))


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """He et al. 2015: U(-r, r), r = g sqrt(3 / fan). mode: "fan_in" or "fan_out"; nonlinearity: "relu", "leaky_relu" with slope `a` below 0, or "linear";
    g is its gain."""
    return _done(tensor, lib.gt_nn_init_kaiming_uniform(tensor._h, _slope(a, nonlinearity), _FANS[mode]))


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """He et al. 2015: N(0, g^2 / fan), with arguments as in kaiming_uniform_."""
    return _done(tensor, lib.gt_nn_init_kaiming_normal(tensor._h, _slope(a, nonlinearity), _FANS[mode]))


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """By what an activation of that name shrinks its input: 1 for "linear" and "sigmoid", 5/3 for "tanh", sqrt(2) for "relu"; for "leaky_relu" by its
    slope `param`, 0.01 by default."""
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2)}
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    return gains[nonlinearity]
