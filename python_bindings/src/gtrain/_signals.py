"""Ctrl-C while the library runs callbacks of ours.

Python raises KeyboardInterrupt wherever its next bytecode is: in the first line of a callback, where nothing can catch it, the exception would be lost and the
library would be told that all is well. So calls that run callbacks hold it back until they return. A handler of the program's own is left alone.
"""

import signal
import threading

_main = threading.main_thread().ident
_pending = False
_holding = False


def _note(number, frame):
    global _pending
    _pending = True


def pending():
    """Whether an interrupt is being held back: the trainer then stops before its next step."""
    return _pending


class callbacks:
    """`used`: backward may run Python code."""

    used = False


class held:
    """`with held():` around such a call; raises what came meanwhile at the end."""

    __slots__ = ("_ours",)

    def __enter__(self):
        global _holding
        self._ours = False
        if not _holding and threading.get_ident() == _main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _note)
            _holding = self._ours = True

    def __exit__(self, kind, error, trace):
        global _holding, _pending
        if not self._ours:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _holding = False
        if _pending:
            _pending = False
            raise KeyboardInterrupt from error
