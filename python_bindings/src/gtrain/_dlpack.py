"""DLPack, both ways, without a copy (dmlc/dlpack, versions 0.8 and 1). On a GPU the consumer's stream waits for ours, and ours for the producer's."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict

from . import _dtypes
from ._context import context_for
from ._errors import DeviceError, DtypeError, StateError
from ._library import lib
from ._tensor import wrap

if TYPE_CHECKING:
    from ._tensor import Tensor
    from ._typing import DeviceLike

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_READ_ONLY = 1

_TYPES = {
    _dtypes.float32: (_FLOAT, 32), _dtypes.float16: (_FLOAT, 16), _dtypes.bfloat16: (_BFLOAT, 16), _dtypes.float64: (_FLOAT, 64),
    _dtypes.int32: (_INT, 32), _dtypes.int64: (_INT, 64), _dtypes.uint8: (_UINT, 8),
}  # fmt: skip
_BY_TYPE = {v: k for k, v in _TYPES.items()} | {(_BOOL, 8): _dtypes.uint8}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_api = ctypes.pythonapi
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_capsule_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_capsule_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

# A capsule keeps the address of its name, not a copy.
_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"
_USED = {_NAME: b"used_dltensor", _NAME_VERSIONED: b"used_dltensor_versioned"}

_exported: Dict[int, Any] = {}  # address of the managed struct: what it holds


@_Deleter
def _delete(address, _exported=_exported):
    held = _exported.pop(address, None)
    if held is not None and held[-1] is not None:
        held[-1]._exports -= 1


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule, _exported=_exported, _valid=_capsule_valid, _address=_capsule_address, _names=(_NAME, _NAME_VERSIONED)):
    """A capsule that nobody consumed. `capsule` is only an address here: the object is going."""
    for name in _names:
        if _valid(capsule, name):
            held = _exported.pop(_address(capsule, name), None)
            if held is not None and held[-1] is not None:
                held[-1]._exports -= 1


# A consumer may give its array back while the interpreter ends, when this module's names are gone: these two stay until the process ends.
for _immortal in (_delete, _drop, _exported):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


def device_of_context(ctx: Any) -> Any:
    return (_CUDA, ctx._index) if ctx._is_cuda else (_CPU, 0)


def device_of(t: Any) -> Any:
    return device_of_context(t._ctx)


def export(t: Any, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
    if t.requires_grad:
        raise StateError("a tensor that requires a gradient cannot be exported: what is done to its memory outside would not be recorded; use detach()")
    if dl_device is not None and tuple(dl_device) != device_of(t):
        raise BufferError(f"the tensor is on device {device_of(t)}, not {tuple(dl_device)}")
    if copy:
        t = t.clone()
    ctx = t._ctx
    ctx._live()
    if ctx._is_cuda and stream != -1:
        from ._streams import stream_waits

        stream_waits(ctx, stream)
    return export_memory(t.data_ptr(), t.shape, t.stride(), t.dtype, ctx, max_version, t)


def export_memory(data: Any, shape: Any, strides: Any, kind: Any, ctx: Any, max_version: Any, owner: Any) -> Any:
    """A capsule for memory that `owner` keeps alive."""
    versioned = max_version is not None and max_version[0] >= 1
    managed = _Versioned(major=1, minor=0) if versioned else _Managed()
    n = len(shape)
    sizes = (ctypes.c_int64 * max(n, 1))(*shape)
    steps = None
    if strides is not None:
        steps = (ctypes.c_int64 * max(n, 1))(*strides)
    code, bits = _TYPES[kind]
    d = managed.tensor
    d.data, d.ndim = data or None, n
    d.device = _Device(*device_of_context(ctx))
    d.dtype = _Type(code, bits, 1)
    d.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    if steps is not None:
        d.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    counted = ctx if owner is not None else None
    capsule = _capsule_new(address, _NAME_VERSIONED if versioned else _NAME, ctypes.cast(_drop, ctypes.c_void_p))
    _exported[address] = (managed, sizes, steps, owner, counted)
    if counted is not None:
        counted._exports += 1
    return capsule


def from_dlpack(source: Any, *, device: DeviceLike = None, copy: Any = None) -> Tensor:
    """A tensor on the memory of another library's array (NumPy, PyTorch, CuPy …), without a copy where the memory may be written and is on the device.
    Both see what either writes."""
    kind, index = source.__dlpack_device__() if hasattr(source, "__dlpack_device__") else (_CPU, 0)
    kind = int(kind)
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise DeviceError(f"from_dlpack: device type {kind} is neither the CPU nor CUDA")
    on_gpu = kind in (_CUDA, _CUDA_MANAGED)
    ctx = context_for(f"cuda:{index}" if on_gpu else "cpu")
    named = {}
    if on_gpu:
        named["stream"] = ctx.stream or 1
    capsule = source
    if hasattr(source, "__dlpack__"):
        try:
            capsule = _exported_by(source, named)
        except BufferError:
            # NumPy before version 2 exports no read-only array and no booleans.
            if kind != _CPU or copy is False or not hasattr(source, "__array__"):
                raise
            from ._creation import tensor

            return tensor(source, device=ctx if device is None else device)
    t = _import(capsule, ctx, copy)
    return t if device is None else t.to(device=device)


def _exported_by(source, named):
    try:
        return source.__dlpack__(max_version=(1, 0), **named)
    except TypeError:
        return source.__dlpack__(**named)  # made before version 1


def _import(capsule, ctx, copy):
    for name, struct in ((_NAME_VERSIONED, _Versioned), (_NAME, _Managed)):
        if _capsule_valid(id(capsule), name):
            break
    else:
        raise ValueError("from_dlpack: not a DLPack capsule, or one that was used already")
    address = _capsule_pointer(capsule, name)
    managed = struct.from_address(address)
    if struct is _Versioned and managed.major > 1:
        raise BufferError(f"from_dlpack: DLPack {managed.major}.{managed.minor} is newer than version 1")
    d = managed.tensor
    kind = _BY_TYPE.get((d.dtype.code, d.dtype.bits)) if d.dtype.lanes == 1 else None
    if kind is None:
        raise DtypeError(f"from_dlpack: type code {d.dtype.code} with {d.dtype.bits} bits and {d.dtype.lanes} lanes has no counterpart here")
    shape = d.shape[: d.ndim] if d.ndim else []
    strides = d.strides[: d.ndim] if d.strides and d.ndim else None
    read_only = struct is _Versioned and managed.flags & _READ_ONLY
    if copy is False and read_only:
        raise BufferError("from_dlpack: the array is read-only, so that it can only be copied")
    data = (d.data or 0) + d.byte_offset
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    if strides is not None and any(s < 0 for s, n in zip(strides, shape) if n > 1):
        raise BufferError("from_dlpack: an axis that runs backwards has no counterpart here; copy the array first")
    steps = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
    deleter = ctypes.cast(managed.deleter, ctypes.c_void_p).value
    # The array's own deleter is called by the library when the last view of the memory goes; any thread, without the GIL.
    release = _Deleter(deleter) if deleter else _Deleter()
    handle = lib.gt_tensor_from_memory(ctx._live(), kind.code, len(shape), sizes, steps, data if data else None, release, address)
    t = wrap(ctx, handle)
    _capsule_rename(capsule, _USED[name])
    return t.clone() if read_only or copy else t
