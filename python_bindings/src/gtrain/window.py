"""Gradient accumulation: K micro-batches make a window, and a window makes one update.

    with gt.accumulate(optimizer, 4, module=net) as window:
        for x, y in loader:
            with window.micro_batch() as micro:
                micro.backward(F.cross_entropy(net(x), y))

The gradient of a window is the mean over its valid items. The last, short window counts too. A micro-batch that fails takes the window back to its
start: nothing has changed, and the window can be repeated.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _api
from ._context import Owned, finish
from ._errors import ArgumentError, StateError, check
from ._library import lib, options
from ._signals import held
from ._tensor import wrap

_STATUS = {_api.GT_WINDOW_NONE: "none", _api.GT_WINDOW_UPDATED: "updated", _api.GT_WINDOW_SKIPPED: "skipped", _api.GT_WINDOW_EMPTY: "empty"}


class WindowState:
    """status of the last window ("updated", "skipped", "empty", "none"), updates, skipped, empty, items, gradient_norm, learning_rate, micro_batches."""

    status: str
    updates: int
    skipped: int
    empty: int
    items: float
    gradient_norm: float
    learning_rate: float
    micro_batches: int

    def __init__(self, struct: Any) -> None:
        self.status = _STATUS[struct.status]
        for name in ("updates", "skipped", "empty", "items", "gradient_norm", "learning_rate", "micro_batches"):
            setattr(self, name, getattr(struct, name))

    def __repr__(self) -> str:
        return "WindowState(" + ", ".join(f"{k}={v!r}" for k, v in self.__dict__.items()) + ")"


class _MicroBatch:
    def __init__(self, window):
        self._window = window
        self._done = False

    def __enter__(self):
        check(lib.gt_window_micro_begin(self._window._live()), self._window._ctx)
        return self

    def backward(self, loss, items=None):
        """`loss` is the mean over `items` valid items. Without `items`, the loss is a cross entropy's, which knows its own. The K-th updates."""
        if self._done:
            raise StateError("this micro-batch has had its backward")
        window, ctx = self._window, self._window._ctx
        valid = None
        if items is None:
            h = lib.gt_cross_entropy_valid(loss._h)
            if h is None:
                raise ArgumentError("micro.backward: give `items`, the number that the loss is a mean over; only a cross entropy's own result knows it")
            valid = wrap(ctx, h)
        self._done = True
        with held():
            status = lib.gt_window_micro_end(window._live(), loss._h, float(items or 0.0), None if valid is None else valid._h)
        finish(status, ctx)
        return loss

    def __exit__(self, kind, error, trace):
        if self._done:
            return
        self._window.cancel()
        if error is None:
            raise StateError("a micro-batch ended without micro.backward(loss); its window was given up")


class Window(Owned):
    """Accumulates over `micro_batches` micro-batches. module: whose batch-norm statistics go back when a window fails. schedule: an optim.Schedule, by the
    number of updates done. optimizers: one or several, updated together. scaler: a GradScaler. clip_norm, clip_value: of the true gradients."""

    def __init__(
        self,
        optimizers: Any,
        micro_batches: int = 1,
        *,
        module: Any = None,
        scaler: Any = None,
        schedule: Any = None,
        clip_norm: float = 0.0,
        clip_value: float = 0.0,
    ) -> None:
        optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        parts = [p for o in optimizers for p in o._parts]
        o = options("gt_window_options")
        array = (ctypes.c_void_p * len(parts))(*[p._live() for p in parts])
        o.micro_batches, o.optimizers, o.n_optimizers = micro_batches, array, len(parts)
        o.module = None if module is None else module._h
        o.scaler = None if scaler is None or not scaler.is_enabled() else scaler._live()
        if schedule is not None:
            o.schedule = ctypes.pointer(schedule._struct)
        o.clip_norm, o.clip_value = clip_norm or 0.0, clip_value or 0.0
        handle = ctypes.c_void_p()
        check(lib.gt_window_create(ctypes.byref(o), ctypes.byref(handle)))
        self._borrows = (optimizers, module, scaler)
        self._hold(handle.value, optimizers[0]._ctx, lib.gt_window_destroy)

    def micro_batch(self) -> _MicroBatch:
        """`with window.micro_batch() as micro:` around forward and micro.backward(loss)."""
        return _MicroBatch(self)

    def flush(self) -> None:
        """Updates with what the open window has: at an epoch's end."""
        check(lib.gt_window_flush(self._live()), self._ctx)

    def cancel(self) -> None:
        """Back to the window's start."""
        check(lib.gt_window_cancel(self._live()), self._ctx)

    def set_micro_batches(self, micro_batches: int) -> None:
        """How many micro-batches make a window from now on. StateError inside one."""
        check(lib.gt_window_set_micro_batches(self._live(), micro_batches))

    def set_updates(self, updates: int) -> None:
        """Continues a schedule."""
        check(lib.gt_window_set_updates(self._live(), updates))

    @property
    def state(self) -> WindowState:
        """A WindowState. Waits for the device."""
        struct = options("gt_window_state")
        check(lib.gt_window_get_state(self._live(), ctypes.byref(struct)), self._ctx)
        return WindowState(struct)

    def __enter__(self) -> Window:
        self._live()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self.flush()
            elif self._h is not None and not self._ctx.closed:
                self.cancel()
        finally:
            self.close()


def accumulate(optimizers: Any, micro_batches: int, **settings: Any) -> Window:
    """A Window for a `with` block: its last, short window is flushed at the end, and an exception gives the open window up."""
    return Window(optimizers, micro_batches, **settings)


__all__ = ["Window", "WindowState", "accumulate"]
