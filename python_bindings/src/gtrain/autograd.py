"""Regions without gradients, recomputation, offload, and ops of your own."""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any, Dict, Iterable, List

import numpy as np

from . import _api
from ._context import Callback, Deferred, _contexts, context_for, finish
from ._dtypes import BY_CODE, as_dtype
from ._errors import ArgumentError, carry, check
from ._library import lib, library, options
from ._signals import callbacks, held
from ._tensor import Tensor, borrow, handles, wrap


class _Special:
    """`with` looks __enter__ and __exit__ up and then calls what it found. Here that is a function of the library itself: Ctrl-C comes before the call or after
    it, never in the middle, so that no region is left open."""

    def __init__(self, name, find):
        self._name, self._find = name, find

    def __get__(self, region, cls):
        if region is None:
            return lambda region, *exception: self._find(region)(*exception)  # as contextlib.ExitStack calls it
        return self._find(region)


def _ending(name):
    """The library's end function as an __exit__: what `with` passes is nothing to it, and its 0 lets exceptions through."""
    return ctypes.CFUNCTYPE(_api.gt_status, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.py_object)((name, library))


class _Region:
    """A context manager, and a decorator, between a begin and an end of the library. May be entered again."""

    _end: Any = None
    _exit: Any

    def __init__(self, context=None):
        self._context = context

    def _begin(self, handle):
        """The call that begins the region."""
        raise NotImplementedError

    def _find_enter(self):
        handle = context_for(self._context)._live()
        self._exit = functools.partial(self._end, handle)
        return self._begin(handle)

    __enter__ = _Special("__enter__", _find_enter)
    __exit__ = _Special("__exit__", lambda self: self._exit)

    def __call__(self, function):
        @functools.wraps(function)
        def inside(*arguments, **named):
            with self:
                return function(*arguments, **named)

        return inside


class no_grad(_Region):
    """Nothing is recorded inside: `with gt.no_grad():` or `@gt.no_grad()`. Of the default context, or of `context`."""

    _end = _ending("gt_no_grad_end")

    def __new__(cls, function: Any = None, context: Any = None) -> Any:
        self = super().__new__(cls)
        if callable(function):  # @gt.no_grad without parentheses
            no_grad.__init__(self)
            return self(function)
        return self

    def __init__(self, function: Any = None, context: Any = None) -> None:
        super().__init__(context if context is not None else function)

    def _begin(self, handle):
        return functools.partial(lib.gt_no_grad_begin, handle)


inference_mode = no_grad


def is_grad_enabled(context: Any = None) -> bool:
    """Whether operations are recorded now in the default context, or in `context`."""
    return bool(lib.gt_grad_enabled(context_for(context)._live()))


class offload(_Region):
    """Inside (of the default context, or of `context`), tensors of at least `min_bytes` that ops save for backward move to the host until backward needs them."""

    _end = _ending("gt_offload_end")

    def __init__(self, min_bytes: int = 1 << 20, context: Any = None) -> None:
        super().__init__(context)
        self.min_bytes = min_bytes

    def _begin(self, handle):
        return functools.partial(lib.gt_offload_begin, handle, self.min_bytes)


def backward(tensors: Iterable[Tensor], grad_tensors: Any = None, retain_graph: bool = False) -> None:
    """Backward from several tensors at once."""
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    gradients = None
    if grad_tensors is not None:
        grad_tensors = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
        gradients = (ctypes.c_void_p * len(tensors))(*[None if g is None else g._h for g in grad_tensors])
    if not tensors:
        raise ArgumentError("backward: no tensors")
    with held():
        status = lib.gt_backward_from(handles(tensors), gradients, len(tensors), bool(retain_graph))
    finish(status, tensors[0]._ctx)


# --- what lives as long as a record ---------------------------------------------------------------------------------------------------------

_kept: Dict[int, Any] = {}  # number: Python object that a record of ops uses
_numbers = itertools.count(1)
_finished: List[int] = []  # numbers of objects whose records are gone


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _let_go(number):
    # Called while the library frees tensors: nothing but a note may be made of it.
    _finished.append(number)


def _tidy():
    while _finished:
        _kept.pop(_finished.pop(), None)


def _anchor(ctx, thing):
    """An empty tensor with which `thing` goes: handed to an op as an input, it is kept by the op's record. And its number."""
    number = next(_numbers)
    _kept[number] = thing
    try:
        handle = lib.gt_tensor_from_memory(ctx._live(), _api.GT_DTYPE_F32, 1, (ctypes.c_int64 * 1)(0), None, None, _let_go, number)
        _tidy()
        return wrap(ctx, handle), number
    except BaseException:
        _kept.pop(number, None)
        raise


# --- checkpointing --------------------------------------------------------------------------------------------------------------------------


class _Segment:
    __slots__ = ("ctx", "function", "arguments", "places", "named", "single", "count")
    ctx: Any
    function: Any
    arguments: Any
    places: Any
    named: Any
    single: bool
    count: int


@_api.gt_checkpoint_fn
def _run_segment(number, inputs, outputs):
    try:
        segment = _kept[number]
        ctx = segment.ctx
        status = _api.GT_CALLBACK
        results = []
        with Callback(ctx):
            arguments = list(segment.arguments)
            for i, place in enumerate(segment.places):
                arguments[place] = borrow(ctx, inputs[i])
            result = segment.function(*arguments, **segment.named)
            segment.single = isinstance(result, Tensor)
            results = [result] if segment.single else list(result)
            if len(results) > _api.GT_CHECKPOINT_MAX_OUTPUTS:
                raise ArgumentError(f"checkpoint: {len(results)} outputs; at most {_api.GT_CHECKPOINT_MAX_OUTPUTS} are allowed")
            segment.count = len(results)
            status = _api.GT_OK
        # Outside the callback's own scope: the outputs belong to the one around it.
        if status == _api.GT_OK:
            for i, r in enumerate(results):
                if r is not None:
                    outputs[i] = _hand_over(ctx, r)
        return status
    except BaseException as error:
        carry(error)
        return _api.GT_CALLBACK


def _hand_over(ctx, tensor):
    """A result of Python's for the library's innermost scope: it holds the tensor when Python no longer does."""
    check(lib.gt_scope_begin(ctx._h))
    return lib.gt_scope_return(ctx._h, tensor._h)


def checkpoint(function: Any, *arguments: Any, use_reentrant: Any = None, **named: Any) -> Any:
    """function(*arguments, **named), of which only the tensors among the arguments are kept: backward computes it again, with the same random
    numbers, in the same precision. Returns what the function does: a tensor, or a tuple of at most 8 (None among them stays None)."""
    places = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
    if not places:
        raise ArgumentError("checkpoint: there is no tensor among the arguments")
    ctx = arguments[places[0]]._ctx
    segment = _Segment()
    segment.ctx, segment.function, segment.named, segment.places = ctx, function, named, places
    segment.arguments = [None if isinstance(a, Tensor) else a for a in arguments]
    segment.single, segment.count = True, 0
    anchor, number = _anchor(ctx, segment)
    inputs = [arguments[i] for i in places] + [anchor]
    n = _api.GT_CHECKPOINT_MAX_OUTPUTS
    outputs = (ctypes.c_void_p * n)()
    callbacks.used = True
    with held():
        status = lib.gt_checkpoint(ctx._live(), _run_segment, number, handles(inputs), len(inputs), outputs, n)
    finish(status, ctx)
    results = tuple(None if h is None else wrap(ctx, h) for h in outputs[: segment.count])
    return results[0] if segment.single else results


# --- ops of your own --------------------------------------------------------------------------------------------------------------------------


class Array:
    """What an op's callbacks get: a plain, row-major array on the device. On the CPU `numpy()` is a NumPy array on its memory (of uint16 bits for
    bfloat16); anywhere it can be taken without a copy by DLPack or, on a GPU, `__cuda_array_interface__`. Valid during the call."""

    def __init__(self, array: Any, ctx: Any, stream: Any) -> None:
        self.shape = tuple(array.shape[: array.ndim])
        self.dtype = BY_CODE[array.dtype]
        self.data = array.data or 0
        self.stream = stream
        self._ctx = ctx

    @property
    def numel(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def numpy(self) -> np.ndarray:
        """On the CPU the array itself, on its memory; elements of bfloat16 as their bits in uint16. ArgumentError on a GPU."""
        if self._ctx._is_cuda:
            raise ArgumentError("an array on a GPU has no NumPy view; take it by DLPack or __cuda_array_interface__")
        kind = self.dtype.numpy or np.dtype(np.uint16)
        if not self.numel:
            return np.empty(self.shape, kind)
        buffer: Any = (ctypes.c_char * (self.numel * kind.itemsize)).from_address(self.data)
        return np.frombuffer(buffer, kind).reshape(self.shape)

    @property
    def __cuda_array_interface__(self) -> Any:
        if not self._ctx._is_cuda:
            raise AttributeError("__cuda_array_interface__")
        kind = self.dtype.numpy or np.dtype(np.uint16)
        return {"shape": self.shape, "typestr": kind.str, "data": (self.data, False), "version": 3, "stream": self.stream or 1}

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        from ._dlpack import export_memory

        return export_memory(self.data, self.shape, None, self.dtype, self._ctx, max_version, None)

    def __dlpack_device__(self) -> Any:
        from ._dlpack import device_of_context

        return device_of_context(self._ctx)


class CustomOp:
    """An op of your own, by callbacks that compute on raw arrays.

        def forward(inputs, outputs):            # autograd.Array each
            np.exp(inputs[0].numpy(), out=outputs[0].numpy())

        def backward(inputs, outputs, output_grads, input_grads):   # input_grads[i] is None where no gradient is wanted
            input_grads[0].numpy()[...] = output_grads[0].numpy() * outputs[0].numpy()

        exp = gt.CustomOp("exp", forward, backward)
        y = exp(x)

    name: for messages and reports. n_outputs: 1 to 3. shape(shapes, dtypes) returns a list of (shape, dtype) for the outputs; without it every output is like the first input. saves_inputs,
    saves_outputs: whether backward reads them. On a GPU the callbacks queue their work on the stream of the arrays and must not wait. They must not
    use gtrain with the same context. What they raise is raised by the call that ran them. An op lives as long as the process: make it once.
    """

    def __init__(
        self, name: str, forward: Any, backward: Any = None, *, shape: Any = None, n_outputs: Any = 1, saves_inputs: Any = True, saves_outputs: Any = True
    ) -> None:
        self.name, self._forward, self._backward, self._shape, self.n_outputs = name, forward, backward, shape, n_outputs
        o = options("gt_custom_op_options")
        o.n_outputs, o.name, o.saves_inputs, o.saves_outputs = n_outputs, name.encode(), bool(saves_inputs), bool(saves_outputs)
        o.forward = _api.gt_custom_fn(self._run_forward)
        if backward is not None:
            o.backward = _api.gt_custom_fn(self._run_backward)
        if shape is not None:
            o.shape = _api.gt_custom_shape_fn(self._run_shape)
        self._options = o
        _ops.append(self)

    def __call__(self, *inputs: Any) -> Any:
        if not inputs:
            raise ArgumentError(f'op "{self.name}": no inputs')
        ctx = inputs[0]._ctx
        outputs = (ctypes.c_void_p * 3)()
        o = type(self._options).from_buffer_copy(self._options)
        o.user = id(ctx)
        callbacks.used = True
        with held():
            status = lib.gt_custom_op_call(ctypes.byref(o), handles(inputs), len(inputs), outputs)
        finish(status, ctx)
        results = tuple(wrap(ctx, h) for h in outputs[: self.n_outputs])
        return results[0] if self.n_outputs == 1 else results

    def _arrays(self, pointer, count, call, ctx):
        return [Array(pointer[i], ctx, call.stream) for i in range(count)]

    def _run_forward(self, call):
        status = _api.GT_CALLBACK
        call = call.contents
        ctx = _context_of(call)
        with Deferred(ctx):
            self._forward(self._arrays(call.inputs, call.n_inputs, call, ctx), self._arrays(call.outputs, call.n_outputs, call, ctx))
            status = _api.GT_OK
        return status

    def _run_backward(self, call):
        call = call.contents
        ctx = _context_of(call)
        status = _api.GT_CALLBACK
        with Deferred(ctx):
            inputs = self._arrays(call.inputs, call.n_inputs, call, ctx)
            outputs = self._arrays(call.outputs, call.n_outputs, call, ctx)
            output_grads = self._arrays(call.output_grads, call.n_outputs, call, ctx)
            grads = self._arrays(call.input_grads, call.n_inputs, call, ctx)
            grads = [g if g.data or (g.numel == 0) else None for g in grads]
            self._backward(inputs, outputs, output_grads, grads)
            status = _api.GT_OK
        return status

    def _run_shape(self, call, ndim, shape, dtype):
        status = _api.GT_CALLBACK
        try:
            call = call.contents
            arrays = [call.inputs[i] for i in range(call.n_inputs)]
            found = self._shape([tuple(a.shape[: a.ndim]) for a in arrays], [BY_CODE[a.dtype] for a in arrays])
            found = list(found)
            if len(found) != self.n_outputs:
                raise ArgumentError(f'op "{self.name}": its shape callback gave {len(found)} outputs, not {self.n_outputs}')
            for i, (sizes, kind) in enumerate(found):
                ndim[i], dtype[i] = len(sizes), as_dtype(kind).code
                for axis, n in enumerate(sizes):
                    shape[i * _api.GT_MAX_DIMS + axis] = n
            status = _api.GT_OK
        except BaseException as error:
            carry(error)
        return status


_ops: List[Any] = []  # records use an op's callbacks for as long as they live


def _context_of(call):
    return _contexts[call.user]()
