"""What device memory is used for, and what to do when it runs out.

The functions of this module speak of the default context; `context.memory` offers the same for any other.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from . import _api
from ._errors import carry, check
from ._library import lib, options

CATEGORIES = tuple(lib.gt_memory_category_name(c).decode() for c in range(_api.GT_MEMORY_CATEGORY_COUNT))


# The library's texts name its own functions.
_NAMES = {
    "gt_offload_begin": "gt.offload", "gt_autocast_begin": "gt.amp.autocast", "gt_context_set_workspace_limit to 0": "context.set_workspace_limit(0)",
    "gt_memory_last_oom has all": "the exception's report has all",
}  # fmt: skip


def spoken(text: str) -> str:
    """A text of the library with the names that Python has for its functions."""
    for name, here in _NAMES.items():
        text = text.replace(name, here)
    return text


def _size(n):
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024:
            break
        n, unit = n / 1024, {"bytes": "KiB", "KiB": "MiB", "MiB": "GiB"}[unit]
    return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.2f} {unit}"


@dataclass(frozen=True)
class Stats:
    """All in bytes; in_use + cached = reserved. `categories`, `categories_at_peak` and `category_peaks` are dictionaries by the category's name."""

    in_use: int
    cached: int
    reserved: int
    peak_in_use: int
    peak_reserved: int
    allocations: int
    device_allocations: int
    limit: int
    frees: int
    retries: int
    out_of_memory: int
    segments: int
    largest_free: int
    steps: int
    step_peak: int
    last_step_peak: int
    fragmentation: float
    categories: dict
    categories_at_peak: dict
    category_peaks: dict

    def __str__(self) -> str:
        lines = [f"in use {_size(self.in_use)}, cached {_size(self.cached)}, reserved {_size(self.reserved)}, peak {_size(self.peak_in_use)}"]
        lines += [f"  {name:<32} {_size(n):>12}" for name, n in self.categories.items() if n]
        return "\n".join(lines)

    def _repr_html_(self):
        from ._html import stats_html

        return stats_html(self)


@dataclass(frozen=True)
class Remedy:
    """One thing that can be done. `kind`: "MICRO_BATCH", "CHECKPOINT" …; `bytes` that it takes off the moment that failed; `enough`: with it alone the
    step is estimated to fit; `subject` and `cost` in words."""

    kind: str
    subject: str
    cost: str
    bytes: int
    need: int
    enough: bool
    micro_batch: int
    accumulation: int
    depth: int
    segments: int
    limit: int
    process: int
    count: int
    target: str

    @property
    def call(self) -> str:
        """What to write, or "" where it is no matter of one call: `net` is the outermost module, `optimizer` the one in use."""
        if self.kind == "MICRO_BATCH":
            return f"gt.accumulate(optimizer, {self.accumulation})"
        if self.kind == "CHECKPOINT" and self.segments:
            return (f"net.get_submodule({self.target!r})" if self.target else "net") + f".set_segments({self.segments})"
        if self.kind == "CHECKPOINT" and self.depth == 1:
            return "for module in net.children(): module.checkpointing = True"
        if self.kind == "CHECKPOINT":
            return f"for name, module in net.named_modules(): module.checkpointing |= name.count('.') == {self.depth - 1}"
        if self.kind == "HALF_PRECISION":
            return "with gt.amp.autocast(): ..."
        if self.kind == "OFFLOAD":
            return f"with gt.offload({self.limit}): ..."
        if self.kind == "WORKSPACE_LIMIT":
            return f"context.set_workspace_limit({self.limit})"
        if self.kind == "RAISE_LIMIT":
            return f"gt.memory.set_limit({self.limit})"
        return ""


class Report:
    """Who holds the memory, why a request failed, and what can be done, ranked by the bytes that each would free. str() is the text, `data` the whole as
    in the library's JSON."""

    requested: int
    rounded: int
    step: int
    device_total: int
    device_free: int
    ours: int
    others: int
    here: int
    limit: int
    in_use: int
    cached: int
    reserved: int
    largest_free: int
    largest_possible: int
    peak_in_use: int
    last_step_peak: int
    saved: int
    graphs: int
    batch: int
    layers: int
    layers_run: int
    growth: int
    op: str
    module: str
    phase: str

    def __init__(self, ctx: Any, struct: Any) -> None:
        self._ctx = ctx
        self.text = spoken(_written(lib.gt_oom_report_text, struct, _api.GT_OOM_TEXT_SIZE))
        self.json = _written(lib.gt_oom_report_json, struct, 16384)
        self.data = json.loads(self.json)
        self.cause = lib.gt_oom_cause_name(struct.cause).decode()
        for name in ("requested", "rounded", "step", "device_total", "device_free", "ours", "others", "here", "limit", "in_use", "cached", "reserved"):
            setattr(self, name, getattr(struct, name))
        for name in ("largest_free", "largest_possible", "peak_in_use", "last_step_peak", "saved", "graphs", "batch", "layers", "layers_run", "growth"):
            setattr(self, name, getattr(struct, name))
        for name in ("op", "module", "phase"):
            setattr(self, name, (getattr(struct, name) or b"").decode())
        self.shape = tuple(struct.shape[: struct.ndim]) if struct.ndim >= 0 else None
        self.categories = dict(zip(CATEGORIES, struct.category_in_use))
        self.category_peaks = dict(zip(CATEGORIES, struct.category_peak))
        self.remedies = tuple(_remedy(struct.remedies[i]) for i in range(struct.n_remedies))
        self.groups = tuple(_group(struct.groups[i]) for i in range(struct.n_groups))
        self.holders = tuple((h.process, h.bytes) for h in struct.holders[: struct.n_holders])

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<gtrain.memory.Report {self.cause}: {_size(self.requested)} asked by {self.op or '?'}, {_size(self.in_use)} in use>"

    def _repr_html_(self):
        from ._html import report_html

        return report_html(self)


@dataclass(frozen=True)
class Group:
    """Live memory of one op in one module."""

    op: str
    module: str
    category: str
    bytes: int
    largest: int
    count: int
    shape: Optional[tuple]


def _group(g):
    shape = tuple(g.shape[: g.ndim]) if g.ndim >= 0 else None
    return Group((g.op or b"").decode(), (g.module or b"").decode(), CATEGORIES[g.category], g.bytes, g.largest, g.count, shape)


def _remedy(r):
    numbers = {n: getattr(r, n) for n in ("bytes", "need", "micro_batch", "accumulation", "depth", "segments", "limit", "process", "count")}
    texts = {n: getattr(r, n).decode(errors="replace") for n in ("subject", "cost", "target")}
    texts["subject"] = spoken(texts["subject"])
    return Remedy(kind=lib.gt_oom_remedy_name(r.kind).decode(), enough=bool(r.enough), **numbers, **texts)


def _written(function, struct, size):
    needed = ctypes.c_size_t()
    while True:
        buffer = ctypes.create_string_buffer(size)
        check(function(ctypes.byref(struct), buffer, size, ctypes.byref(needed)))
        if needed.value <= size:
            return buffer.value.decode(errors="replace")
        size = needed.value


def last_out_of_memory(ctx: Any) -> Any:
    """The report of the last request that failed, or None."""
    if ctx._h is None:
        return None
    struct = options("gt_oom_report")
    status = lib.gt_memory_last_oom(ctx._h, ctypes.byref(struct))
    if status == _api.GT_NOT_FOUND:
        return None
    check(status)
    return Report(ctx, struct)


class Memory:
    """The memory of one context: `context.memory`."""

    def __init__(self, ctx: Any) -> None:
        import weakref

        self._ref = weakref.ref(ctx)
        self._observer: Any = None

    @property
    def _ctx(self):
        return self._ref()

    def stats(self) -> Stats:
        """A Stats: bytes in use, cached and reserved, by category, their peaks, and counts. Never waits."""
        s = options("gt_memory_stats")
        check(lib.gt_memory_get_stats(self._ctx._live(), ctypes.byref(s)))
        plain = {n: getattr(s, n) for n in Stats.__dataclass_fields__ if not n.startswith("categor")}
        named = [dict(zip(CATEGORIES, a)) for a in (s.category_in_use, s.category_at_peak, s.category_peak)]
        return Stats(**plain, categories=named[0], categories_at_peak=named[1], category_peaks=named[2])

    def report(self) -> Report:
        """The present state, with remedies as if memory were short now. Slow: it asks the driver."""
        struct = options("gt_oom_report")
        check(lib.gt_memory_report(self._ctx._live(), ctypes.byref(struct)), self._ctx)
        return Report(self._ctx, struct)

    def last_out_of_memory(self) -> Optional[Report]:
        """The report of the last request that failed, or None."""
        return last_out_of_memory(self._ctx)

    def reset_peak(self) -> None:
        """The peaks begin again at what is in use now."""
        check(lib.gt_memory_reset_peak(self._ctx._live()))

    def trim(self) -> None:
        """Gives cached memory back to the device. Waits for it."""
        check(lib.gt_memory_trim(self._ctx._live()))

    def next_step(self) -> None:
        """Ends a step for the figures of steps; an optimizer's update does so by itself."""
        check(lib.gt_memory_next_step(self._ctx._live()))

    def set_limit(self, limit: int) -> None:
        """Bytes of device memory that may be reserved; 0: no limit."""
        self._ctx.set_memory_limit(limit)

    def set_history(self, events: int) -> None:
        """How many of the latest allocator events are kept; those kept before are forgotten."""
        check(lib.gt_memory_set_history(self._ctx._live(), int(events)))

    def snapshot(self, path: Any) -> None:
        """Writes all that the allocator knows as JSON."""
        check(lib.gt_memory_snapshot(self._ctx._live(), os.fsencode(path)))

    def timeline(self, path: Any) -> None:
        """Writes one HTML page that shows memory over time by category, with each block's life."""
        check(lib.gt_memory_timeline(self._ctx._live(), os.fsencode(path)))

    def viz(self, path: Any) -> None:
        """Writes the pickle that pytorch.org/memory_viz reads."""
        check(lib.gt_memory_viz(self._ctx._live(), os.fsencode(path)))

    def set_observer(self, function: Any) -> None:
        """`function(report)` is called before a request fails. If it made memory free and returns true, the request is tried again. It must not run
        ops. None: no observer."""
        ctx = self._ctx
        ref: Any = self._ref

        def call(user, handle, report):
            try:
                again = function(Report(ref(), report.contents))
                ref().memory.stats()  # lets go of tensors that Python has dropped
                return 1 if again else 0
            except BaseException as error:
                carry(error)
                return 0

        callback = _api.gt_memory_oom_fn(call) if function is not None else _api.gt_memory_oom_fn()
        check(lib.gt_memory_set_oom_observer(ctx._live(), callback, None))
        self._observer = callback


def _on_default(name):
    def call(*arguments, context=None):
        from ._context import context_for

        return getattr(context_for(context).memory, name)(*arguments)

    call.__name__ = name
    call.__doc__ = getattr(Memory, name).__doc__
    return call


stats, report, reset_peak, trim, next_step = map(_on_default, ("stats", "report", "reset_peak", "trim", "next_step"))
set_limit, set_history, snapshot, timeline, viz, set_observer = map(_on_default, ("set_limit", "set_history", "snapshot", "timeline", "viz", "set_observer"))
