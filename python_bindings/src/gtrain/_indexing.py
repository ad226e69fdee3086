"""x[...]: integers, slices, None and Ellipsis are views; an integer tensor (or list) picks rows."""

import ctypes
import operator

import numpy as np

from ._errors import NotSupportedError
from ._library import lib
from ._tensor import Tensor, wrap


def _expanded(key, ndim):
    """The key with Ellipsis written out."""
    key = key if isinstance(key, tuple) else (key,)
    used = sum(k is not None and k is not Ellipsis for k in key)
    if used > ndim:
        raise IndexError(f"{used} indices for a tensor with {ndim} axes")
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have one ellipsis")
    at = dots[0] if dots else len(key)
    return key[:at] + (slice(None),) * (ndim - used) + key[at + 1 :]


def _is_rows(k):
    return isinstance(k, (list, np.ndarray)) or (isinstance(k, Tensor) and k.ndim > 0)


def _sliced(x, axis, start, stop, step):
    return wrap(x._ctx, lib.gt_slice(x._h, axis, start, stop, step))


def get(x, key):
    if _is_rows(key):
        return _rows(x, key)
    if isinstance(key, tuple) and any(map(_is_rows, key)):
        where = next(i for i, k in enumerate(key) if _is_rows(k))
        if sum(map(_is_rows, key)) > 1 or Ellipsis in [k for k in key[:where] if not _is_rows(k)]:
            raise NotSupportedError("an index may have one tensor or list of rows, and no ellipsis before it")
        if any(not isinstance(k, slice) or k != slice(None) for k in key[:where]):
            raise NotSupportedError("only ':' may stand before a tensor or list of rows")
        moved = _rows(x.transpose(0, where), key[where]) if where else _rows(x, key[0])
        if where:
            moved = moved.transpose(0, where)
        rest = key[where + 1 :]
        return get(moved, (slice(None),) * (where + 1) + rest) if rest else moved
    shape, out, axis = x.shape, [], 0
    view, reshaped = x, False
    for k in _expanded(key, len(shape)):
        if k is None:
            out.append(1)
            reshaped = True
            continue
        n = shape[axis]
        if isinstance(k, slice):
            start, stop, step = k.indices(n)
            if step < 0:
                raise NotSupportedError("a slice's step must be positive")
            if (start, stop, step) != (0, n, 1):
                view = _sliced(view, axis, start, max(stop, start), step)
            out.append(max(0, -(-(stop - start) // step)))
        else:
            if isinstance(k, (bool, np.bool_)):
                raise NotSupportedError("a tensor cannot be indexed by booleans")
            i = operator.index(k)
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of range for axis {axis} with size {n}")
            i += n if i < 0 else 0
            view = _sliced(view, axis, i, i + 1, 1)
            reshaped = True
        axis += 1
    if reshaped:
        return wrap(x._ctx, lib.gt_reshape(view._h, len(out), (ctypes.c_int64 * len(out))(*out)))
    return view if view is not x else wrap(x._ctx, lib.gt_reshape(x._h, len(out), (ctypes.c_int64 * len(out))(*out)))


def _rows(x, index):
    """x[index] along the first axis, by the embedding op: differentiable, and checked."""
    from ._creation import tensor

    if not isinstance(index, Tensor):
        index = np.asarray(index)
        if index.dtype == bool:
            index = np.nonzero(index)[0]
        if x.ndim:
            index = np.where(index < 0, index + x.shape[0], index)
        index = tensor(index.astype(np.int64), device=x._ctx)
    if index.dtype.is_floating_point:
        raise NotSupportedError("an index tensor holds integers")
    if x.ndim == 0:
        raise IndexError("a tensor without axes cannot be indexed")
    shape = x.shape
    index = index.to("int64")
    if index.numel():
        low = index.numpy().min() if not x._ctx._is_cuda else 0  # on a GPU that would wait; the op reports what is out of range
        if low < 0:
            index = tensor(np.where(index.numpy() < 0, index.numpy() + shape[0], index.numpy()), device=x._ctx)
    if x.dtype.is_floating_point:
        table = x.reshape(shape[0], -1) if x.numel() else x.reshape(shape[0], int(np.prod(shape[1:])))
        picked = wrap(x._ctx, lib.gt_embedding(table._h, index._h))
        return picked.reshape(index.shape + shape[1:])
    picked = tensor(x.numpy()[index.numpy()], device=x._ctx)
    return picked


def put(x, key, value):
    if _is_rows(key) or (isinstance(key, tuple) and any(map(_is_rows, key))):
        raise NotSupportedError("assignment to picked rows; assign to slices")
    place = get(x, key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        place.fill_(value)
    else:
        place.copy_(value)
