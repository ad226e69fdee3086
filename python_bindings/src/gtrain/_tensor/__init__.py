"""Tensors. Each Python object owns one reference to a handle of the library; the memory goes when the last of them goes and backward needs it no more.

One file a concept, each a class that derives from the one before: base, shape, elementwise, arithmetic, reductions. Tensor is the last of them.
"""

from __future__ import annotations

from typing import Any

from .._errors import DtypeError
from .._library import lib
from . import handles as _handles
from .arithmetic import matmul
from .handles import borrow, handles, shape_of, wrap
from .reductions import MaxResult, Reductions


class Tensor(Reductions):
    """An n-dimensional array on a context's device. Made by gt.tensor, gt.zeros, gt.from_numpy … and by operations."""

    __slots__ = ()


_handles.Tensor = Tensor


class Parameter(Tensor):
    """A tensor that a module learns: assigned to an attribute of a module, it is registered there. It shares the memory of `data`."""

    __slots__ = ()

    def __new__(cls, data: Any, requires_grad: bool = True) -> Parameter:
        from .._creation import as_tensor

        data = as_tensor(data)
        if not data.dtype.is_floating_point:
            raise DtypeError(f"a parameter is floating-point; this is {data.dtype.name}")
        t = wrap(data._ctx, lib.gt_tensor_detach(data._h), cls)
        t.requires_grad = requires_grad
        return t

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


__all__ = ["MaxResult", "Parameter", "Tensor", "borrow", "handles", "matmul", "shape_of", "wrap"]
