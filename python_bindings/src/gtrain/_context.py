"""Contexts: one device with its streams, its memory and its random state; and what becomes of the handles that Python objects own."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from . import _api
from ._errors import ArgumentError, ForkedError, StateError, carried, carry, check, failure
from ._library import lib, options
from ._log import Log, deliver, logger

if TYPE_CHECKING:
    from ._typing import DeviceLike

_get_ident = threading.get_ident


def _parse_device(device):
    """ "cuda:1" to (kind, 1)."""
    name, _, index = str(device).partition(":")
    kinds = {"auto": _api.GT_DEVICE_AUTO, "cpu": _api.GT_DEVICE_CPU, "cuda": _api.GT_DEVICE_CUDA, "gpu": _api.GT_DEVICE_CUDA}
    if name not in kinds or (index and not index.isdigit()):
        raise ArgumentError(f"device {device!r}: give 'auto', 'cpu', 'cuda' or 'cuda:<number>'")
    return kinds[name], int(index or 0)


class Context:
    """A device, opened. Tensors and modules made from it keep it open.

    device: "auto" (a GPU where one works, else the CPU), "cpu", "cuda", "cuda:1". memory_limit: bytes of device memory that may be reserved, 0 for
    no limit. workspace_limit: most bytes of scratch memory an op may use to be faster; None leaves the choice to the library. threads: for CPU
    kernels, 0 for all. seed: of the random numbers. deterministic: same seed, same bits, on the same device and library versions. allow_tf32: float32
    products and convolutions may round their inputs to TF32 on GPUs. log: called with a level (as in `logging`) and a text by the next call
    that returns a status; the default goes to the logger "gtrain".

    A context, and everything made from it, is used by one thread at a time. `with context:` makes it the default inside the block, and moves
    it to the thread that runs the block.
    """

    def __init__(
        self,
        device: DeviceLike = "auto",
        *,
        memory_limit: int = 0,
        workspace_limit: Optional[int] = None,
        seed: int = 0,
        deterministic: bool = False,
        allow_tf32: bool = True,
        threads: int = 0,
        log: Optional[Callable[[int, str], None]] = None,
    ) -> None:
        self._h = None
        self._depth = 0  # callbacks of the library that are running: their results belong to a scope
        self._references: List[Any] = []  # weak, to this context's tensors: they let go of the handles
        self._sweep_at = 4096
        self._garbage: List[Any] = []  # (function, handle) of objects that went on another thread
        self._owned: Dict[Any, Any] = {}  # handle: destroy function; in order of creation, which is the reverse of destruction
        self._exports = 0  # arrays of others that look at our memory
        self._parameters = None
        self._thread = _get_ident()
        self._pid = os.getpid()
        self._entered: List[Any] = []
        self.memory = _memory_view(self)
        o = options("gt_context_options")
        o.device, o.device_index = _parse_device(device)
        o.memory_limit = int(memory_limit)
        if workspace_limit is not None:
            o.workspace_limit = int(workspace_limit)
        o.seed, o.deterministic, o.allow_tf32, o.cpu_threads = int(seed), bool(deterministic), bool(allow_tf32), int(threads)
        self._log = Log(log)
        self._log.attach(o)
        handle = ctypes.c_void_p()
        status = lib.gt_context_create(ctypes.byref(o), ctypes.byref(handle))
        if status:
            error = failure(None, status)
            self._log.detach()
            raise error
        self._h = handle.value
        self._is_cuda = lib.gt_context_device(self._h) == _api.GT_DEVICE_CUDA
        self._index = o.device_index if self._is_cuda else 0
        _register(self)

    @property
    def device(self) -> str:
        """ "cpu", or "cuda:0"."""
        return f"cuda:{self._index}" if self._is_cuda else "cpu"

    @property
    def device_name(self) -> str:
        """What the device calls itself: "NVIDIA H200 (cuda:0)", "CPU (16 threads, oneDNN 3.2)"."""
        return lib.gt_context_device_name(self._live()).decode()

    @property
    def stream(self) -> Optional[int]:
        """The address of the CUDA stream on which ops run; None on the CPU."""
        return lib.gt_context_stream(self._live())

    @property
    def closed(self) -> bool:
        """Whether close() was called; its tensors are inert then."""
        return self._h is None

    def synchronize(self) -> None:
        """Waits until everything issued so far has run, and raises what only the device knew."""
        check(lib.gt_context_synchronize(self._live()), self)

    def set_memory_limit(self, limit: int) -> None:
        """Bytes of device memory that may be reserved; 0: no limit."""
        check(lib.gt_context_set_memory_limit(self._live(), int(limit)))

    def set_workspace_limit(self, limit: int) -> None:
        """Most bytes of scratch memory an op may use to be faster; None: the library chooses."""
        check(lib.gt_context_set_workspace_limit(self._live(), _api.GT_WORKSPACE_AUTO if limit is None else int(limit)))

    def manual_seed(self, seed: int) -> Context:
        """Begins the random numbers of that seed (64 bits); returns the context."""
        check(lib.gt_random_seed(self._live(), int(seed) & 0xFFFFFFFFFFFFFFFF))
        return self

    def get_rng_state(self) -> Tuple[int, int]:
        """(seed, offset): setting them back continues the random numbers exactly."""
        seed, offset = ctypes.c_uint64(), ctypes.c_uint64()
        check(lib.gt_random_state_get(self._live(), ctypes.byref(seed), ctypes.byref(offset)))
        return seed.value, offset.value

    def set_rng_state(self, state: Any) -> None:
        """Continues the random numbers where get_rng_state() found them: (seed, offset)."""
        check(lib.gt_random_state_set(self._live(), *map(int, state)))

    def close(self) -> None:
        """Waits for the device and frees it. Tensors that are left become inert. Nothing to do for a closed context."""
        if self._h is None:
            return
        if self._exports:
            raise StateError(f"{self!r} cannot be closed: {self._exports} arrays of other libraries still use its memory")
        if self._depth:
            raise StateError(f"{self!r} cannot be closed by one of its own callbacks")
        self._destroy()

    def _destroy(self):
        if os.getpid() == self._pid:
            for handle in reversed(list(self._owned)):
                self._owned.pop(handle)(handle)
            self._drain()
            handle, self._h = self._h, None
            lib.gt_context_destroy(handle)
            self._log.detach()
        else:
            # After a fork the loaders' threads are the parent's: what is left goes with the process.
            self._h = None
        _contexts.pop(id(self), None)

    def __del__(self) -> Any:
        try:
            if self._h is not None and not self._exports:
                self._destroy()
        except Exception:  # the interpreter is going
            pass

    def __enter__(self) -> Context:
        self._entered.append(self._thread)
        self._thread = _get_ident()
        _stack().append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _stack().remove(self)
        self._thread = self._entered.pop()

    def __repr__(self) -> str:
        return f"<gtrain.Context {'closed' if self._h is None else self.device_name}>"

    def _live(self):
        if self._h is None:
            raise StateError("the context is closed")
        return self._h

    # --- handles

    def _drain(self):
        """Lets go of what other threads left."""
        garbage = self._garbage
        while garbage:
            function, handle = garbage.pop()
            function(handle)

    def _sweep(self):
        """Forgets the references of tensors that are gone."""
        self._references[:] = [r for r in self._references if r() is not None]
        self._sweep_at = max(4096, 2 * len(self._references))

    def _adopt(self, handle):
        """Inside a callback a new handle belongs to the callback's scope. Makes it the Python object's own: what Python lets go of is then
        free at once, as it is outside."""
        if self._garbage and self._depth == 0:
            self._drain()
        if self._depth:
            lib.gt_tensor_retain(handle)
            lib.gt_scope_end(self._h)
            lib.gt_scope_begin(self._h)

    def _own(self, handle, destroy):
        self._owned[handle] = destroy

    def _disown(self, handle):
        """Destroys an object, now or, from another thread, as soon as the context's thread comes by."""
        destroy = self._owned.pop(handle, None)
        if destroy is None or os.getpid() != self._pid:
            return
        if _get_ident() == self._thread:
            destroy(handle)
        else:
            self._garbage.append((destroy, handle))


class Owned:
    """An object of the library that is destroyed with its Python object, or before its context."""

    _h: Any = None
    _ctx: Any = None

    def _hold(self, handle, ctx, destroy):
        self._h, self._ctx = handle, ctx
        ctx._own(handle, destroy)

    def close(self) -> None:
        """Frees it now. It cannot be used any more."""
        handle, self._h = self._h, None
        if handle is not None:
            self._ctx._disown(handle)

    def __del__(self) -> Any:
        try:
            self.close()
        except Exception:  # the interpreter is going
            pass

    def _live(self):
        if self._h is None:
            raise StateError(f"this {type(self).__name__} is closed")
        if self._h not in self._ctx._owned:
            raise StateError(f"this {type(self).__name__} belongs to a closed context")
        return self._h


class Callback:
    """Entered by every callback that may run ops: results belong to a scope of their own, and an exception is kept for the call that runs it."""

    __slots__ = ("ctx", "thread")

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def __enter__(self) -> Any:
        ctx = self.ctx
        self.thread, ctx._thread = ctx._thread, _get_ident()
        check(lib.gt_scope_begin(ctx._h))
        ctx._depth += 1

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        ctx = self.ctx
        ctx._depth -= 1
        lib.gt_scope_end(ctx._h)
        ctx._thread = self.thread
        if error is not None:
            carry(error)
        return True


class Deferred:
    """Entered by callbacks that must not call the library with this context: objects that go meanwhile wait. (Tensors always do, until the next op.)"""

    __slots__ = ("ctx", "thread")

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def __enter__(self) -> Any:
        self.thread, self.ctx._thread = self.ctx._thread, None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        self.ctx._thread = self.thread
        if error is not None:
            carry(error)
        return True


def finish(status: Any, ctx: Any) -> Any:
    """After a call that runs callbacks: raises what they raised, whatever became of the call."""
    if status:
        raise failure(ctx, status)
    raised = carried()
    if raised is not None:
        raise raised
    deliver()


def _memory_view(ctx):
    from .memory import Memory

    return Memory(ctx)


# --- the default context ------------------------------------------------------------------------------------------------------------------

_contexts: Dict[int, Any] = {}  # id: weak reference, for the end of the process
_by_device: Dict[Any, Any] = {}  # opened by name
_default = None
_local = threading.local()


def _stack():
    try:
        return _local.stack
    except AttributeError:
        _local.stack = []
        return _local.stack


def _register(ctx):
    import weakref

    _contexts[id(ctx)] = weakref.ref(ctx)


def default_context() -> Context:
    """The context of the innermost `with context:`, else that of set_device or set_default_context, else of the device in GTRAIN_DEVICE ("auto")."""
    stack = getattr(_local, "stack", None)
    if stack:
        return stack[-1]
    global _default
    if _default is None or _default._h is None:
        _default = context_for(os.environ.get("GTRAIN_DEVICE") or "auto")
    return _default


def set_default_context(ctx: Any) -> Context:
    """What is made without naming a context or device is made there from now on, on all threads."""
    global _default
    _default = ctx
    return ctx


def set_device(device: DeviceLike) -> Context:
    """Makes a device the default: "cpu", "cuda", "cuda:1", "auto"."""
    return set_default_context(context_for(device))


def context_for(device: DeviceLike) -> Context:
    """The context of a device, a context itself, or None for the default one."""
    if device is None:
        return default_context()
    if isinstance(device, Context):
        return device
    name = str(device)
    kind, index = _parse_device(name)
    ctx = default_context() if _default is not None or getattr(_local, "stack", None) else None
    if ctx is not None and ctx._h is not None and kind != _api.GT_DEVICE_AUTO and (ctx._is_cuda, ctx._index) == (kind == _api.GT_DEVICE_CUDA, index):
        return ctx
    key = (kind, index if kind == _api.GT_DEVICE_CUDA else 0)
    ctx = _by_device.get(key)
    if ctx is None or ctx._h is None:
        ctx = _by_device[key] = Context(name)
    return ctx


def cuda_is_available() -> bool:
    """Whether a GPU can be used; opens it."""
    from ._errors import Error

    try:
        return context_for("cuda")._is_cuda
    except Error:
        return False


def manual_seed(seed: int) -> Context:
    """Seeds the default context's random numbers."""
    return default_context().manual_seed(seed)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything issued on a device so far has run, and raises what only the device knew."""
    context_for(device).synchronize()


def _close_all():
    """At exit, while the interpreter is whole: worker threads end, devices are closed. Memory that others still look at is left to the system."""
    for reference in list(_contexts.values()):
        ctx = reference()
        if ctx is None or ctx._h is None:
            continue
        try:
            if ctx._exports:
                for handle in reversed(list(ctx._owned)):
                    ctx._owned.pop(handle)(handle)
            elif ctx._depth == 0:
                ctx._destroy()
        except Exception:
            logger.debug("closing %r at exit", ctx, exc_info=True)


def check_process(ctx: Any, what: Any) -> Any:
    if os.getpid() != ctx._pid:
        raise ForkedError(f"{what} belongs to the parent process of a fork; its threads do not live here. Make a new one in the child")


atexit.register(_close_all)
