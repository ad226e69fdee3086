"""Mixed precision: autocast regions and loss scaling, named and with defaults as in torch.amp."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import _api
from ._context import Owned, context_for
from ._dtypes import BY_CODE, as_dtype, bfloat16, float16
from ._errors import ArgumentError, DtypeError, StateError, check
from ._library import lib, options
from ._tensor import wrap
from .autograd import _ending, _Region

if TYPE_CHECKING:
    from ._typing import DeviceLike, DtypeLike

_STATUS = {
    _api.GT_SCALER_IDLE: "idle",
    _api.GT_SCALER_STEPPED: "stepped",
    _api.GT_SCALER_SKIPPED: "skipped",
    _api.GT_SCALER_STUCK_AT_FLOOR: "stuck at floor",
}


class autocast(_Region):
    """Inside, matrix products and convolutions run in `dtype` (float16 or bfloat16), what needs the range in float32. A context manager and a
    decorator; `device_type` is accepted as in PyTorch and names the context ("cuda", "cpu", or a Context). enabled=False switches a region around
    it off."""

    _end = _ending("gt_autocast_end")

    def __init__(self, device_type: DeviceLike = None, dtype: DtypeLike = float16, enabled: bool = True, context: Any = None) -> None:
        super().__init__(context if context is not None else device_type)
        self.dtype, self.enabled = as_dtype(dtype), enabled
        if enabled and self.dtype not in (float16, bfloat16):
            raise DtypeError(f"autocast: {self.dtype.name}; give float16 or bfloat16")

    def _begin(self, handle):
        if self.enabled:
            return functools.partial(lib.gt_autocast_begin, handle, self.dtype.code)
        return functools.partial(lib.gt_autocast_disable, handle)


def get_autocast_dtype(context: Any = None) -> Any:
    """float16 or bfloat16 inside a region, float32 outside."""
    return BY_CODE[lib.gt_autocast_dtype(context_for(context)._live())]


def autocast_policy(op: Any) -> str:
    """What autocast does with an op of that name ("conv2d"): "none", "half", "f32" or "promote"."""
    return ("none", "half", "f32", "promote")[lib.gt_autocast_policy(op.encode())]


class ScalerState:
    """What was read from the device together: status, scale, growth_count, updates, skipped, skipped_in_row, the parameter whose gradient was not finite
    when an update was last skipped, and (diagnose=True) the op and module whose output was first not finite in that window."""

    status: str
    scale: float
    growth_count: int
    updates: int
    skipped: int
    skipped_in_row: int
    parameter: str
    op: str
    module: str
    op_backward: bool

    def __init__(self, struct: Any) -> None:
        self.status = _STATUS[struct.status]
        for name in ("scale", "growth_count", "updates", "skipped", "skipped_in_row"):
            setattr(self, name, getattr(struct, name))
        for name in ("parameter", "op", "module"):
            setattr(self, name, (getattr(struct, name) or b"").decode())
        self.op_backward = bool(struct.op_backward)

    def __repr__(self) -> str:
        return "ScalerState(" + ", ".join(f"{k}={v!r}" for k, v in self.__dict__.items()) + ")"

    def _repr_html_(self) -> str:
        from ._html import scaler_html

        return scaler_html(self)


class GradScaler(Owned):
    """Keeps small gradients from vanishing in float16. The scale and the decision to skip stay on the device: nothing waits unless asked for.

    init_scale: the scale at first. It is multiplied by growth_factor after growth_interval updates without an overflow, by backoff_factor after one, and stays between
    floor (default 2^-14) and cap (2^24); with dynamic=False it stays as it is. enabled=False: all calls pass through. device: whose scaler it is.
    diagnose: also look for the first op whose output was not finite; slow.
    """

    def __init__(
        self, device: DeviceLike = None, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True, *, floor: Optional[float] = None, cap: Optional[float] = None,
        dynamic: bool = True, diagnose: bool = False,
    ) -> None:  # fmt: skip
        self._enabled = enabled
        if not enabled:
            return
        ctx = context_for(device)
        o = options("gt_scaler_options")
        o.scale, o.growth, o.backoff, o.growth_interval = init_scale, growth_factor, backoff_factor, growth_interval
        o.dynamic, o.diagnose = bool(dynamic), bool(diagnose)
        if floor is not None:
            o.floor = floor
        if cap is not None:
            o.cap = cap
        handle = ctypes.c_void_p()
        check(lib.gt_scaler_create(ctx._live(), ctypes.byref(o), ctypes.byref(handle)))
        self._hold(handle.value, ctx, lib.gt_scaler_destroy)

    @classmethod
    def _borrowed(cls, handle, ctx, owner):
        """The scaler that a trainer made."""
        self: Any = cls.__new__(cls)
        self._enabled, self._h, self._ctx, self._owner = True, handle, ctx, owner
        self._live = lambda: (owner._live(), handle)[1]
        self.close = lambda: None
        return self

    def is_enabled(self) -> bool:
        """Whether it scales at all: `enabled` as it was made."""
        return self._enabled

    def scale(self, loss: Any) -> Any:
        """loss * scale in float32, as an op; its backward belongs before the next update(). The loss itself where the scaler is not enabled."""
        if not self._enabled:
            return loss
        return wrap(loss._ctx, lib.gt_scaler_scale(self._live(), loss._h))

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients by the scale, so that they can be clipped."""
        if self._enabled:
            optimizer._each(lambda part: lib.gt_scaler_unscale(self._live(), part))

    def step(self, optimizer: Any) -> Any:
        """optimizer.step() with unscaled gradients, left out where one of them is not finite."""
        if not self._enabled:
            return optimizer.step()
        optimizer._each(lambda part: lib.gt_scaler_step(self._live(), part))

    def update(self) -> None:
        """After the last optimizer's step: the scale falls by `backoff_factor` if a step was skipped, and grows by `growth_factor` after
        `growth_interval` updates without one. Never waits."""
        if self._enabled:
            check(lib.gt_scaler_update(self._live()), self._ctx)

    @property
    def state(self) -> ScalerState:
        """A ScalerState. Waits for the device."""
        if not self._enabled:
            raise StateError("this GradScaler is not enabled")
        struct = options("gt_scaler_state")
        check(lib.gt_scaler_get_state(self._live(), ctypes.byref(struct)), self._ctx)
        return ScalerState(struct)

    def get_scale(self) -> float:
        """Waits for the device."""
        return self.state.scale if self._enabled else 1.0

    def state_dict(self) -> Dict[str, Any]:
        """scale, growth_count, updates, skipped and skipped_in_row as numbers; {} where the scaler is not enabled. Waits for the device."""
        if not self._enabled:
            return {}
        s = self.state
        return {n: getattr(s, n) for n in ("scale", "growth_count", "updates", "skipped", "skipped_in_row")}

    def load_state_dict(self, state: Any) -> None:
        """Goes on from a state_dict of this class, or of PyTorch's GradScaler, whose scale and count of updates since it grew are taken over. The factors
        stay. Waits for the device."""
        if not self._enabled:
            return
        struct = options("gt_scaler_state")
        check(lib.gt_scaler_get_state(self._live(), ctypes.byref(struct)), self._ctx)
        if "_growth_tracker" in state:  # PyTorch's, which counts nothing else
            state = {"scale": state.get("scale"), "growth_count": state["_growth_tracker"], "updates": 0, "skipped": 0, "skipped_in_row": 0}
        names = ("scale", "growth_count", "updates", "skipped", "skipped_in_row")
        missing = [name for name in names if state.get(name) is None]
        if missing:
            raise ArgumentError(f"GradScaler.load_state_dict: missing in the state: {', '.join(missing)}")
        for name in names:
            setattr(struct, name, state[name])
        check(lib.gt_scaler_set_state(self._live(), ctypes.byref(struct)), self._ctx)
