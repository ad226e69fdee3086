"""Names for what arguments may be."""

from __future__ import annotations

from typing import Any, Sequence, Tuple, Union

import numpy as np

from ._context import Context
from ._dtypes import dtype
from ._tensor import Tensor

TensorLike = Union[Tensor, float, int, np.ndarray, np.number]
DtypeLike = Union[dtype, str, type, np.dtype, Any, None]
DeviceLike = Union[Context, str, None]
Dim = Union[int, Sequence[int], None]
IntPair = Union[int, Tuple[int, int]]
Shape = Union[int, Sequence[int]]
