"""Update rules: SGD, Adam and AdamW, with the parameters in groups."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .. import _api
from .._context import Owned
from .._errors import ArgumentError, NoGradientsError, check
from .._library import lib, options
from .._tensor import Tensor, handles


class _Group(Dict[str, Any]):
    """One of `optimizer.param_groups`; writing "lr" reaches the library."""

    def __init__(self, part: _Part, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._part = part

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            check(lib.gt_optimizer_set_learning_rate(self._part._live(), value))
        elif key in self and key not in ("initial_lr",):
            raise ArgumentError(f"param_groups: {key!r} cannot be changed once the optimizer is made; only 'lr' can")
        super().__setitem__(key, value)

    def update(self, *arguments: Any, **named: Any) -> None:
        for key, value in dict(*arguments, **named).items():
            self[key] = value


class _Part(Owned):
    """One optimizer of the library: the parameters of one group."""


class Optimizer:
    """Base of the update rules. `params`: tensors, or dictionaries {"params": …, "lr": …} with settings of their own. Never waits for the device.

    defaults: the settings of groups that do not have their own.

    `param_groups` has one dictionary a group: "params" and the settings. Of these "lr" may be changed at any time; the others are set for good."""

    _kind: int
    _fields: Dict[str, str] = {}  # argument: field of the library's options
    _counts_steps = False  # whether a state has "step", as PyTorch's has for this rule

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        params = list(params)
        if not params:
            raise ArgumentError(f"{type(self).__name__}: there are no parameters")
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        self.defaults = defaults
        self.param_groups: List[_Group] = []
        self._parts: List[_Part] = []
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Trains more parameters: {"params": tensors}, and settings where they differ from the optimizer's defaults."""
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

    def _each(self, call: Callable[[Any], Any]) -> Any:
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
        """One update with the gradients that are there. A parameter without one is not moved. `closure` is called first; what it returns is returned."""
        loss = closure() if closure is not None else None
        self._each(lib.gt_optimizer_step)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of all parameters: `.grad` is None afterwards, whatever `set_to_none` is."""
        for part in self._parts:
            check(lib.gt_optimizer_zero_grad(part._live()))

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scales the gradients of all groups so that their global 2-norm is at most max_norm; returns the norm before, on the device."""
        from ..nn.utils import clip_grad_norm_

        return clip_grad_norm_([p for g in self.param_groups for p in g["params"]], max_norm)

    @property
    def lr(self) -> float:
        """The learning rate of the first group; assigned to, that of every group."""
        return lib.gt_optimizer_learning_rate(self._parts[0]._live())

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def _state_names(self, group: Mapping[str, Any]) -> Tuple[str, ...]:
        """The state tensors of a parameter of that group, by PyTorch's names."""
        return ()

    def state_dict(self, names: bool = False) -> Dict[str, Any]:
        """What the optimizer keeps, laid out as torch.optim does it: {"state": {…}, "param_groups": […]}. Parameters are known by their number, counted over all
        groups, or with names=True by their name ("0.weight"). Waits for the device.

        "state" has, for each parameter that has been updated, "exp_avg", "exp_avg_sq" (both of the parameter's shape) and "step" (a float32 scalar, updates so
        far) for Adam and AdamW, "momentum_buffer" for SGD with momentum, and "master", the float32 copy of a half-precision parameter. As in PyTorch these are
        the optimizer's own tensors, which the next step changes: clone() them to keep their values, and do not write to them.
        """
        from ._state import read

        return read(self, names)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state_dict of this class or of torch.optim's class of that name; tensors may be ours, PyTorch's or NumPy arrays. Parameters are matched
        by their order, or by their names where the state has names. A parameter without an entry begins anew. The learning rates are taken over; all other
        settings must be those that the optimizer was made with.

        ArgumentError lists all that does not fit, one line each, and has it as `mismatches`, pairs of a name and a text; nothing is loaded then. StateError inside
        an accumulation window. Load a half-precision module before its optimizer: writing a parameter replaces the master copy. Waits for the device.
        """
        from ._state import load

        load(self, state)

    def close(self) -> None:
        """Frees the optimizer's state on the device now. It cannot be used any more."""
        for part in self._parts:
            part.close()

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}: {len(group['params'])} tensors")
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join([*lines, ")"])


class SGD(Optimizer):
    """Gradient descent: w -= lr * g, with g + weight_decay * w as gradient. With momentum, b = momentum * b + (1 - dampening) * g takes the gradient's place (from the
    second update on; the first is b = g); with nesterov, g + momentum * b. As torch.optim.SGD."""

    _kind = _api.GT_OPTIMIZER_SGD
    _fields = {"lr": "learning_rate", "momentum": "momentum", "dampening": "dampening", "weight_decay": "weight_decay", "nesterov": "nesterov"}

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov))

    def _state_names(self, group: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()


class Adam(Optimizer):
    """Kingma & Ba 2015, with bias correction; weight_decay * w is added to the gradient. `betas` are the decay rates of the two moments, `eps` is added to the root of the
    second. As torch.optim.Adam."""

    _kind = _api.GT_OPTIMIZER_ADAM
    _fields = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "weight_decay"}
    _counts_steps = True

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def _state_names(self, group: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")


class AdamW(Adam):
    """Loshchilov & Hutter 2019: Adam whose weight decay shrinks the weight by lr * weight_decay * w instead of going through the moments. As torch.optim.AdamW."""

    _kind = _api.GT_OPTIMIZER_ADAMW

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
