"""Tensors. Each Python object owns one reference to a handle of the library; the memory goes when the last of them goes and backward needs it no more."""

from __future__ import annotations

import builtins
import ctypes
import math
import weakref
from collections import namedtuple
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Tuple

import numpy as np

from . import _api, _dtypes
from ._context import context_for, finish
from ._dtypes import BY_CODE, as_dtype
from ._errors import ArgumentError, DtypeError, NotSupportedError, ShapeError, StateError, check, failure
from ._library import lib
from ._signals import callbacks, held

if TYPE_CHECKING:
    from ._context import Context
    from ._typing import DeviceLike, Dim, DtypeLike, TensorLike

_new = object.__new__
_drop = lib.gt_tensor_drop
_add, _sub, _mul, _div = lib.gt_add, lib.gt_sub, lib.gt_mul, lib.gt_div
_add_scalar, _mul_scalar = lib.gt_add_scalar, lib.gt_mul_scalar
_matmul = lib.gt_matmul
_tensor_dtype, _tensor_ndim, _tensor_shape = lib.gt_tensor_dtype, lib.gt_tensor_ndim, lib.gt_tensor_shape

_NUMBERS = frozenset((builtins.float, builtins.int))
_I32 = [ctypes.c_int32 * n for n in range(16)]
_I64 = [ctypes.c_int64 * n for n in range(16)]

MaxResult = namedtuple("max", ["values", "indices"])


def wrap(ctx: Any, handle: Any, kind: Any = None) -> Tensor:
    """The Python object of a handle that a call has just returned; raises if it is NULL."""
    if handle is None:
        raise failure(ctx)
    if ctx._depth or ctx._garbage:
        ctx._adopt(handle)
    t = _new(Tensor if kind is None else kind)
    t._h = handle
    t._ctx = ctx
    r = _Reference(t, _drop)
    r._as_parameter_ = handle
    references = ctx._references
    references.append(r)
    if len(references) > ctx._sweep_at:
        ctx._sweep()
    return t


class _Reference(weakref.ref):
    """Calls gt_tensor_drop(handle) when the tensor goes, on whatever thread. A __del__ would be Python code: an interrupt that comes while the library
    works would often be raised in it, and lost."""

    __slots__ = ("_as_parameter_",)


def borrow(ctx: Any, handle: Any, kind: Any = None) -> Tensor:
    """The Python object of a handle that belongs to somebody else."""
    t = _new(Tensor if kind is None else kind)
    t._h = lib.gt_tensor_retain(handle)
    t._ctx = ctx
    r = _Reference(t, _drop)
    r._as_parameter_ = handle
    ctx._references.append(r)
    return t


def handles(tensors: Iterable[Tensor]) -> Any:
    """A C array of handles. The tensors must be kept by the caller for the call."""
    tensors = list(tensors)
    return (ctypes.c_void_p * len(tensors))(*[t._h for t in tensors])


def shape_of(*shape: Any) -> Any:
    """f(2, 3) and f((2, 3)) alike, as a tuple of integers."""
    if len(shape) == 1 and not isinstance(shape[0], builtins.int) and hasattr(shape[0], "__iter__"):
        shape = shape[0]
    return tuple(map(_integer, shape))


def _integer(value):
    return value.__index__() if hasattr(value, "__index__") else builtins.int(value)


def _axes(dim):
    """Axes as a C array and its length; none at all for every axis."""
    if dim is None:
        return None, 0
    if isinstance(dim, builtins.int):
        return _I32[1](dim), 1
    dim = tuple(dim)
    return (ctypes.c_int32 * len(dim))(*dim), len(dim)


def _promoted(function, a, b):
    """What failed because of two dtypes, in one."""
    if lib.gt_last_error().contents.status == _api.GT_BAD_DTYPE and a.dtype is not b.dtype and a._ctx is b._ctx:
        common = _dtypes.promote(a.dtype, b.dtype, a.ndim == 0, b.ndim == 0)
        a, b = a.to(common), b.to(common)
        return wrap(a._ctx, function(a._h, b._h))
    raise failure(a._ctx)


class Tensor:
    """An n-dimensional array on a context's device. Made by gt.tensor, gt.zeros, gt.from_numpy … and by operations."""

    __slots__ = ("_h", "_ctx", "__weakref__")
    _h: Any
    _ctx: Any
    __array_priority__ = 1000
    __array_ufunc__ = None  # NumPy leaves operators to us

    # --- looking at it

    @property
    def shape(self) -> Tuple[builtins.int, ...]:
        return tuple(_tensor_shape(self._h)[: _tensor_ndim(self._h)])

    @property
    def ndim(self) -> builtins.int:
        return _tensor_ndim(self._h)

    @property
    def dtype(self) -> _dtypes.dtype:
        return BY_CODE[_tensor_dtype(self._h)]

    @property
    def context(self) -> Context:
        return self._ctx

    @property
    def device(self) -> str:
        return self._ctx.device

    @property
    def is_cuda(self) -> bool:
        return self._ctx._is_cuda

    @property
    def nbytes(self) -> builtins.int:
        return lib.gt_tensor_bytes(self._h)

    @property
    def name(self) -> str:
        """Shown in error messages and memory reports."""
        return lib.gt_tensor_name(self._h).decode()

    @name.setter
    def name(self, name: str) -> None:
        check(lib.gt_tensor_set_name(self._h, name.encode()))

    def dim(self) -> builtins.int:
        return self.ndim

    def size(self, dim: Dim = None) -> Any:
        shape = self.shape
        return shape if dim is None else shape[dim]

    def numel(self) -> builtins.int:
        return lib.gt_tensor_numel(self._h)

    def element_size(self) -> builtins.int:
        return self.dtype.itemsize

    def stride(self, dim: Dim = None) -> Any:
        strides = tuple(lib.gt_tensor_strides(self._h)[: self.ndim])
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> builtins.int:
        return lib.gt_tensor_data(self._h) or 0

    def is_contiguous(self) -> bool:
        return bool(lib.gt_tensor_is_contiguous(self._h))

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __len__(self) -> builtins.int:
        if self.ndim == 0:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a tensor without axes")
        return (self[i] for i in range(self.shape[0]))

    def __hash__(self) -> builtins.int:
        return id(self) >> 4

    def __repr__(self) -> str:
        shape, kind = self.shape, self.dtype
        if self._ctx.closed:
            return f"<tensor of a closed context, {list(shape)}, {kind.name}>"
        tail = "" if kind in (_dtypes.float32, _dtypes.int64) else f", dtype={kind!r}"
        if self._ctx._is_cuda:
            tail += f", device='{self.device}'"
        if self.requires_grad:
            tail += ", requires_grad=True"
        if self.numel() > 1 << 20:
            return f"tensor(…, shape={list(shape)}{tail})"
        with np.printoptions(precision=4, suppress=False):
            text = np.array2string(self.detach().numpy(), separator=", ", prefix="tensor(", threshold=1000)
        return f"tensor({text}{tail})"

    def _repr_html_(self):
        from ._html import tensor_html

        return tensor_html(self)

    def __format__(self, spec: Any) -> str:
        return format(self.item(), spec) if self.ndim == 0 else object.__format__(self, spec)

    # --- host access

    def numpy(self) -> np.ndarray:
        """A copy as a NumPy array (bfloat16 becomes float32). Waits for the device. For an array on the same memory, np.from_dlpack(tensor)."""
        if self.dtype is _dtypes.bfloat16:
            return self.to(_dtypes.float32).numpy()
        out = np.empty(self.shape, self.dtype.numpy)
        check(lib.gt_tensor_read(self._h, out.ctypes.data, out.nbytes), self._ctx)
        return out

    def __array__(self, dtype: DtypeLike = None, copy: Any = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a NumPy array of a tensor is a copy; np.from_dlpack(tensor) shares the memory")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def item(self) -> Any:
        """The value of a one-element tensor as a Python number. Waits for the device."""
        if not self.dtype.is_floating_point and self.numel() == 1:
            return self.numpy().item()
        value = ctypes.c_double()
        check(lib.gt_tensor_item(self._h, ctypes.byref(value)), self._ctx)
        return value.value

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __float__(self) -> builtins.float:
        return builtins.float(self.item())

    def __int__(self) -> builtins.int:
        return builtins.int(self.item())

    def __index__(self) -> builtins.int:
        if self.dtype.is_floating_point:
            raise TypeError("only integer tensors can be an index")
        return builtins.int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise StateError(f"the truth of a tensor with {self.numel()} elements is ambiguous")
        return self.item() != 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        from ._dlpack import export

        return export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> Tuple[builtins.int, builtins.int]:
        from ._dlpack import device_of

        return device_of(self)

    def __reduce__(self) -> Any:
        from ._creation import rebuild

        raw = np.empty(self.nbytes, np.uint8)
        check(lib.gt_tensor_read(self._h, raw.ctypes.data, raw.nbytes), self._ctx)
        return rebuild, (type(self), raw.tobytes(), self.shape, self.dtype, self.requires_grad)

    def __deepcopy__(self, memo: Any) -> Tensor:
        copy = self.detach().clone()
        if type(self) is not Tensor:
            copy = type(self)(copy)
        copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    # --- gradients

    @property
    def requires_grad(self) -> bool:
        return bool(lib.gt_tensor_requires_grad(self._h))

    @requires_grad.setter
    def requires_grad(self, value: Any) -> None:
        check(lib.gt_tensor_set_requires_grad(self._h, bool(value)))

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Optional[Tensor]:
        """The accumulated gradient of a leaf, or None."""
        handle = lib.gt_tensor_grad(self._h)
        return None if handle is None else borrow(self._ctx, handle)

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise NotSupportedError("a gradient can only be set to None; backward makes it")
        check(lib.gt_tensor_zero_grad(self._h))

    def zero_grad(self) -> None:
        check(lib.gt_tensor_zero_grad(self._h))

    def backward(self, gradient: Optional[Tensor] = None, retain_graph: bool = False) -> None:
        """Adds d self / d leaf to each leaf's `.grad`. `gradient` (like self) for tensors of more than one element."""
        if gradient is None and not retain_graph and not callbacks.used:
            status = lib.gt_backward(self._h)
        else:
            gradients = None if gradient is None else (ctypes.c_void_p * 1)(gradient._h)
            with held():
                status = lib.gt_backward_from((ctypes.c_void_p * 1)(self._h), gradients, 1, bool(retain_graph))
        finish(status, self._ctx)

    def detach(self) -> Tensor:
        """The same memory, outside the record."""
        return wrap(self._ctx, lib.gt_tensor_detach(self._h))

    @property
    def data(self) -> Tensor:
        """As detach(); assigned to, it overwrites the elements."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        self.detach().copy_(value)

    # --- operators

    # The common cases come first: a number, then another tensor.

    def __add__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _add_scalar(self._h, other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _add)
        try:
            h = _add(self._h, other._h)
        except AttributeError:
            return self._with_number(other, _add)
        return wrap(self._ctx, h) if h is not None else _promoted(_add, self, other)

    def __sub__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _add_scalar(self._h, -other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _sub)
        try:
            h = _sub(self._h, other._h)
        except AttributeError:
            return self._with_number(other, _sub)
        return wrap(self._ctx, h) if h is not None else _promoted(_sub, self, other)

    def __mul__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _mul_scalar(self._h, other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _mul)
        try:
            h = _mul(self._h, other._h)
        except AttributeError:
            return self._with_number(other, _mul)
        return wrap(self._ctx, h) if h is not None else _promoted(_mul, self, other)

    def __truediv__(self, other: TensorLike) -> Tensor:
        try:
            h = _div(self._h, other._h)
        except AttributeError:
            this = self if self.dtype.is_floating_point else self.to(_dtypes.float32)
            # A power of two's inverse is exact, any other's is not.
            if isinstance(other, (builtins.int, builtins.float)) and math.frexp(other)[0] in (0.5, -0.5):
                return wrap(this._ctx, _mul_scalar(this._h, 1.0 / other))
            return this._with_number(other, _div)
        return wrap(self._ctx, h) if h is not None else _divided(self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: TensorLike) -> Tensor:
        return -self + other

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return self._number(other, floating=True) / self

    def __matmul__(self, other: TensorLike) -> Tensor:
        try:
            h = _matmul(self._h, other._h)
        except AttributeError:
            return NotImplemented
        if h is None:
            return matmul(self, other)
        return wrap(self._ctx, h)

    def __pow__(self, exponent: TensorLike) -> Tensor:
        if isinstance(exponent, Tensor):
            return (self.log() * exponent).exp()
        if exponent == 2:
            return self.square()
        return wrap(self._ctx, lib.gt_pow_scalar(self._floating()._h, exponent))

    def __rpow__(self, base: Any) -> Tensor:
        return (self * math.log(base)).exp()

    def __neg__(self) -> Tensor:
        return wrap(self._ctx, lib.gt_neg(self._h)) if self.dtype.is_floating_point else self * -1

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return self.abs()

    def __eq__(self, other: TensorLike) -> Any:
        """1 where equal, else 0, in the tensors' dtype; there is no boolean one."""
        if not isinstance(other, (Tensor, builtins.int, builtins.float)):
            return NotImplemented
        b = other if isinstance(other, Tensor) else self._number(other)
        h = lib.gt_equal(self._h, b._h)
        return wrap(self._ctx, h) if h is not None else _promoted(lib.gt_equal, self, b)

    def __ne__(self, other: TensorLike) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else 1 - same

    def __iadd__(self, other: TensorLike) -> Tensor:
        return self.copy_(self + other)

    def __isub__(self, other: TensorLike) -> Tensor:
        return self.copy_(self - other)

    def __imul__(self, other: TensorLike) -> Tensor:
        return self.copy_(self * other)

    def __itruediv__(self, other: TensorLike) -> Tensor:
        return self.copy_(self / other)

    def add_(self, other: TensorLike, *, alpha: builtins.float = 1) -> Tensor:
        return self.copy_(self + (other if alpha == 1 else other * alpha))

    def sub_(self, other: TensorLike, *, alpha: builtins.float = 1) -> Tensor:
        return self.copy_(self - (other if alpha == 1 else other * alpha))

    mul_, div_ = __imul__, __itruediv__

    def _number(self, value, floating=False):
        """A number or array as a tensor that meets this one without widening it."""
        if isinstance(value, Tensor):
            return value
        from ._creation import full, tensor

        if isinstance(value, (builtins.bool, builtins.int, builtins.float, np.number)):
            kind = self.dtype
            if not kind.is_floating_point and (floating or isinstance(value, (builtins.float, np.floating))):
                kind = _dtypes.float32
            return full((), builtins.float(value), dtype=kind, device=self._ctx)
        if isinstance(value, np.ndarray):
            return tensor(value, device=self._ctx)
        raise TypeError(f"a tensor and a {type(value).__name__} do not meet")

    def _with_number(self, other, function):
        try:
            other = self._number(other)
        except TypeError:
            return NotImplemented
        h = function(self._h, other._h)
        return wrap(self._ctx, h) if h is not None else _promoted(function, self, other)

    def _floating(self):
        return self if self.dtype.is_floating_point else self.to(_dtypes.float32)

    # --- elementwise

    def abs(self) -> Tensor:
        return wrap(self._ctx, lib.gt_abs(self._h))

    def square(self) -> Tensor:
        return wrap(self._ctx, lib.gt_square(self._floating()._h))

    def sqrt(self) -> Tensor:
        return wrap(self._ctx, lib.gt_sqrt(self._floating()._h))

    def rsqrt(self) -> Tensor:
        return self**-0.5

    def exp(self) -> Tensor:
        return wrap(self._ctx, lib.gt_exp(self._floating()._h))

    def log(self) -> Tensor:
        return wrap(self._ctx, lib.gt_log(self._floating()._h))

    def tanh(self) -> Tensor:
        return wrap(self._ctx, lib.gt_tanh(self._h))

    def sigmoid(self) -> Tensor:
        return wrap(self._ctx, lib.gt_sigmoid(self._h))

    def relu(self) -> Tensor:
        return wrap(self._ctx, lib.gt_relu(self._h))

    def neg(self) -> Tensor:
        return -self

    def add(self, other: TensorLike, *, alpha: builtins.float = 1) -> Tensor:
        return self + (other if alpha == 1 else other * alpha)

    def sub(self, other: TensorLike, *, alpha: builtins.float = 1) -> Tensor:
        return self - (other if alpha == 1 else other * alpha)

    def mul(self, other: TensorLike) -> Tensor:
        return self * other

    def div(self, other: TensorLike) -> Tensor:
        return self / other

    def pow(self, exponent: TensorLike) -> Tensor:
        return self**exponent

    def matmul(self, other: TensorLike) -> Tensor:
        return matmul(self, other)

    def eq(self, other: TensorLike) -> Tensor:
        return self == other

    def maximum(self, other: TensorLike) -> Tensor:
        return _pair(lib.gt_maximum, self, self._number(other))

    def minimum(self, other: TensorLike) -> Tensor:
        return _pair(lib.gt_minimum, self, self._number(other))

    def clamp(self, min: Optional[builtins.float] = None, max: Optional[builtins.float] = None) -> Tensor:
        out = self
        if min is not None:
            out = out.maximum(min)
        return out if max is None else out.minimum(max)

    def softmax(self, dim: Dim) -> Tensor:
        return wrap(self._ctx, lib.gt_softmax(self._h, dim))

    def log_softmax(self, dim: Dim) -> Tensor:
        return wrap(self._ctx, lib.gt_log_softmax(self._h, dim))

    # --- reductions

    def sum(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        axes, n = _axes(dim)
        return wrap(self._ctx, lib.gt_sum(self._h, axes, n, bool(keepdim)))

    def mean(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        axes, n = _axes(dim)
        return wrap(self._ctx, lib.gt_mean(self._h, axes, n, bool(keepdim)))

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        axes, n = _axes(dim)
        return wrap(self._ctx, lib.gt_max(self._h, axes, n, bool(keepdim)))

    def amin(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        return -(-self).amax(dim, keepdim)

    def max(self, dim: Dim = None, keepdim: bool = False) -> Any:
        """The largest element; along one axis, (values, indices)."""
        if dim is None:
            return self.amax()
        return MaxResult(self.amax(dim, keepdim), self.argmax(dim, keepdim))

    def min(self, dim: Dim = None, keepdim: bool = False) -> Any:
        if dim is None:
            return self.amin()
        return MaxResult(self.amin(dim, keepdim), (-self).argmax(dim, keepdim))

    def argmax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            return self.reshape(-1).argmax(0)
        return wrap(self._ctx, lib.gt_argmax(self._h, dim, bool(keepdim)))

    def var(self, dim: Dim = None, *, correction: builtins.int = 1, keepdim: bool = False) -> Tensor:
        centred = self - self.mean(dim, keepdim=True) if dim is not None else self - self.mean()
        total = centred.square().sum(dim, keepdim)
        count = self.numel() // builtins.max(total.numel(), 1)
        return total / (count - correction) if count > correction else total * math.nan

    def std(self, dim: Dim = None, *, correction: builtins.int = 1, keepdim: bool = False) -> Tensor:
        return self.var(dim, correction=correction, keepdim=keepdim).sqrt()

    def norm(self) -> Tensor:
        """The 2-norm of all elements."""
        return self.square().sum().sqrt()

    # --- shape

    def reshape(self, *shape: Any) -> Tensor:
        shape = shape_of(*shape)
        return wrap(self._ctx, lib.gt_reshape(self._h, len(shape), (ctypes.c_int64 * len(shape))(*shape)))

    def view(self, *shape: Any) -> Tensor:
        """As reshape, but an error where it would copy."""
        if len(shape) == 1 and isinstance(shape[0], _dtypes.dtype):
            raise NotSupportedError("view with a dtype: cast with .to(dtype)")
        out = self.reshape(*shape)
        if out.numel() and out.data_ptr() != self.data_ptr():
            raise ShapeError(f"view: {list(self.shape)} with strides {list(self.stride())} cannot be seen as {list(out.shape)}; use reshape")
        return out

    def flatten(self, start_dim: builtins.int = 0, end_dim: builtins.int = -1) -> Tensor:
        if end_dim not in (-1, self.ndim - 1):
            shape = self.shape
            start, end = start_dim % len(shape), end_dim % len(shape)
            return self.reshape(*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
        if self.ndim == 0:
            return self.reshape(1)
        return wrap(self._ctx, lib.gt_flatten(self._h, start_dim))

    def transpose(self, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        return wrap(self._ctx, lib.gt_transpose(self._h, dim0, dim1))

    def t(self) -> Tensor:
        return self if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> Tensor:
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Tensor:
        return self.transpose(-2, -1)

    def permute(self, *dims: Any) -> Tensor:
        dims = shape_of(*dims)
        if len(dims) != self.ndim:
            raise ShapeError(f"permute: {len(dims)} axes for a tensor with {self.ndim}")
        return wrap(self._ctx, lib.gt_permute(self._h, (ctypes.c_int32 * len(dims))(*dims)))

    def expand(self, *shape: Any) -> Tensor:
        shape = list(shape_of(*shape))
        lead = len(shape) - self.ndim
        for i, own in enumerate(self.shape):
            if lead >= 0 and shape[lead + i] == -1:
                shape[lead + i] = own
        return wrap(self._ctx, lib.gt_expand(self._h, len(shape), (ctypes.c_int64 * len(shape))(*shape)))

    def expand_as(self, other: TensorLike) -> Tensor:
        return self.expand(other.shape)

    def squeeze(self, dim: Dim = None) -> Tensor:
        shape = self.shape
        if dim is None:
            return self.reshape([n for n in shape if n != 1])
        dims = {d % len(shape) for d in ((dim,) if isinstance(dim, builtins.int) else dim)}
        return self.reshape([n for i, n in enumerate(shape) if i not in dims or n != 1])

    def unsqueeze(self, dim: Dim) -> Tensor:
        shape = list(self.shape)
        if not -len(shape) - 1 <= dim <= len(shape):
            raise IndexError(f"unsqueeze: axis {dim} for a tensor with {len(shape)}")
        shape.insert(dim + len(shape) + 1 if dim < 0 else dim, 1)
        return self.reshape(shape)

    def contiguous(self, memory_format: Optional[str] = None) -> Tensor:
        """Row-major; with memory_format "channels_last", stored channels-last (the shape stays [N, C, H, W])."""
        if memory_format is None:
            return wrap(self._ctx, lib.gt_contiguous(self._h))
        if str(memory_format).rpartition(".")[2] != "channels_last":
            raise ArgumentError(f"memory_format {memory_format!r}: only 'channels_last'")
        return wrap(self._ctx, lib.gt_channels_last(self._h))

    def split(self, size: Any, dim: Dim = 0) -> Tuple[Tensor, ...]:
        total = self.shape[dim]
        sizes = [size] * (total // size) + ([total % size] if total % size else []) if isinstance(size, builtins.int) else list(size)
        if builtins.sum(sizes) != total:
            raise ShapeError(f"split: {sizes} do not make {total}")
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(self.narrow(dim, start, n) for start, n in zip(starts, sizes))

    def chunk(self, chunks: builtins.int, dim: Dim = 0) -> Tuple[Tensor, ...]:
        return self.split(-(-self.shape[dim] // chunks) or 1, dim)

    def narrow(self, dim: Dim, start: Any, length: builtins.int) -> Tensor:
        return wrap(self._ctx, lib.gt_slice(self._h, dim, start, start + length, 1))

    def __getitem__(self, key: Any) -> Tensor:
        from ._indexing import get

        return get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from ._indexing import put

        put(self, key, value)

    # --- dtype and device

    def to(self, *targets: Any, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
        """To another dtype, another device (a copy), or what another tensor has."""
        from ._context import Context

        for target in targets:
            if isinstance(target, Tensor):
                dtype, device = target.dtype, target._ctx
            elif isinstance(target, Context) or (isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda", "gpu", "auto")):
                device = target
            else:
                dtype = target
        out = self
        if dtype is not None:
            kind = as_dtype(dtype)
            if kind.code != _tensor_dtype(self._h):
                out = wrap(self._ctx, lib.gt_cast(self._h, kind.code))
        if device is not None:
            ctx = context_for(device)
            if ctx is not out._ctx:
                from ._creation import copy_to

                out = copy_to(out, ctx)
        return out

    def type(self, dtype: DtypeLike) -> Tensor:
        return self.to(dtype)

    def float(self) -> Tensor:
        return self.to(_dtypes.float32)

    def half(self) -> Tensor:
        return self.to(_dtypes.float16)

    def bfloat16(self) -> Tensor:
        return self.to(_dtypes.bfloat16)

    def double(self) -> Tensor:
        return self.to(_dtypes.float64)

    def long(self) -> Tensor:
        return self.to(_dtypes.int64)

    def int(self) -> Tensor:
        return self.to(_dtypes.int32)

    def cpu(self) -> Tensor:
        return self.to(device="cpu")

    def cuda(self, index: Any = None) -> Tensor:
        return self.to(device="cuda" if index is None else f"cuda:{index}")

    def clone(self) -> Tensor:
        """A copy with memory of its own; differentiable."""
        if self.dtype.is_floating_point:
            return wrap(self._ctx, _mul_scalar(self._h, 1.0))
        from ._creation import empty

        return empty(self.shape, dtype=self.dtype, device=self._ctx).copy_(self)

    # --- changes in place

    def copy_(self, source: Any) -> Tensor:
        """Overwrites the elements: `source` is broadcast, and converted to this dtype."""
        if not isinstance(source, Tensor):
            source = self._number(source)
        if source._ctx is not self._ctx:
            source = source.detach().to(device=self._ctx)
        if source.shape != self.shape:
            source = source.expand(self.shape)
        check(lib.gt_tensor_copy(self._h, source._h), self._ctx)
        return self

    def fill_(self, value: Any) -> Tensor:
        check(lib.gt_tensor_fill(self._h, value), self._ctx)
        return self

    def zero_(self) -> Tensor:
        return self.fill_(0.0)

    def uniform_(self, low: builtins.float = 0.0, high: builtins.float = 1.0) -> Tensor:
        check(lib.gt_nn_init_uniform(self._h, low, high), self._ctx)
        return self

    def normal_(self, mean: builtins.float = 0.0, std: builtins.float = 1.0) -> Tensor:
        check(lib.gt_nn_init_normal(self._h, mean, std), self._ctx)
        return self


def _pair(function, a, b):
    h = function(a._h, b._h)
    return wrap(a._ctx, h) if h is not None else _promoted(function, a, b)


def _divided(a, b):
    """Integers divide to floating point, as in PyTorch."""
    if not (a.dtype.is_floating_point or b.dtype.is_floating_point):
        a, b = a.to(_dtypes.float32), b.to(_dtypes.float32)
    elif a.dtype is b.dtype:
        raise failure(a._ctx)
    h = _div(a._h, b._h)
    return wrap(a._ctx, h) if h is not None else _promoted(_div, a, b)


def matmul(a: float, b: float) -> Tensor:
    """[..., M, K] x [..., K, N]; vectors as in NumPy."""
    left, right = a.ndim == 1, b.ndim == 1
    if not (left or right):
        return _pair(_matmul, a, b)
    out = _pair(_matmul, a.unsqueeze(0) if left else a, b.unsqueeze(1) if right else b)
    shape = list(out.shape)
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    return out.reshape(shape)


class Parameter(Tensor):
    """A tensor that a module learns: assigned to an attribute of a module, it is registered there. It shares the memory of `data`."""

    __slots__ = ()

    def __new__(cls, data: Any, requires_grad: bool = True) -> Parameter:
        from ._creation import as_tensor

        data = as_tensor(data)
        if not data.dtype.is_floating_point:
            raise DtypeError(f"a parameter is floating-point; this is {data.dtype.name}")
        t = wrap(data._ctx, lib.gt_tensor_detach(data._h), cls)
        t.requires_grad = requires_grad
        return t

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()
