"""The library's messages.

A log callback runs in the middle of whatever call has something to say. If that were Python code, Ctrl-C that came during the call would be raised in its first
line, where nothing can catch it, and be lost. So messages go into the library's own queue, and the next call that returns a status, or fails, hands them over.
"""

import ctypes
import itertools
import logging
import os
from typing import Any, List

from . import _api
from ._library import lib, library

logger = logging.getLogger("gtrain")

_LEVELS = {
    _api.GT_LOG_DEBUG: logging.DEBUG,
    _api.GT_LOG_INFO: logging.INFO,
    _api.GT_LOG_WARNING: logging.WARNING,
    _api.GT_LOG_ERROR: logging.ERROR,
}

_put = ctypes.cast(library.gt_log_queue_put, _api.gt_log_fn)
_logs: List[Any] = []  # of the contexts that are there
_text = ctypes.create_string_buffer(_api.GT_LOG_TEXT_MAX)


class Log:
    """A context's queue, and the function of (level, text) that its messages go to; None: the logger "gtrain"."""

    def __init__(self, function):
        queue = ctypes.c_void_p()
        if lib.gt_log_queue_create(ctypes.byref(queue)):
            raise MemoryError("no room for a context's messages")
        self._queue = queue
        self._count = lib.gt_log_queue_count(queue).contents
        self._function = function or _to_logger

    def attach(self, o):
        """Sets the log function in a context's options."""
        o.log, o.log_user = _put, self._queue
        _logs.append(self)

    def detach(self):
        """After the context has gone: the end of the queue."""
        _logs.remove(self)
        try:
            self._deliver()
        finally:
            lib.gt_log_queue_destroy(self._queue)

    def _deliver(self):
        level = _api.gt_log_level()
        while self._count.value and lib.gt_log_queue_take(self._queue, ctypes.byref(level), _text, len(_text)):
            self._function(_LEVELS.get(level.value, logging.INFO), _text.value.decode(errors="replace"))


def deliver():
    """Hands over what has been said. Raises what a log function raises."""
    for log in _logs:
        if log._count.value:
            log._deliver()


def _to_logger(level, text):
    if level == logging.WARNING and text.startswith("no GPU is used") and not os.path.exists("/dev/nvidiactl"):
        level = logging.INFO  # there is none
    logger.log(level, text)
