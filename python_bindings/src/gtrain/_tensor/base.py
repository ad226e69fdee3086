"""What a tensor is: its shape, dtype and device, its values on the host, its gradient, copies and changes in place."""

from __future__ import annotations

import builtins
import ctypes
from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

import numpy as np

from .. import _dtypes
from .._context import context_for, finish
from .._dtypes import BY_CODE, as_dtype
from .._errors import NotSupportedError, StateError, check
from .._library import lib
from .._signals import callbacks, held
from .handles import borrow, wrap

if TYPE_CHECKING:
    from .._context import Context
    from .._typing import DeviceLike, Dim, DtypeLike
    from . import Tensor

_tensor_dtype, _tensor_ndim, _tensor_shape = lib.gt_tensor_dtype, lib.gt_tensor_ndim, lib.gt_tensor_shape


class TensorBase:
    """The part of Tensor that computes nothing. Operations are in the classes that derive from it, one after the other, up to Tensor."""

    __slots__ = ("_h", "_ctx", "__weakref__")
    _h: Any
    _ctx: Any
    __array_priority__ = 1000
    __array_ufunc__ = None  # NumPy leaves operators to us

    # --- looking at it

    @property
    def shape(self) -> Tuple[builtins.int, ...]:
        """The length of each axis, a tuple; () for a scalar."""
        return tuple(_tensor_shape(self._h)[: _tensor_ndim(self._h)])

    @property
    def ndim(self) -> builtins.int:
        """The number of axes, 0 to 8."""
        return _tensor_ndim(self._h)

    @property
    def dtype(self) -> _dtypes.dtype:
        """The element type: gt.float32, gt.int64 …; compare with `is`."""
        return BY_CODE[_tensor_dtype(self._h)]

    @property
    def context(self) -> Context:
        """The Context that the tensor belongs to."""
        return self._ctx

    @property
    def device(self) -> str:
        """The device as text: "cpu", "cuda:0"."""
        return self._ctx.device

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is a GPU's."""
        return self._ctx._is_cuda

    @property
    def nbytes(self) -> builtins.int:
        """Bytes of all elements: numel() times element_size()."""
        return lib.gt_tensor_bytes(self._h)

    @property
    def name(self) -> str:
        """Shown in error messages and memory reports; "" if it has none. A module's parameters are named by their dotted path from the root."""
        return lib.gt_tensor_name(self._h).decode()

    @name.setter
    def name(self, name: str) -> None:
        check(lib.gt_tensor_set_name(self._h, name.encode()))

    def dim(self) -> builtins.int:
        """The number of axes, as `ndim`."""
        return self.ndim

    def size(self, dim: Optional[builtins.int] = None) -> Any:
        """The shape, or the length of axis `dim` (negative: from the end)."""
        shape = self.shape
        return shape if dim is None else shape[dim]

    def numel(self) -> builtins.int:
        """The number of elements, 1 for a scalar."""
        return lib.gt_tensor_numel(self._h)

    def element_size(self) -> builtins.int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def stride(self, dim: Optional[builtins.int] = None) -> Any:
        """How many elements lie in memory between neighbours along each axis, a tuple; or along axis `dim` alone."""
        strides = tuple(lib.gt_tensor_strides(self._h)[: self.ndim])
        return strides if dim is None else strides[dim]

    def data_ptr(self) -> builtins.int:
        """The device address of the first element; 0 if there is none."""
        return lib.gt_tensor_data(self._h) or 0

    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without holes."""
        return bool(lib.gt_tensor_is_contiguous(self._h))

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating-point one."""
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

    def _repr_html_(self) -> str:
        from .._html import tensor_html

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

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
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
        """The values as nested lists of Python numbers; a number for a scalar. Waits for the device."""
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
        from .._dlpack import export

        return export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> Tuple[builtins.int, builtins.int]:
        from .._dlpack import device_of

        return device_of(self)

    def __reduce__(self) -> Any:
        from .._creation import rebuild

        raw = np.empty(self.nbytes, np.uint8)
        check(lib.gt_tensor_read(self._h, raw.ctypes.data, raw.nbytes), self._ctx)
        return rebuild, (type(self), raw.tobytes(), self.shape, self.dtype, self.requires_grad)

    def __deepcopy__(self, memo: Any) -> Tensor:
        from . import Tensor

        copy = self.detach().clone()
        kind: Any = type(self)
        if kind is not Tensor:
            copy = kind(copy)
        copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    # --- gradients

    @property
    def requires_grad(self) -> bool:
        """Whether backward makes a gradient for it; may be set for a leaf of floating-point dtype."""
        return bool(lib.gt_tensor_requires_grad(self._h))

    @requires_grad.setter
    def requires_grad(self, value: Any) -> None:
        check(lib.gt_tensor_set_requires_grad(self._h, bool(value)))

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Sets `requires_grad`; returns the tensor."""
        self.requires_grad = requires_grad
        this: Any = self
        return this

    @property
    def grad(self) -> Optional[Tensor]:
        """The accumulated gradient of a leaf, of its shape (float32 for half precision), or None. Assigning None forgets it."""
        handle = lib.gt_tensor_grad(self._h)
        return None if handle is None else borrow(self._ctx, handle)

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise NotSupportedError("a gradient can only be set to None; backward makes it")
        check(lib.gt_tensor_zero_grad(self._h))

    def zero_grad(self) -> None:
        """Forgets the gradient: `grad` is None afterwards."""
        check(lib.gt_tensor_zero_grad(self._h))

    def backward(self, gradient: Optional[Tensor] = None, retain_graph: bool = False) -> None:
        """Adds d self / d leaf to each leaf's `.grad`. `gradient` (like self) for tensors of more than one element. The record is freed on the way, unless
        retain_graph keeps it for another backward."""
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

    # --- dtype and device

    def to(self, *targets: Any, dtype: DtypeLike = None, device: DeviceLike = None) -> Tensor:
        """To another dtype, another device (a copy), or what another tensor has. The tensor itself where nothing changes."""
        from .._context import Context

        for target in targets:
            if isinstance(target, TensorBase):
                dtype, device = target.dtype, target._ctx
            elif isinstance(target, Context) or (isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda", "gpu", "auto")):
                device = target
            else:
                dtype = target
        out: Any = self
        if dtype is not None:
            kind = as_dtype(dtype)
            if kind.code != _tensor_dtype(self._h):
                out = wrap(self._ctx, lib.gt_cast(self._h, kind.code))
        if device is not None:
            ctx = context_for(device)
            if ctx is not out._ctx:
                from .._creation import copy_to

                out = copy_to(out, ctx)
        return out

    def type(self, dtype: DtypeLike) -> Tensor:
        """As to(dtype)."""
        return self.to(dtype)

    def float(self) -> Tensor:
        """As float32."""
        return self.to(_dtypes.float32)

    def half(self) -> Tensor:
        """As float16."""
        return self.to(_dtypes.float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16."""
        return self.to(_dtypes.bfloat16)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(_dtypes.float64)

    def long(self) -> Tensor:
        """As int64; fractions are cut off."""
        return self.to(_dtypes.int64)

    def int(self) -> Tensor:
        """As int32; fractions are cut off."""
        return self.to(_dtypes.int32)

    def cpu(self) -> Tensor:
        """A copy on the CPU; the tensor itself if it is there already. Waits for the device that it comes from."""
        return self.to(device="cpu")

    def cuda(self, index: Optional[builtins.int] = None) -> Tensor:
        """A copy on a GPU, number 0 by default; the tensor itself if it is there already."""
        return self.to(device="cuda" if index is None else f"cuda:{index}")

    def clone(self) -> Tensor:
        """A copy with memory of its own; differentiable."""
        if self.dtype.is_floating_point:
            return wrap(self._ctx, lib.gt_mul_scalar(self._h, 1.0))
        from .._creation import empty

        return empty(self.shape, dtype=self.dtype, device=self._ctx).copy_(self)

    # --- changes in place

    def copy_(self, source: Any) -> Tensor:
        """Overwrites the elements: `source` (a tensor, a number or an array) is broadcast, and converted to this dtype. Returns the tensor."""
        if not isinstance(source, TensorBase):
            source = self._number(source)
        if source._ctx is not self._ctx:
            source = source.detach().to(device=self._ctx)
        if source.shape != self.shape:
            source = source.expand(self.shape)
        check(lib.gt_tensor_copy(self._h, source._h), self._ctx)
        this: Any = self
        return this

    def fill_(self, value: builtins.float) -> Tensor:
        """Sets every element to `value`; returns the tensor."""
        check(lib.gt_tensor_fill(self._h, value), self._ctx)
        this: Any = self
        return this

    def zero_(self) -> Tensor:
        """Sets every element to 0; returns the tensor."""
        return self.fill_(0.0)

    def uniform_(self, low: builtins.float = 0.0, high: builtins.float = 1.0) -> Tensor:
        """Draws every element from U[low, high); returns the tensor. Floating-point dtypes."""
        check(lib.gt_nn_init_uniform(self._h, low, high), self._ctx)
        this: Any = self
        return this

    def normal_(self, mean: builtins.float = 0.0, std: builtins.float = 1.0) -> Tensor:
        """Draws every element from N(mean, std^2); returns the tensor. Floating-point dtypes."""
        check(lib.gt_nn_init_normal(self._h, mean, std), self._ctx)
        this: Any = self
        return this

    # --- indices

    def __getitem__(self, key: Any) -> Tensor:
        from .._indexing import get

        return get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from .._indexing import put

        put(self, key, value)

    # --- for operations

    def _number(self, value: Any, floating: bool = False) -> Tensor:
        """A number or array as a tensor that meets this one without widening it."""
        if isinstance(value, TensorBase):
            it: Any = value
            return it
        from .._creation import full, tensor

        if isinstance(value, (builtins.bool, builtins.int, builtins.float, np.number)):
            kind = self.dtype
            if not kind.is_floating_point and (floating or isinstance(value, (builtins.float, np.floating))):
                kind = _dtypes.float32
            return full((), builtins.float(value), dtype=kind, device=self._ctx)
        if isinstance(value, np.ndarray):
            return tensor(value, device=self._ctx)
        raise TypeError(f"a tensor and a {type(value).__name__} do not meet")

    def _floating(self) -> Tensor:
        this: Any = self
        return this if self.dtype.is_floating_point else self.to(_dtypes.float32)
