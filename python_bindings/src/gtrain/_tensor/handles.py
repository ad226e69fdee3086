"""Python objects and the library's handles: each object owns one reference to a handle, and lets go of it when it goes."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Iterable, Optional, Tuple

from .._errors import failure
from .._library import lib

_new = object.__new__
_drop = lib.gt_tensor_drop

Tensor: Any = None  # the class of new objects; set by the package, which defines it


class Reference(weakref.ref):
    """Calls gt_tensor_drop(handle) when the tensor goes, on whatever thread. A __del__ would be Python code: an interrupt that comes while the library
    works would often be raised in it, and lost."""

    __slots__ = ("_as_parameter_",)
    _as_parameter_: Any


def wrap(ctx: Any, handle: Any, kind: Any = None) -> Any:
    """The Python object of a handle that a call has just returned; raises if it is NULL."""
    if handle is None:
        raise failure(ctx)
    if ctx._depth or ctx._garbage:
        ctx._adopt(handle)
    t = _new(Tensor if kind is None else kind)
    t._h = handle
    t._ctx = ctx
    r = Reference(t, _drop)
    r._as_parameter_ = handle
    references = ctx._references
    references.append(r)
    if len(references) > ctx._sweep_at:
        ctx._sweep()
    return t


def borrow(ctx: Any, handle: Any, kind: Any = None) -> Any:
    """The Python object of a handle that belongs to somebody else."""
    t = _new(Tensor if kind is None else kind)
    t._h = lib.gt_tensor_retain(handle)
    t._ctx = ctx
    r = Reference(t, _drop)
    r._as_parameter_ = handle
    ctx._references.append(r)
    return t


def handles(tensors: Iterable[Any]) -> Any:
    """A C array of handles. The tensors must be kept by the caller for the call."""
    tensors = list(tensors)
    return (ctypes.c_void_p * len(tensors))(*[t._h for t in tensors])


def shape_of(*shape: Any) -> Tuple[int, ...]:
    """f(2, 3) and f((2, 3)) alike, as a tuple of integers."""
    if len(shape) == 1 and not isinstance(shape[0], int) and hasattr(shape[0], "__iter__"):
        shape = shape[0]
    return tuple(map(_integer, shape))


def _integer(value: Any) -> int:
    return value.__index__() if hasattr(value, "__index__") else int(value)


_ONE_AXIS = ctypes.c_int32 * 1


def axes_of(dim: Any) -> Tuple[Optional[Any], int]:
    """Axes as a C array and its length; none at all for every axis."""
    if dim is None:
        return None, 0
    if isinstance(dim, int):
        return _ONE_AXIS(dim), 1
    dim = tuple(dim)
    return (ctypes.c_int32 * len(dim))(*dim), len(dim)
