"""Files: tensors in the safetensors format, modules by PyTorch's names, and whole training runs that go on where they stopped."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from . import _api
from ._context import context_for
from ._errors import ArgumentError, StateError, carry, check, failure
from ._library import lib, options
from ._tensor import wrap
from .nn.module import IncompatibleKeys

if TYPE_CHECKING:
    from ._tensor import Tensor
    from ._typing import DeviceLike


def _pairs(metadata: Optional[Mapping[str, str]]) -> Tuple[Any, int]:
    items = list((metadata or {}).items())
    pairs = (_api.gt_text_pair * max(len(items), 1))()
    for pair, (key, value) in zip(pairs, items):
        pair.key, pair.value = key.encode(), str(value).encode()
    return pairs, len(items)


def save_file(tensors: Mapping[str, Tensor], path: Any, metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes tensors by name to a safetensors file, whole or not at all. Tensors that share memory are written once. Waits for the device."""
    tensors = dict(tensors)
    names = (ctypes.c_char_p * len(tensors))(*[n.encode() for n in tensors])
    held = (ctypes.c_void_p * len(tensors))(*[t._h for t in tensors.values()])
    pairs, count = _pairs(metadata)
    check(lib.gt_safetensors_save(os.fsencode(path), names, held, len(tensors), pairs, count))


class SafeTensors:
    """An open safetensors file; tensors are read when they are asked for: `with SafeTensors(path) as f: f["weight"]`."""

    def __init__(self, path: Any, *, device: DeviceLike = None) -> None:
        handle = ctypes.c_void_p()
        self._h: Any = None
        check(lib.gt_safetensors_open(os.fsencode(path), ctypes.byref(handle)))
        self._h, self._device = handle.value, device

    def close(self) -> None:
        """Closes the file. Tensors that were read from it stay."""
        handle, self._h = self._h, None
        if handle is not None:
            lib.gt_safetensors_close(handle)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> SafeTensors:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _live(self) -> Any:
        if self._h is None:
            raise StateError("this file is closed")
        return self._h

    def __len__(self) -> int:
        return lib.gt_safetensors_count(self._live())

    def keys(self) -> List[str]:
        """The tensors' names, in the order of the file."""
        info = options("gt_safetensors_info")
        names = []
        for i in range(len(self)):
            check(lib.gt_safetensors_get_info(self._live(), i, ctypes.byref(info)))
            names.append(info.name.decode())
        return names

    def __iter__(self) -> Any:
        return iter(self.keys())

    def __contains__(self, name: str) -> bool:
        index = ctypes.c_int64()
        return lib.gt_safetensors_find(self._live(), name.encode(), ctypes.byref(index)) == 0

    def __getitem__(self, name: str) -> Tensor:
        index = ctypes.c_int64()
        check(lib.gt_safetensors_find(self._live(), name.encode(), ctypes.byref(index)))
        ctx = context_for(self._device)
        return wrap(ctx, lib.gt_safetensors_read(ctx._live(), self._live(), index.value))

    @property
    def metadata(self) -> Dict[str, str]:
        """The file's texts by their key."""
        pair = _api.gt_text_pair()
        found = {}
        for i in range(lib.gt_safetensors_metadata_count(self._live())):
            check(lib.gt_safetensors_metadata(self._live(), i, ctypes.byref(pair)))
            found[pair.key.decode()] = pair.value.decode()
        return found


def load_file(path: Any, *, device: DeviceLike = None) -> Dict[str, Tensor]:
    """All tensors of a safetensors file by name."""
    with SafeTensors(path, device=device) as file:
        return {name: file[name] for name in file}


def save_module(module: Any, path: Any, metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes a module's parameters and buffers by PyTorch's names."""
    pairs, count = _pairs(metadata)
    check(lib.gt_module_save(module._h, os.fsencode(path), pairs, count), module._ctx)


def _mismatches(found: List[Tuple[int, str, str]]) -> Any:
    def call(user: Any, kind: int, name: bytes, text: bytes) -> None:
        try:
            found.append((kind, name.decode(errors="replace"), text.decode(errors="replace")))
        except BaseException as error:
            carry(error)

    return _api.gt_mismatch_fn(call)


def _failed(status: int, ctx: Any, found: List[Tuple[int, str, str]]) -> None:
    if status:
        error = failure(ctx, status)
        error.mismatches = tuple((name, text) for _, name, text in found)
        raise error


def load_module(module: Any, path: Any, strict: bool = True) -> IncompatibleKeys:
    """Overwrites a module's parameters and buffers, all or nothing. Returns (missing_keys, unexpected_keys); an error has all that does not fit in its
    `mismatches`."""
    found: List[Tuple[int, str, str]] = []
    o = options("gt_module_load_options")
    o.strict, o.on_mismatch = bool(strict), _mismatches(found)
    _failed(lib.gt_module_load(module._h, os.fsencode(path), ctypes.byref(o)), module._ctx, found)
    return IncompatibleKeys(*([n for k, n, _ in found if k == kind] for kind in (_api.GT_MISMATCH_MISSING, _api.GT_MISMATCH_UNEXPECTED)))


# --- the state of a run -------------------------------------------------------------------------------------------------------------------


def _state_parts(module: Any, optimizers: Any, scaler: Any, window: Any, trainer: Any, loader: Any) -> Tuple[Any, Any, Any]:
    o = options("gt_state_parts")
    optimizers = [] if optimizers is None else list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    parts = [p for optimizer in optimizers for p in optimizer._parts]
    array = (ctypes.c_void_p * max(len(parts), 1))(*[p._live() for p in parts])
    o.optimizers, o.n_optimizers = (array if parts else None), len(parts)
    o.module = None if module is None else module._h
    o.scaler = None if scaler is None or not scaler.is_enabled() else scaler._live()
    o.window, o.trainer, o.loader = (None if x is None else x._live() for x in (window, trainer, loader))
    whole = next((x for x in (module, trainer, *optimizers) if x is not None), None)
    if whole is None:
        raise ArgumentError("give a module, an optimizer or a trainer")
    return o, whole._ctx, array


def save_state(
    path: Any, *, module: Any = None, optimizers: Any = None, scaler: Any = None, window: Any = None, trainer: Any = None, loader: Any = None,
    metadata: Optional[Mapping[str, str]] = None,
) -> None:  # fmt: skip
    """Writes all that is needed to go on as if nothing had happened, random numbers included, whole or not at all. A trainer stands in for its module,
    optimizer and scaler. In a trainer's callback: while progress.open_batches is 0."""
    o, ctx, _ = _state_parts(module, optimizers, scaler, window, trainer, loader)
    pairs, o.n_metadata = _pairs(metadata)
    o.metadata = pairs
    check(lib.gt_state_save(os.fsencode(path), ctypes.byref(o)), ctx)


def load_state(
    path: Any, *, module: Any = None, optimizers: Any = None, scaler: Any = None, window: Any = None, trainer: Any = None, loader: Any = None
) -> None:
    """Puts these parts where the file says, all or nothing; an error has all that does not fit in its `mismatches`."""
    o, ctx, _ = _state_parts(module, optimizers, scaler, window, trainer, loader)
    found: List[Tuple[int, str, str]] = []
    o.on_mismatch = _mismatches(found)
    _failed(lib.gt_state_load(os.fsencode(path), ctypes.byref(o)), ctx, found)
    if loader is not None:
        loader._fresh = True
    for optimizer in [] if optimizers is None else optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]:
        for part, group in zip(optimizer._parts, optimizer.param_groups):
            dict.__setitem__(group, "lr", lib.gt_optimizer_learning_rate(part._live()))


def state_path(prefix: Any, number: int) -> str:
    """("run/state-", 120) to "run/state-000120.safetensors"."""
    needed = ctypes.c_size_t()
    check(lib.gt_state_path(os.fsencode(prefix), number, None, 0, ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(lib.gt_state_path(os.fsencode(prefix), number, buffer, needed.value, None))
    return os.fsdecode(buffer.value)


def latest_state(prefix: Any) -> Optional[Tuple[str, int]]:
    """Path and number of the state with the greatest number; None where there is none."""
    number, needed = ctypes.c_int64(), ctypes.c_size_t()
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        status = lib.gt_state_latest(os.fsencode(prefix), buffer, size, ctypes.byref(needed), ctypes.byref(number))
        if status == _api.GT_NOT_FOUND:
            return None
        check(status)
        if needed.value <= size:
            return os.fsdecode(buffer.value), number.value
        size = needed.value


def keep_last(prefix: Any, keep: int) -> None:
    """Removes all but the `keep` states with the greatest numbers. Call it after saving."""
    check(lib.gt_state_keep_last(os.fsencode(prefix), keep))


def export_onnx(
    module: Any, inputs: Any, path: Any, *, opset: int = 17, dynamic_batch: bool = True, input_names: Any = None, output_name: Optional[str] = None,
    metadata: Optional[Mapping[str, str]] = None,
) -> None:  # fmt: skip
    """Writes a module, in evaluation mode, as an ONNX file. `inputs`: an example or several; axis 0 is a batch of any size with dynamic_batch."""
    inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    o = options("gt_onnx_options")
    o.opset, o.dynamic_batch = opset, bool(dynamic_batch)
    if input_names is not None:
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        if len(names) != len(inputs):
            raise ArgumentError(f"export_onnx: {len(names)} names for {len(inputs)} inputs")
        o.input_names = (ctypes.c_char_p * len(names))(*[n.encode() for n in names])
    if output_name is not None:
        o.output_name = output_name.encode()
    texts = [t.encode() for pair in (metadata or {}).items() for t in pair]
    if texts:
        o.metadata, o.n_metadata = (ctypes.c_char_p * len(texts))(*texts), len(texts) // 2
    held = (ctypes.c_void_p * len(inputs))(*[t._h for t in inputs])
    check(lib.gt_module_export_onnx(module._h, held, len(inputs), ctypes.byref(o), os.fsencode(path)), module._ctx)
