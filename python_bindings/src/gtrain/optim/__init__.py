"""Update rules, named and with defaults as in torch.optim. Learning-rate schedules are in optim.lr_scheduler."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Tuple

from .. import _api
from .._context import Owned
from .._errors import ArgumentError, NoGradientsError, check
from .._library import lib, options
from .._tensor import Tensor, handles
from . import lr_scheduler
from .schedule import Schedule


class _Group(dict):
    """One of `optimizer.param_groups`; writing "lr" reaches the library."""

    def __init__(self, part, values):
        super().__init__(values)
        self._part = part

    def __setitem__(self, key, value):
        if key == "lr":
            check(lib.gt_optimizer_set_learning_rate(self._part._live(), value))
        elif key in self and key not in ("initial_lr",):
            raise ArgumentError(f"param_groups: {key!r} cannot be changed once the optimizer is made; only 'lr' can")
        super().__setitem__(key, value)

    def update(self, *arguments, **named):
        for key, value in dict(*arguments, **named).items():
            self[key] = value


class _Part(Owned):
    """One optimizer of the library: the parameters of one group."""


class Optimizer:
    """Base of the update rules. `params`: tensors, or dictionaries {"params": …, "lr": …} with settings of their own. Never waits for the device."""

    _kind = None
    _fields = {}  # argument: field of the library's options

    def __init__(self, params: Any, defaults: Any) -> None:
        params = list(params)
        if not params:
            raise ArgumentError(f"{type(self).__name__}: there are no parameters")
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        self.defaults = defaults
        self.param_groups, self._parts = [], []
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: Any) -> None:
        values = {**self.defaults, **group}
        parameters = values["params"]
        values["params"] = parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        parameters = [p for p in parameters if p.requires_grad]
        if not parameters:
            raise ArgumentError(f"{type(self).__name__}: none of the parameters requires a gradient")
        o = options("gt_optimizer_options", self._kind)
        for name, value in values.items():
            if name == "params" or name == "name":
                continue
            if name == "betas":
                o.beta1, o.beta2 = value
            elif name in self._fields:
                setattr(o, self._fields[name], value)
            else:
                raise ArgumentError(f"{type(self).__name__} has no setting {name!r}")
        handle = ctypes.c_void_p()
        ctx = parameters[0]._ctx
        check(lib.gt_optimizer_create(ctypes.byref(o), handles(parameters), len(parameters), ctypes.byref(handle)), ctx)
        part = _Part()
        part._hold(handle.value, ctx, lib.gt_optimizer_destroy)
        self._parts.append(part)
        self.param_groups.append(_Group(part, values))
        self._ctx = ctx

    def _each(self, call):
        """Groups without a gradient are left out; if none has one, that is an error."""
        if len(self._parts) == 1:
            return check(call(self._parts[0]._live()), self._ctx)
        done = False
        for part in self._parts:
            status = call(part._live())
            if status == _api.GT_NO_GRADS:
                continue
            check(status, self._ctx)
            done = True
        if not done:
            raise NoGradientsError(f"{type(self).__name__}: no parameter of any group has a gradient")

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One update with the gradients that are there. A parameter without one is not moved."""
        loss = closure() if closure is not None else None
        self._each(lib.gt_optimizer_step)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            check(lib.gt_optimizer_zero_grad(part._live()))

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clips over all groups; returns the norm before, on the device."""
        from ..nn.utils import clip_grad_norm_

        return clip_grad_norm_([p for g in self.param_groups for p in g["params"]], max_norm)

    @property
    def lr(self) -> float:
        """The learning rate of the first group."""
        return lib.gt_optimizer_learning_rate(self._parts[0]._live())

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}: {len(group['params'])} tensors")
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join([*lines, ")"])


class SGD(Optimizer):
    _kind = _api.GT_OPTIMIZER_SGD
    _fields = {"lr": "learning_rate", "momentum": "momentum", "dampening": "dampening", "weight_decay": "weight_decay", "nesterov": "nesterov"}

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov))


class Adam(Optimizer):
    _kind = _api.GT_OPTIMIZER_ADAM
    _fields = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "weight_decay"}

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))


class AdamW(Adam):
    _kind = _api.GT_OPTIMIZER_ADAMW

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule", "lr_scheduler"]
