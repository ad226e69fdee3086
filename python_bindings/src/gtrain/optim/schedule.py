"""Schedules that the library applies by itself, in a trainer or an accumulation window, without a wait."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _api
from .._errors import check
from .._library import lib, options


class Schedule:
    """A learning rate as a function of the number of updates done; schedule(step) gives it. Made by one of the class methods, which
    set `kind`."""

    def __init__(self, kind: Any, **fields: Any) -> None:
        self._struct = options("gt_schedule", kind)
        for name, value in fields.items():
            setattr(self._struct, name, value)
        self(0)  # what does not fit is said at once

    @classmethod
    def constant(cls, lr: float, warmup_steps: int = 0) -> Schedule:
        """`lr` throughout, after warmup_steps updates in which it rises in a straight line."""
        return cls(_api.GT_SCHEDULE_CONSTANT, base=lr, warmup_steps=warmup_steps)

    @classmethod
    def step(cls, lr: float, step_size: int, gamma: float = 0.1, warmup_steps: int = 0) -> Schedule:
        """Times gamma every step_size updates."""
        return cls(_api.GT_SCHEDULE_STEP, base=lr, step_size=step_size, gamma=gamma, warmup_steps=warmup_steps)

    @classmethod
    def cosine(cls, lr: float, total_steps: Any, min_factor: float = 0.0, warmup_steps: int = 0) -> Schedule:
        """Half a cosine from lr to min_factor * lr over total_steps, warm-up included."""
        return cls(_api.GT_SCHEDULE_COSINE, base=lr, total_steps=total_steps, min_factor=min_factor, warmup_steps=warmup_steps)

    @classmethod
    def one_cycle(cls, max_lr: Any, total_steps: Any, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4) -> Schedule:
        """As torch's OneCycleLR with cosine annealing; momentum stays."""
        return cls(
            _api.GT_SCHEDULE_ONE_CYCLE, base=max_lr, total_steps=total_steps, pct_start=pct_start, div_factor=div_factor,
            final_div_factor=final_div_factor,
        )  # fmt: skip

    def __call__(self, step: Any) -> float:
        rate = ctypes.c_double()
        check(lib.gt_schedule_rate(ctypes.byref(self._struct), step, ctypes.byref(rate)))
        return rate.value
