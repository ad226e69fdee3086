"""Making tensors. `device` is "cpu", "cuda", "cuda:1", a Context, or None for the default one."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Iterable

import numpy as np

from . import _dtypes
from ._context import context_for
from ._dtypes import as_dtype
from ._errors import ArgumentError, DtypeError
from ._library import lib
from ._tensor import Tensor, handles, shape_of, wrap

if TYPE_CHECKING:
    from ._typing import DeviceLike, DtypeLike


def _finish(t, requires_grad):
    if requires_grad:
        t.requires_grad = True
    return t


def _from_array(array, kind, ctx):
    array = np.asarray(array, order="C")  # ascontiguousarray would give a number an axis
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    own = _dtypes._BY_NUMPY.get(array.dtype)
    if own is None:
        if array.dtype.kind in "iu":
            array, own = array.astype(np.int64), _dtypes.int64
        elif array.dtype.kind == "f":
            array, own = array.astype(np.float64), _dtypes.float64
        else:
            raise DtypeError(f"an array of {array.dtype} has no counterpart among the tensors' dtypes")
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    if kind is not None and kind is not own and kind.numpy is not None and array.size < 1 << 16:
        array, own = array.astype(kind.numpy), kind
    t = wrap(ctx, lib.gt_tensor_from_data(ctx._live(), own.code, array.ndim, shape, array.ctypes.data, array.nbytes))
    return t if kind is None or kind is own else t.to(kind)


def tensor(data: Any, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested lists, NumPy arrays, tensors. Python's floats become float32."""
    kind = None if dtype is None else as_dtype(dtype)
    ctx = context_for(device)
    if isinstance(data, Tensor):
        t = data.detach().clone() if data._ctx is ctx else copy_to(data.detach(), ctx)
        return _finish(t if kind is None else t.to(kind), requires_grad)
    array = np.asarray(data)
    if kind is None and not isinstance(data, (np.ndarray, np.generic)) and array.dtype == np.float64:
        array = array.astype(np.float32)
    return _finish(_from_array(array, kind, ctx), requires_grad)


def from_numpy(array: np.ndarray, *, device: DeviceLike = None) -> Tensor:
    """A copy of an array. gt.from_dlpack(array) shares its memory on the CPU."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy takes a NumPy array, not a {type(array).__name__}")
    return _from_array(array, None, context_for(device))


def as_tensor(data: Any, *, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
    """`data` itself if it is a tensor already, else a new one."""
    if isinstance(data, Tensor):
        return data if dtype is None and device is None else data.to(dtype=dtype, device=device)
    return tensor(data, dtype=dtype, device=device)


def copy_to(t: Any, ctx: Any) -> Tensor:
    """A tensor on another device, through the host."""
    raw = np.empty(t.nbytes, np.uint8)
    from ._errors import check

    check(lib.gt_tensor_read(t._h, raw.ctypes.data, raw.nbytes), t._ctx)
    return _from_raw(raw, t.shape, t.dtype, ctx)


def _from_raw(raw, shape, kind, ctx):
    return wrap(ctx, lib.gt_tensor_from_data(ctx._live(), kind.code, len(shape), (ctypes.c_int64 * len(shape))(*shape), raw.ctypes.data, raw.nbytes))


def rebuild(cls, raw: Any, shape: Any, kind: Any, requires_grad: bool) -> Tensor:
    """Unpickles a tensor onto the default device."""
    t = _from_raw(np.frombuffer(raw, np.uint8), shape, kind, context_for(None))
    if cls is not Tensor:
        return cls(t, requires_grad)
    return _finish(t, requires_grad)


def _make(function, shape, dtype, device, requires_grad, *extra):
    ctx = context_for(device)
    shape = shape_of(*shape)
    kind = _dtypes.float32 if dtype is None else as_dtype(dtype)
    return _finish(wrap(ctx, function(ctx._live(), kind.code, len(shape), (ctypes.c_int64 * len(shape))(*shape), *extra)), requires_grad)


def empty(*shape: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of that shape (numbers, or one tuple) whose elements are whatever was in memory."""
    return _make(lib.gt_tensor_empty, shape, dtype, device, requires_grad)


def zeros(*shape: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of that shape (numbers, or one tuple) of zeros."""
    return _make(lib.gt_tensor_zeros, shape, dtype, device, requires_grad)


def ones(*shape: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of that shape (numbers, or one tuple) of ones."""
    return _make(lib.gt_tensor_full, shape, dtype, device, requires_grad, 1.0)


def full(shape: Any, fill_value: float, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """A tensor of that shape with every element `fill_value`. dtype: float32 by default, int64 for a Python integer."""
    if dtype is None and isinstance(fill_value, int):
        dtype = _dtypes.int64
    return _make(lib.gt_tensor_full, (shape,), dtype, device, requires_grad, float(fill_value))


def rand(*shape: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1)."""
    return _make(lib.gt_tensor_uniform, shape, dtype, device, requires_grad, 0.0, 1.0)


def randn(*shape: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Normal with mean 0 and standard deviation 1."""
    return _make(lib.gt_tensor_normal, shape, dtype, device, requires_grad, 0.0, 1.0)


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
    """start, start + step, … up to but without `end`; arange(n) counts from 0. dtype: int64 by default, float32 if one of the numbers is a float."""
    if end is None:
        start, end = 0, start
    if step == 0:
        raise ArgumentError("arange: the step is 0")
    kind = as_dtype(dtype) if dtype is not None else (_dtypes.float32 if any(isinstance(v, float) for v in (start, end, step)) else _dtypes.int64)
    ctx = context_for(device)
    count = max(0, int(np.ceil((end - start) / step)))
    return wrap(ctx, lib.gt_tensor_arange(ctx._live(), kind.code, float(start), float(step), count))


def _like(function):
    def like(t, *, dtype=None, device=None, requires_grad=False):
        return function(t.shape, dtype=t.dtype if dtype is None else dtype, device=t._ctx if device is None else device, requires_grad=requires_grad)

    like.__name__ = function.__name__ + "_like"
    like.__doc__ = f"{function.__name__} with another tensor's shape, dtype and device."
    return like


empty_like, zeros_like, ones_like, rand_like, randn_like = map(_like, (empty, zeros, ones, rand, randn))


def full_like(t: Any, fill_value: float, *, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
    """`fill_value` throughout, with another tensor's shape, dtype and device."""
    return full(t.shape, fill_value, dtype=t.dtype if dtype is None else dtype, device=t._ctx if device is None else device)


def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors one behind the other along axis `dim`, in their common dtype. Their other axes are equally long."""
    tensors = list(tensors)
    if not tensors:
        raise ArgumentError("cat: no tensors")
    kind = tensors[0].dtype
    for t in tensors[1:]:
        kind = _dtypes.promote(kind, t.dtype)
    tensors = [t.to(kind) for t in tensors]
    return wrap(tensors[0]._ctx, lib.gt_concat(handles(tensors), len(tensors), dim))


def stack(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors, of one shape, along a new axis `dim` of the result."""
    tensors = list(tensors)
    if not tensors:
        raise ArgumentError("stack: no tensors")
    return cat([t.unsqueeze(dim) for t in tensors], dim if dim >= 0 else tensors[0].ndim + 1 + dim)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """[...] integer labels to [..., num_classes] float32, 1 at the label."""
    table = tensor(np.eye(num_classes, dtype=np.float32), device=labels._ctx)
    return table[labels]
