"""Operators, with NumPy's broadcasting, and the methods of the same meaning."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

from .. import _dtypes
from .._errors import failure
from .._library import lib
from .base import TensorBase
from .elementwise import Elementwise, pair, promoted
from .handles import wrap

if TYPE_CHECKING:
    from .._typing import TensorLike
    from . import Tensor

_add, _sub, _mul, _div = lib.gt_add, lib.gt_sub, lib.gt_mul, lib.gt_div
_add_scalar, _mul_scalar = lib.gt_add_scalar, lib.gt_mul_scalar
_matmul = lib.gt_matmul
_NUMBERS = frozenset((builtins.float, builtins.int))


class Arithmetic(Elementwise):
    """+ - * / @ ** and comparison for equality. A number takes the tensor's dtype; of two dtypes the wider one counts."""

    __slots__ = ()

    # The common cases come first: a number, then another tensor.

    def __add__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _add_scalar(self._h, other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _add)
        try:
            h = _add(self._h, other._h)  # type: ignore[union-attr]
        except AttributeError:
            return self._with_number(other, _add)
        return wrap(self._ctx, h) if h is not None else promoted(_add, self, other)

    def __sub__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _add_scalar(self._h, -other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _sub)
        try:
            h = _sub(self._h, other._h)  # type: ignore[union-attr]
        except AttributeError:
            return self._with_number(other, _sub)
        return wrap(self._ctx, h) if h is not None else promoted(_sub, self, other)

    def __mul__(self, other: TensorLike) -> Tensor:
        if other.__class__ in _NUMBERS:
            h = _mul_scalar(self._h, other)
            return wrap(self._ctx, h) if h is not None else self._with_number(other, _mul)
        try:
            h = _mul(self._h, other._h)  # type: ignore[union-attr]
        except AttributeError:
            return self._with_number(other, _mul)
        return wrap(self._ctx, h) if h is not None else promoted(_mul, self, other)

    def __truediv__(self, other: TensorLike) -> Tensor:
        try:
            h = _div(self._h, other._h)  # type: ignore[union-attr]
        except AttributeError:
            this = self._floating()
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

    def __matmul__(self, other: Tensor) -> Tensor:
        try:
            h = _matmul(self._h, other._h)
        except AttributeError:
            return NotImplemented
        if h is None:
            return matmul(self, other)
        return wrap(self._ctx, h)

    def __pow__(self, exponent: TensorLike) -> Tensor:
        if isinstance(exponent, TensorBase):
            return (self.log() * exponent).exp()
        if exponent == 2:
            return self.square()
        return wrap(self._ctx, lib.gt_pow_scalar(self._floating()._h, exponent))

    def __rpow__(self, base: Any) -> Tensor:
        return (self * math.log(base)).exp()

    def __neg__(self) -> Tensor:
        return wrap(self._ctx, lib.gt_neg(self._h)) if self.dtype.is_floating_point else self * -1

    def __pos__(self) -> Tensor:
        this: Any = self
        return this

    def __abs__(self) -> Tensor:
        return self.abs()

    def __eq__(self, other: TensorLike) -> Any:  # type: ignore[override]
        """1 where equal, else 0, in the tensors' dtype; there is no boolean one."""
        if not isinstance(other, (TensorBase, builtins.int, builtins.float)):
            return NotImplemented
        b = other if isinstance(other, TensorBase) else self._number(other)
        h = lib.gt_equal(self._h, b._h)
        return wrap(self._ctx, h) if h is not None else promoted(lib.gt_equal, self, b)

    def __ne__(self, other: TensorLike) -> Any:  # type: ignore[override]
        same = self.__eq__(other)
        return same if same is NotImplemented else 1 - same

    __hash__ = TensorBase.__hash__

    def __iadd__(self, other: TensorLike) -> Tensor:
        return self.copy_(self + other)

    def __isub__(self, other: TensorLike) -> Tensor:
        return self.copy_(self - other)

    def __imul__(self, other: TensorLike) -> Tensor:
        return self.copy_(self * other)

    def __itruediv__(self, other: TensorLike) -> Tensor:
        return self.copy_(self / other)

    # --- as methods

    def neg(self) -> Tensor:
        """-x."""
        return -self

    def add(self, other: TensorLike, *, alpha: float = 1) -> Tensor:
        """x + alpha * other, with broadcasting."""
        return self + _times(other, alpha)

    def sub(self, other: TensorLike, *, alpha: float = 1) -> Tensor:
        """x - alpha * other, with broadcasting."""
        return self - _times(other, alpha)

    def mul(self, other: TensorLike) -> Tensor:
        """x * other, with broadcasting."""
        return self * other

    def div(self, other: TensorLike) -> Tensor:
        """x / other, with broadcasting; two integer tensors divide to float32."""
        return self / other

    def pow(self, exponent: TensorLike) -> Tensor:
        """x to the power of a number, or element by element of a tensor (for x above 0)."""
        return self**exponent

    def matmul(self, other: Tensor) -> Tensor:
        """The matrix product, as gt.matmul(x, other)."""
        return matmul(self, other)

    def eq(self, other: TensorLike) -> Tensor:
        """1 where equal, else 0, in the tensors' dtype."""
        return self == other

    def add_(self, other: TensorLike, *, alpha: float = 1) -> Tensor:
        """Adds alpha * other in place; returns the tensor."""
        return self.copy_(self + _times(other, alpha))

    def sub_(self, other: TensorLike, *, alpha: float = 1) -> Tensor:
        """Subtracts alpha * other in place; returns the tensor."""
        return self.copy_(self - _times(other, alpha))

    def mul_(self, other: TensorLike) -> Tensor:
        """Multiplies by `other` in place; returns the tensor."""
        return self.copy_(self * other)

    def div_(self, other: TensorLike) -> Tensor:
        """Divides by `other` in place; returns the tensor."""
        return self.copy_(self / other)

    def _with_number(self, other: Any, function: Any) -> Any:
        try:
            other = self._number(other)
        except TypeError:
            return NotImplemented
        h = function(self._h, other._h)
        return wrap(self._ctx, h) if h is not None else promoted(function, self, other)


def _times(other: Any, alpha: float) -> Any:
    return other if alpha == 1 else other * alpha


def _divided(a: Any, b: Any) -> Any:
    """Integers divide to floating point, as in PyTorch."""
    if not (a.dtype.is_floating_point or b.dtype.is_floating_point):
        a, b = a.to(_dtypes.float32), b.to(_dtypes.float32)
    elif a.dtype is b.dtype:
        raise failure(a._ctx)
    h = _div(a._h, b._h)
    return wrap(a._ctx, h) if h is not None else promoted(_div, a, b)


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product: [..., M, K] x [..., K, N] is [..., M, N], with broadcasting of the leading axes; vectors as in NumPy."""
    left, right = a.ndim == 1, b.ndim == 1
    if not (left or right):
        return pair(_matmul, a, b)
    out = pair(_matmul, a.unsqueeze(0) if left else a, b.unsqueeze(1) if right else b)
    shape = list(out.shape)
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    return out.reshape(shape)
