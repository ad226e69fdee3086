"""Order between our stream and another library's, by events of the CUDA driver: no thread waits."""

import ctypes

from ._errors import LibraryError

_driver = None


def _cuda():
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
        for name, arguments in (
            ("cuStreamGetCtx", [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]),
            ("cuCtxPushCurrent_v2", [ctypes.c_void_p]),
            ("cuCtxPopCurrent_v2", [ctypes.POINTER(ctypes.c_void_p)]),
            ("cuEventCreate", [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]),
            ("cuEventRecord", [ctypes.c_void_p, ctypes.c_void_p]),
            ("cuStreamWaitEvent", [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]),
            ("cuEventDestroy_v2", [ctypes.c_void_p]),
        ):
            function = getattr(_driver, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
    return _driver


def _check(code, what):
    if code:
        error = LibraryError(f"{what} returned CUresult {code}")
        error.native_code, error.native_name = code, "CUresult"
        raise error


def stream_waits(ctx, stream):
    """Work that is queued on `stream` from now on runs after what is queued on the context's. None, 1: the legacy default stream; 2: the thread's."""
    ours = ctx.stream
    theirs = 1 if stream is None else int(stream)
    if ours == theirs:
        return
    cuda = _cuda()
    device = ctypes.c_void_p()
    event = ctypes.c_void_p()
    _check(cuda.cuStreamGetCtx(ours, ctypes.byref(device)), "cuStreamGetCtx")
    _check(cuda.cuCtxPushCurrent_v2(device), "cuCtxPushCurrent")
    try:
        without_timing = 2
        _check(cuda.cuEventCreate(ctypes.byref(event), without_timing), "cuEventCreate")
        _check(cuda.cuEventRecord(event, ours), "cuEventRecord")
        _check(cuda.cuStreamWaitEvent(theirs, event, 0), "cuStreamWaitEvent")
    finally:
        if event:
            cuda.cuEventDestroy_v2(event)  # once it has happened
        cuda.cuCtxPopCurrent_v2(ctypes.byref(device))
