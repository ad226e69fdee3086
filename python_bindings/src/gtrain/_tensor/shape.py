"""Other shapes of the same elements: views where possible, which share memory with the tensor."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence, Tuple, Union

import numpy as np

from .. import _dtypes
from .._errors import ArgumentError, NotSupportedError, ShapeError
from .._library import lib
from .base import TensorBase
from .handles import shape_of, wrap

if TYPE_CHECKING:
    from .._typing import Dim
    from . import Tensor


class Shape(TensorBase):
    """Reshaping, axes, pieces."""

    __slots__ = ()

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in row-major order in another shape, given as numbers or one tuple; one entry may be -1, for what is left. Copies only if strides demand it."""
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

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from start_dim to end_dim, both included, as one: with start_dim 1, [N, C, H, W] becomes [N, C*H*W]."""
        if end_dim not in (-1, self.ndim - 1):
            shape = self.shape
            start, end = start_dim % len(shape), end_dim % len(shape)
            return self.reshape(*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
        if self.ndim == 0:
            return self.reshape(1)
        return wrap(self._ctx, lib.gt_flatten(self._h, start_dim))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two axes exchanged; a view."""
        return wrap(self._ctx, lib.gt_transpose(self._h, dim0, dim1))

    def t(self) -> Tensor:
        """A matrix transposed; a vector or scalar as it is."""
        this: Any = self
        return this if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> Tensor:
        """All axes in reverse order; a view."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged; a view."""
        return self.transpose(-2, -1)

    def permute(self, *dims: Any) -> Tensor:
        """The axes in another order, of which all are named; a view."""
        dims = shape_of(*dims)
        if len(dims) != self.ndim:
            raise ShapeError(f"permute: {len(dims)} axes for a tensor with {self.ndim}")
        return wrap(self._ctx, lib.gt_permute(self._h, (ctypes.c_int32 * len(dims))(*dims)))

    def expand(self, *shape: Any) -> Tensor:
        """Broadcast to a shape: axes of length 1 are repeated, new axes come in front, -1 keeps a length. A view whose strides are 0 where it repeats."""
        wanted = list(shape_of(*shape))
        lead = len(wanted) - self.ndim
        for i, own in enumerate(self.shape):
            if lead >= 0 and wanted[lead + i] == -1:
                wanted[lead + i] = own
        return wrap(self._ctx, lib.gt_expand(self._h, len(wanted), (ctypes.c_int64 * len(wanted))(*wanted)))

    def expand_as(self, other: Tensor) -> Tensor:
        """Broadcast to the shape of `other`; a view."""
        return self.expand(other.shape)

    def squeeze(self, dim: Dim = None) -> Tensor:
        """Without the axes of length 1: all of them, or those among `dim` (an axis or several)."""
        shape = self.shape
        if dim is None:
            return self.reshape([n for n in shape if n != 1])
        dims = {d % len(shape) for d in ((dim,) if isinstance(dim, int) else dim)}
        return self.reshape([n for i, n in enumerate(shape) if i not in dims or n != 1])

    def unsqueeze(self, dim: int) -> Tensor:
        """With a new axis of length 1 at place `dim` of the result."""
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

    def split(self, size: Union[int, Sequence[int]], dim: int = 0) -> Tuple[Tensor, ...]:
        """Views along axis `dim` that are `size` long, the last perhaps shorter; or of the lengths that `size` lists, which make the whole."""
        total = self.shape[dim]
        sizes = [size] * (total // size) + ([total % size] if total % size else []) if isinstance(size, int) else list(size)
        if sum(sizes) != total:
            raise ShapeError(f"split: {sizes} do not make {total}")
        starts: Iterable[int] = np.cumsum([0, *sizes]).tolist()
        return tuple(self.narrow(dim, start, n) for start, n in zip(starts, sizes))

    def chunk(self, chunks: int, dim: int = 0) -> Tuple[Tensor, ...]:
        """At most `chunks` views of one length along axis `dim`, the last perhaps shorter."""
        return self.split(-(-self.shape[dim] // chunks) or 1, dim)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """`length` elements of axis `dim` from `start` on; a view."""
        return wrap(self._ctx, lib.gt_slice(self._h, dim, start, start + length, 1))
