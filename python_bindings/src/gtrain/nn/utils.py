"""Gradient clipping, as in torch.nn.utils."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _api
from .._errors import check
from .._library import lib, options
from .._tensor import Tensor, handles, wrap


def _with_optimizer(parameters, use):
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    parameters = [p for p in parameters if p.requires_grad]
    o = options("gt_optimizer_options", _api.GT_OPTIMIZER_SGD)
    handle = ctypes.c_void_p()
    check(lib.gt_optimizer_create(ctypes.byref(o), handles(parameters), len(parameters), ctypes.byref(handle)))
    try:
        return use(handle, parameters[0]._ctx)
    finally:
        lib.gt_optimizer_destroy(handle)


def clip_grad_norm_(parameters: Any, max_norm: float) -> Tensor:
    """Scales all gradients so that their global 2-norm is at most max_norm. Returns the norm before, a tensor on the device: nothing waits."""

    def clip(optimizer, ctx):
        norm = ctypes.c_void_p()
        check(lib.gt_optimizer_clip_grad_norm(optimizer, max_norm, ctypes.byref(norm)), ctx)
        return wrap(ctx, norm.value)

    return _with_optimizer(parameters, clip)


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clamps each element of the gradients to [-clip_value, clip_value]; NaN stays."""
    _with_optimizer(parameters, lambda optimizer, ctx: check(lib.gt_optimizer_clip_grad_value(optimizer, clip_value), ctx))
