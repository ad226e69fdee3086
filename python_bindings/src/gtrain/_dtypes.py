"""Element types, named as in PyTorch and comparable by identity."""

import numpy as np

from . import _api
from ._errors import DtypeError


class dtype:
    """An element type: gt.float32 … `numpy` is its NumPy type, None for bfloat16, which NumPy lacks."""

    __slots__ = ("name", "code", "itemsize", "numpy", "is_floating_point", "_rank")

    def __init__(self, name, code, itemsize, numpy, is_floating_point, rank):
        self.name, self.code, self.itemsize, self.is_floating_point, self._rank = name, code, itemsize, is_floating_point, rank
        self.numpy = np.dtype(numpy) if numpy else None

    def __repr__(self):
        return f"gtrain.{self.name}"

    def __reduce__(self):
        return (as_dtype, (self.name,))


float32 = dtype("float32", _api.GT_DTYPE_F32, 4, "float32", True, 12)
float16 = dtype("float16", _api.GT_DTYPE_F16, 2, "float16", True, 10)
bfloat16 = dtype("bfloat16", _api.GT_DTYPE_BF16, 2, None, True, 10)
float64 = dtype("float64", _api.GT_DTYPE_F64, 8, "float64", True, 13)
int32 = dtype("int32", _api.GT_DTYPE_I32, 4, "int32", False, 2)
int64 = dtype("int64", _api.GT_DTYPE_I64, 8, "int64", False, 3)
uint8 = dtype("uint8", _api.GT_DTYPE_U8, 1, "uint8", False, 1)
half, float, double, int, long = float16, float32, float64, int32, int64  # noqa: A001 - PyTorch's names

ALL = (float32, float16, bfloat16, float64, int32, int64, uint8)
BY_CODE = {d.code: d for d in ALL}
_BY_NAME = {d.name: d for d in ALL} | {
    "half": float16, "float": float32, "double": float64, "int": int32, "long": int64,
    "f32": float32, "f16": float16, "bf16": bfloat16, "f64": float64, "i32": int32, "i64": int64, "u8": uint8,
}  # fmt: skip
_BY_NUMPY = {d.numpy: d for d in ALL if d.numpy is not None}


def as_dtype(value):
    """A dtype from one of ours, a name, a NumPy type, PyTorch's or Python's own float and int."""
    if isinstance(value, dtype):
        return value
    if value is __builtins_float:
        return float32
    if value is __builtins_int:
        return int64
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    name = str(value)
    if name.startswith("torch.") and name[6:] in _BY_NAME:
        return _BY_NAME[name[6:]]
    try:
        found = _BY_NUMPY.get(np.dtype(value))
    except TypeError:
        found = None
    if found is None:
        raise DtypeError(f"{value!r} is no dtype of gtrain; there are {', '.join(d.name for d in ALL)}")
    return found


def promote(a, b, a_is_scalar=False, b_is_scalar=False):
    """The dtype in which two tensors meet, as in PyTorch: floating before integer, then the wider; one without axes does not widen its own kind."""
    if a is b:
        return a
    if a.is_floating_point != b.is_floating_point:
        return a if a.is_floating_point else b
    if a_is_scalar != b_is_scalar:
        return b if a_is_scalar else a
    if a._rank == b._rank:
        return float32  # f16 and bf16
    return a if a._rank > b._rank else b


import builtins as _builtins  # noqa: E402 - `float` and `int` above hide them

__builtins_float, __builtins_int = _builtins.float, _builtins.int
