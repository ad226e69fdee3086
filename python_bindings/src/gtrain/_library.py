"""Finds and loads libgtrain, and gives its functions their types.

Looked for in this order: the file or folder in GTRAIN_LIBRARY, beside this package, what the dynamic loader knows (LD_LIBRARY_PATH, ldconfig).
ctypes.CDLL releases the GIL around every call.
"""

import ctypes
import ctypes.util
import os
import sys
from typing import TYPE_CHECKING, Any

from . import _api

_NAMES = {"darwin": ("libgtrain.dylib",), "win32": ("gtrain.dll",)}.get(sys.platform, ("libgtrain.so.0", "libgtrain.so"))


def _candidates():
    """Pairs of a place and what may be loaded there."""
    chosen = os.environ.get("GTRAIN_LIBRARY")
    if chosen:
        if os.path.isdir(chosen):
            for name in _NAMES:
                yield "GTRAIN_LIBRARY", os.path.join(chosen, name)
        else:
            yield "GTRAIN_LIBRARY", chosen
        return
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (here, os.path.join(here, "lib")):
        for name in _NAMES:
            if os.path.exists(os.path.join(folder, name)):
                yield "beside the package", os.path.join(folder, name)
    for name in _NAMES:
        yield "the dynamic loader's paths", name
    found = ctypes.util.find_library("gtrain")
    if found:
        yield "ldconfig", found


def _load():
    tried = []
    for place, path in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            tried.append(f"  {path} ({place}): {error}")
    raise ImportError(
        "libgtrain was not found. Tried:\n" + "\n".join(tried) + "\nBuild it (make, or pip install ./python_bindings) or set GTRAIN_LIBRARY to the "
        "library or its folder."
    )


class _Functions:
    """The typed functions, as attributes; what the loaded library lacks raises when it is asked for."""

    def __init__(self, library):
        self._library = library
        missing = []
        for name, (result, arguments) in _api.FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                missing.append(name)
                continue
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
        self._missing = missing

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


library, path = _load()
lib = _Functions(library)

if "gt_version_number" in lib._missing or lib.gt_version_number() // 100 != _api.GT_VERSION_NUMBER // 100 or lib._missing:
    _found = "?" if "gt_version_string" in lib._missing else lib.gt_version_string().decode()
    raise ImportError(
        f"{path} is gtrain {_found}; this package was made for {_api.GT_VERSION_MAJOR}.{_api.GT_VERSION_MINOR}.x"
        + (f" and misses {', '.join(lib._missing[:5])} in it" if lib._missing else "")
        + ". Install both from the same source, or set GTRAIN_LIBRARY to the library that belongs to this package."
    )


def options(name, *extra):
    """A struct of the API, filled with the library's defaults by its init function."""
    struct = _api.STRUCTS[name]()
    from ._errors import check

    check(getattr(lib, name + "_init")(ctypes.byref(struct), ctypes.sizeof(struct), *extra))
    return struct
