"""Compiled steps: a whole update as one program, whose memory is planned, and which runs again without Python or the host computing anything on the way.

    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)
    for x, y in loader:
        loss = step(x, y)

The function is called once for each new set of input shapes, and traced. What it does then is what every run does: what varies must come in as an input;
numbers, and tensors of its own, are constants; reading a value is a StateError, as there are none yet. The results are those of the same calls without a
step: to the bit on the CPU.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Dict, Optional, Tuple, Union

from . import _api
from ._context import Callback, Owned, context_for, finish
from ._dtypes import as_dtype
from ._errors import ArgumentError, carry, check
from ._library import lib, options
from ._tensor import Tensor, borrow, wrap
from .window import WindowState

_run = lib.gt_step_run
_loss = lib.gt_step_loss
_output = lib.gt_step_output


class Step(Owned):
    """step(x, y, …) runs forward, backward and update of `optimizer` (or a list of them) on what `function(x, y, …)` returns: the loss, the mean over the
    inputs' rows as one number; or a tuple of the loss and further tensors to look at. It returns the same: the loss over all micro-batches, outputs joined
    along axis 0 (those without axes added up). Without an optimizer all that the function returns are outputs, and nothing requires a gradient; a Module may
    be the function.

    What is returned is overwritten by the next run: float(loss) or loss.clone() keeps it. Never waits, but for the first runs of a shape.

    module: whose batch-norm statistics and counters move with the step, and whose training mode chooses between programs; give it whenever the function uses
    one. scaler: an amp.GradScaler. schedule: an optim.Schedule, by updates done; without one the optimizer's "lr" counts, which may be changed between runs.
    micro_batches: the inputs are cut along axis 0 into so many parts, whose gradients are accumulated. memory_budget: bytes for weights, optimizer state and
    all that a run makes; what does not fit is computed again in backward, and with micro_batches 0 there may be more of them. offload: some may also
    wait in the host's memory. clip_norm, clip_value: of the true gradients. fuse_elementwise: elementwise ops that follow each other, and a sum or mean at their
    end, in one pass over memory; None: yes, but on CUDA not in deterministic contexts. autocast: float16 or bfloat16, for a function that runs in such a
    region. context: of a step without optimizer and module.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        optimizer: Any = None,
        *,
        module: Any = None,
        scaler: Any = None,
        schedule: Any = None,
        micro_batches: int = 1,
        memory_budget: int = 0,
        offload: bool = False,
        clip_norm: float = 0.0,
        clip_value: float = 0.0,
        autocast: Any = None,
        context: Any = None,
        fuse_elementwise: Optional[bool] = None,
    ) -> None:
        if not callable(function):
            raise ArgumentError(f"Step: {type(function).__name__} is not a function")
        if module is None and hasattr(function, "_tree"):
            module = function
        optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        parts = [p for o in optimizers for p in o._parts]
        ctx = optimizers[0]._ctx if optimizers else module._ctx if module is not None else context_for(context)
        o = options("gt_step_options")
        this = weakref.ref(self)  # what the library keeps does not keep the step
        self._function = function
        self._function_c = o.fn = _api.gt_step_fn(lambda user, inputs, count, result: this()._trace(inputs, count, result))
        self._borrows = (optimizers, module, scaler)
        self._updates, self._several = bool(parts), micro_batches != 1
        array = (ctypes.c_void_p * len(parts))(*[p._live() for p in parts])
        o.micro_batches, o.optimizers, o.n_optimizers, o.memory_budget = micro_batches, array, len(parts), memory_budget
        o.offload = bool(offload)
        o.module = None if module is None else module._h
        o.scaler = None if scaler is None or not scaler.is_enabled() else scaler._live()
        if schedule is not None:
            o.schedule = ctypes.pointer(schedule._struct)
        o.fuse_elementwise = 0 if fuse_elementwise is None else 1 if fuse_elementwise else -1
        o.clip_norm, o.clip_value = clip_norm or 0.0, clip_value or 0.0
        if autocast is not None:
            o.autocast = as_dtype(autocast).code
        self._arrays: Dict[int, Any] = {}  # one for each number of inputs
        self._results: Dict[int, Tensor] = {}  # by handle, which each keeps alive
        self._n_outputs, self._is_tuple = 0, False
        handle = ctypes.c_void_p()
        check(lib.gt_step_create(ctx._live(), ctypes.byref(o), ctypes.byref(handle)), ctx)
        self._hold(handle.value, ctx, lib.gt_step_destroy)

    def _trace(self, inputs, count, result):
        """What the library calls to see what the step is to do."""
        try:
            ctx, tensors, items = self._ctx, None, None
            with Callback(ctx):
                value = self._function(*[borrow(ctx, inputs[i]) for i in range(count)])
                found = list(value) if isinstance(value, (tuple, list)) else [value]
                for i, tensor in enumerate(found):
                    if not isinstance(tensor, Tensor):
                        which = f" as number {i}" if len(found) > 1 else ""
                        raise TypeError(f"the function of a Step returned {type(tensor).__name__}{which}, not a tensor")
                if len(found) - self._updates > _api.GT_STEP_MAX_OUTPUTS or not found:
                    most = _api.GT_STEP_MAX_OUTPUTS
                    raise ArgumentError(f"the function of a Step returned {len(found)} tensors; it may be up to {most} besides the loss")
                if self._updates and self._several:
                    h = lib.gt_cross_entropy_valid(found[0]._h)  # None: the loss is not a cross entropy's, and counts its rows
                    items = None if h is None else wrap(ctx, h)
                tensors, self._is_tuple, value = found, isinstance(value, (tuple, list)), None
            if tensors is None:
                return _api.GT_CALLBACK
            # Held by the library's scope, which outlives the Python objects.
            handles = [self._keep(ctx, t) for t in tensors]
            if items is not None:
                result.contents.items = self._keep(ctx, items)
            if self._updates:
                result.contents.loss = handles.pop(0)
            for i, h in enumerate(handles):
                result.contents.outputs[i] = h
            self._n_outputs = len(handles)
            return _api.GT_OK
        except BaseException as error:
            carry(error)
            return _api.GT_CALLBACK

    @staticmethod
    def _keep(ctx, tensor):
        check(lib.gt_scope_begin(ctx._h))
        return lib.gt_scope_return(ctx._h, tensor._h)

    def __call__(self, *inputs: Tensor) -> Union[Tensor, Tuple[Tensor, ...]]:
        h, ctx, n = self._h, self._ctx, len(inputs)
        if h not in ctx._owned:
            self._live()
        if ctx._garbage and not ctx._depth:
            ctx._drain()
        array = self._arrays.get(n)
        if array is None:
            array = self._arrays[n] = (ctypes.c_void_p * n)()
        i = 0
        try:
            for x in inputs:
                array[i] = x._h
                i += 1
        except AttributeError:
            raise TypeError(f"Step: input {i} is {type(inputs[i]).__name__}, not a tensor") from None
        depth, thread = ctx._depth, ctx._thread
        status = _run(h, array, n)
        if status:
            # Ctrl-C may have come between two steps of the callback's entry.
            ctx._depth, ctx._thread = depth, thread
            self._fail(status)
        if not self._n_outputs:
            return self._result(_loss(h))
        found = tuple([self._result(_output(h, i)) for i in range(self._n_outputs)])
        if self._updates:
            return (self._result(_loss(h)),) + found
        return found if self._is_tuple else found[0]

    def _result(self, handle):
        known = self._results.get(handle)
        if known is None:
            if handle is None:  # Ctrl-C came in the callback's first bytecode, and nothing was traced
                lib.gt_step_reset(self._h)
                raise KeyboardInterrupt
            if len(self._results) > 256:  # of programs that are gone
                self._results.clear()
            known = self._results[handle] = borrow(self._ctx, handle)
        return known

    def _fail(self, status):
        if status == _api.GT_BAD_ARGUMENT and b"gave no loss" in (lib.gt_last_error().contents.message or b""):
            raise KeyboardInterrupt  # as above
        finish(status, self._ctx)

    def _text(self, function, *arguments):
        needed, handle = ctypes.c_size_t(), self._live()
        check(function(handle, *arguments, None, 0, ctypes.byref(needed)), self._ctx)
        buffer = ctypes.create_string_buffer(needed.value)
        check(function(handle, *arguments, buffer, len(buffer), None), self._ctx)
        return buffer.value.decode()

    def describe(self, graphviz: bool = False) -> str:
        """The program that ran last, one line an instruction, and its memory; or as a graph for Graphviz's dot."""
        return self._text(lib.gt_step_describe, _api.GT_STEP_GRAPHVIZ if graphviz else _api.GT_STEP_TEXT)

    def budget(self) -> str:
        """What was chosen for the program that ran last so that it keeps to memory_budget, and what each choice has bought."""
        return self._text(lib.gt_step_budget_text)

    def reset(self) -> None:
        """Forgets the programs: for a module whose layers, dtype or parts' training modes were changed."""
        self._results.clear()
        check(lib.gt_step_reset(self._live()), self._ctx)

    @property
    def state(self) -> WindowState:
        """A WindowState: updates, skipped, gradient_norm, learning_rate. Waits for the device."""
        struct = options("gt_window_state")
        check(lib.gt_step_get_state(self._live(), ctypes.byref(struct)), self._ctx)
        return WindowState(struct)

    def close(self) -> None:
        """Frees the programs and their memory now instead of when the object goes."""
        self._results = {}
        super().close()


__all__ = ["Step"]
