"""Sums, means, largest elements: over all axes, or over those in `dim`, which stay with length 1 if keepdim is true."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from .._library import lib
from .arithmetic import Arithmetic
from .handles import axes_of, wrap

if TYPE_CHECKING:
    from .._typing import Dim
    from . import Tensor


class MaxResult(NamedTuple):
    """What max and min along an axis return: the elements, and where each was found, as int64."""

    values: Tensor
    indices: Tensor


class Reductions(Arithmetic):
    """Reductions over all axes, or over those in `dim`."""

    __slots__ = ()

    def sum(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The sum over all elements, or over the axes in `dim` (a number or several); 0 over nothing. Half precision is summed in float32."""
        axes, n = axes_of(dim)
        return wrap(self._ctx, lib.gt_sum(self._h, axes, n, bool(keepdim)))

    def mean(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The mean over all elements, or over the axes in `dim` (a number or several); NaN over nothing."""
        axes, n = axes_of(dim)
        return wrap(self._ctx, lib.gt_mean(self._h, axes, n, bool(keepdim)))

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The largest element of all, or over the axes in `dim`; NaN if any is NaN. Equal ones share the gradient."""
        axes, n = axes_of(dim)
        return wrap(self._ctx, lib.gt_max(self._h, axes, n, bool(keepdim)))

    def amin(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The smallest element of all, or over the axes in `dim`; NaN if any is NaN. Equal ones share the gradient."""
        return -(-self).amax(dim, keepdim)

    def max(self, dim: Optional[int] = None, keepdim: bool = False) -> Any:
        """The largest element; along one axis, (values, indices)."""
        if dim is None:
            return self.amax()
        return MaxResult(self.amax(dim, keepdim), self.argmax(dim, keepdim))

    def min(self, dim: Optional[int] = None, keepdim: bool = False) -> Any:
        """The smallest element; along one axis, (values, indices)."""
        if dim is None:
            return self.amin()
        return MaxResult(self.amin(dim, keepdim), (-self).argmax(dim, keepdim))

    def argmax(self, dim: Optional[int] = None, keepdim: bool = False) -> Tensor:
        """Where the first largest element is along axis `dim`, as int64; without `dim`, among all in row-major order. NaN counts as the largest."""
        if dim is None:
            return self.reshape(-1).argmax(0)
        return wrap(self._ctx, lib.gt_argmax(self._h, dim, bool(keepdim)))

    def var(self, dim: Dim = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
        """The variance over all elements, or over the axes in `dim`: squared distances from the mean, summed, over n - correction."""
        centred = self - self.mean(dim, keepdim=True) if dim is not None else self - self.mean()
        total = centred.square().sum(dim, keepdim)
        count = self.numel() // builtins.max(total.numel(), 1)
        return total / (count - correction) if count > correction else total * math.nan

    def std(self, dim: Dim = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
        """The standard deviation, the square root of var."""
        return self.var(dim, correction=correction, keepdim=keepdim).sqrt()

    def norm(self) -> Tensor:
        """The 2-norm of all elements, a scalar."""
        return self.square().sum().sqrt()
