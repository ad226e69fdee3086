"""Functions of each element. Integers become float32 where the result is not whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from .. import _api, _dtypes
from .._errors import failure
from .._library import lib
from .handles import wrap
from .shape import Shape

if TYPE_CHECKING:
    from .._typing import TensorLike
    from . import Tensor


def promoted(function: Any, a: Any, b: Any) -> Any:
    """What failed because of two dtypes, in one."""
    if lib.gt_last_error().contents.status == _api.GT_BAD_DTYPE and a.dtype is not b.dtype and a._ctx is b._ctx:
        common = _dtypes.promote(a.dtype, b.dtype, a.ndim == 0, b.ndim == 0)
        a, b = a.to(common), b.to(common)
        return wrap(a._ctx, function(a._h, b._h))
    raise failure(a._ctx)


def pair(function: Any, a: Any, b: Any) -> Any:
    """An operation on two tensors, in their common dtype."""
    h = function(a._h, b._h)
    return wrap(a._ctx, h) if h is not None else promoted(function, a, b)


class Elementwise(Shape):
    """Functions of one tensor, element by element; maximum and minimum of two."""

    __slots__ = ()

    def abs(self) -> Tensor:
        """|x|; the gradient is sign(x), 0 at 0."""
        return wrap(self._ctx, lib.gt_abs(self._h))

    def square(self) -> Tensor:
        """x^2."""
        return wrap(self._ctx, lib.gt_square(self._floating()._h))

    def sqrt(self) -> Tensor:
        """The square root; NaN below 0."""
        return wrap(self._ctx, lib.gt_sqrt(self._floating()._h))

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
        return wrap(self._ctx, lib.gt_pow_scalar(self._floating()._h, -0.5))

    def exp(self) -> Tensor:
        """e^x."""
        return wrap(self._ctx, lib.gt_exp(self._floating()._h))

    def log(self) -> Tensor:
        """The natural logarithm; -inf at 0, NaN below."""
        return wrap(self._ctx, lib.gt_log(self._floating()._h))

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return wrap(self._ctx, lib.gt_tanh(self._h))

    def sigmoid(self) -> Tensor:
        """1 / (1 + e^-x)."""
        return wrap(self._ctx, lib.gt_sigmoid(self._h))

    def relu(self) -> Tensor:
        """max(x, 0); NaN stays NaN, the gradient is 0 at 0."""
        return wrap(self._ctx, lib.gt_relu(self._h))

    def maximum(self, other: TensorLike) -> Tensor:
        """The larger of two elements, with broadcasting; NaN if either is NaN. Where they are equal each gets half of the gradient."""
        return pair(lib.gt_maximum, self, self._number(other))

    def minimum(self, other: TensorLike) -> Tensor:
        """The smaller of two elements, with broadcasting; NaN if either is NaN. Where they are equal each gets half of the gradient."""
        return pair(lib.gt_minimum, self, self._number(other))

    def clamp(self, min: Optional[float] = None, max: Optional[float] = None) -> Tensor:
        """Elements below `min` become `min`, those above `max` become `max`; None: no bound."""
        out: Any = self
        if min is not None:
            out = out.maximum(min)
        return out if max is None else out.minimum(max)

    def softmax(self, dim: int) -> Tensor:
        """e^x over its sum along axis `dim`."""
        return wrap(self._ctx, lib.gt_softmax(self._h, dim))

    def log_softmax(self, dim: int) -> Tensor:
        """The logarithm of softmax along axis `dim`, without its loss of precision."""
        return wrap(self._ctx, lib.gt_log_softmax(self._h, dim))
