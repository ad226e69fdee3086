"""Failures as exceptions. Every status of the library has a class; all derive from Error, and from the built-in class that a Python user would expect."""

import builtins
import threading
from typing import Tuple

from . import _api
from ._library import lib
from ._log import _logs, deliver


class Error(RuntimeError):
    """A call of the library failed. `status` is its name ("BAD_SHAPE"), `hint` what to do about it, or ""."""

    status = "INTERNAL"
    hint = ""
    mismatches: Tuple[Tuple[str, str], ...] = ()  # of a file or state that does not fit: names and what is wrong
    native_code = 0
    native_name = ""
    raised_at = ""


class ArgumentError(Error, ValueError):
    """An argument is outside what the function accepts. Where a state does not fit, `mismatches` lists all that does not."""

    status = "BAD_ARGUMENT"


class ShapeError(Error, ValueError):
    """A shape does not fit."""

    status = "BAD_SHAPE"


class DtypeError(Error, TypeError):
    """A data type does not fit."""

    status = "BAD_DTYPE"


class DeviceError(Error):
    """Tensors of different devices were mixed."""

    status = "BAD_DEVICE"


class StateError(Error):
    """The call is not allowed in the object's present state."""

    status = "BAD_STATE"


class LabelError(Error, IndexError):
    """A class label, or an index into an embedding, is outside its range."""

    status = "BAD_LABEL"


class BatchError(Error, ValueError):
    """The batch is too small for this operation: batch norm needs two values a channel in training."""

    status = "BAD_BATCH"


class FileError(Error, ValueError):
    """A file's contents are not what they should be."""

    status = "BAD_FILE"


class AbiError(Error):
    """An options struct does not belong to this version of the library."""

    status = "BAD_ABI"


class OutOfMemoryError(Error, MemoryError):
    """Device memory is exhausted or its limit is reached. `report` (gtrain.memory.Report) says by what, and what can be done."""

    status = "OUT_OF_MEMORY"
    report = None


class OutOfHostMemoryError(Error, MemoryError):
    """The host's memory is exhausted."""

    status = "OUT_OF_HOST_MEMORY"


class NotSupportedError(Error, NotImplementedError):
    """This device or build, or gtrain at all, cannot do that."""

    status = "NOT_SUPPORTED"


class NoDeviceError(Error):
    """The device or its libraries are not available; the message says what is missing and how to get it. See gtrain.doctor."""

    status = "NO_DEVICE"


class LibraryError(Error):
    """A device library (CUDA, cuDNN, cuBLAS, oneDNN) reported an error: `native_name` and `native_code`."""

    status = "LIBRARY"


class VersionMismatchError(Error):
    """A device library is older than the one that gtrain was built for."""

    status = "VERSION_MISMATCH"


class FileSystemError(Error, OSError):
    """The operating system reported an input or output error: `errno`."""

    status = "IO"


class NoGradientsError(Error):
    """No parameter has a gradient: backward was not called, or nothing led to a parameter."""

    status = "NO_GRADS"


class SavedModifiedError(Error):
    """A tensor that backward needs was changed in place."""

    status = "SAVED_MODIFIED"


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the library's, and the built-in's too
    status = "TIMEOUT"


class WorkerError(Error):
    """A loader's worker failed; what the data set raised is the cause."""

    status = "WORKER"


class ForkedError(Error):
    """The object was made by the parent process of a fork."""

    status = "FORKED"


class StoppedError(Error):
    """A callback asked to stop."""

    status = "STOPPED"


class NotDeterministicError(Error):
    """There is no deterministic way to compute this, and the context is deterministic."""

    status = "NOT_DETERMINISTIC"


class CallbackError(Error):
    """A callback reported failure without an exception."""

    status = "CALLBACK"


class NotFoundError(Error, KeyError):
    """There is nothing of that name."""

    status = "NOT_FOUND"

    def __str__(self):  # KeyError would quote it
        return RuntimeError.__str__(self)


class InternalError(Error):
    """A bug in gtrain."""

    status = "INTERNAL"


def _classes():
    return {c.status: c for c in globals().values() if isinstance(c, type) and issubclass(c, Error) and c is not Error}


_BY_STATUS = {getattr(_api, "GT_" + name): c for name, c in _classes().items()}

# What a callback raised, until the call that ran it returns: exceptions cannot cross C. One a thread.
_local = threading.local()


def carry(error):
    """Keeps a callback's exception for the call that runs it. The first one counts; what follows from it is not the cause."""
    if getattr(_local, "carried", None) is None:
        _local.carried = error


def carried():
    """Takes the exception that a callback left, or None."""
    error = getattr(_local, "carried", None)
    if error is not None:
        _local.carried = None
    return error


def failure(ctx=None, status=None):
    """The exception for this thread's last error; what a callback raised takes its place. What was logged on the way is handed over first."""
    error = _failure(ctx, status)
    deliver()
    return error


def _failure(ctx, status):
    raised = carried()
    if raised is not None:
        return raised
    record = lib.gt_last_error().contents
    code = record.status if status is None else status
    if code == _api.GT_CALLBACK and threading.current_thread() is threading.main_thread():
        # Callbacks of ours leave what they raise. Nothing is left where Ctrl-C came in a callback's first bytecode, before it could catch anything.
        from signal import SIGINT, default_int_handler, getsignal

        if getsignal(SIGINT) is default_int_handler:
            return KeyboardInterrupt()
    same = code == record.status
    message = record.message.decode(errors="replace") if same and record.message else (lib.gt_status_text(code) or b"").decode()
    hint = record.hint.decode(errors="replace") if same and record.hint else ""
    kind = _BY_STATUS.get(code, Error)
    if kind is OutOfMemoryError and hint:
        from .memory import spoken

        hint = spoken(hint)
    error = kind(message + ("\n" + hint if hint else ""))
    error.hint = hint
    if same:
        error.native_code = record.native_code
        error.native_name = (record.native_name or b"").decode(errors="replace")
        error.raised_at = f"{(record.file or b'').decode(errors='replace')}:{record.line}"
    if kind is FileSystemError and error.native_code:
        error.errno = error.native_code
    if kind is OutOfMemoryError and ctx is not None:
        from .memory import last_out_of_memory

        error.report = last_out_of_memory(ctx)
    return error


def check(status, ctx=None):
    if status:
        raise failure(ctx, status)
    for log in _logs:
        if log._count.value:
            log._deliver()
