"""Data sets, what is done to each sample, and loaders: worker threads of the library that make batches ahead of use."""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

import numpy as np

from . import _api, _dtypes
from ._context import Owned, check_process, context_for
from ._dtypes import BY_CODE, as_dtype
from ._errors import ArgumentError, NotFoundError, WorkerError, check, failure
from ._library import lib, options
from ._tensor import Tensor, wrap

if TYPE_CHECKING:
    from ._typing import DeviceLike, DtypeLike

_fetching: Dict[int, Any] = {}  # number: data set in Python that the library's workers ask for samples
_numbers = itertools.count(1)


class Dataset:
    """Samples that can be fetched by number. Subclass it with __len__ and __getitem__(index), which returns a sample, or a sample and its label, as arrays
    or numbers: it is called on worker threads, several at once. Or make one from arrays (TensorDataset) or files (IDX, FashionMNIST)."""

    _handle = None
    _classes = 0

    def _library_handle(self):
        """The library's data set, made at first use; the class owns it."""
        if self._handle is None:
            self._handle = _Handle(*_from_python(self))
        return self._handle.value

    def __len__(self) -> int:
        if self._handle is None:
            raise TypeError(f"{type(self).__name__} has no __len__")
        return lib.gt_dataset_length(self._handle.value)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no __getitem__; its samples come from a Loader")

    @property
    def format(self) -> Dict[str, Any]:
        """Shapes, dtypes, length and classes, as the library sees them."""
        f = options("gt_dataset_format")
        check(lib.gt_dataset_get_format(self._library_handle(), ctypes.byref(f)))
        return {
            "sample_shape": tuple(f.sample_shape[: f.sample_ndim]),
            "sample_dtype": BY_CODE[f.sample_dtype],
            "label_shape": tuple(f.label_shape[: f.label_ndim]) if f.has_labels else None,
            "label_dtype": BY_CODE[f.label_dtype] if f.has_labels else None,
            "length": f.length,
            "classes": f.classes,
        }

    def slice(self, first: int, count: int) -> Dataset:
        """`count` samples from `first` on, as a data set of its own."""
        handle = ctypes.c_void_p()
        check(lib.gt_dataset_slice(self._library_handle(), first, count, ctypes.byref(handle)))
        part = _LibraryDataset()
        part._handle, part._source = _Handle(handle.value, None), self
        return part


class _LibraryDataset(Dataset):
    _source: Any = None


class _Handle:
    """Gives up the library's data set with the last Python object; loaders keep what they use."""

    __slots__ = ("value", "kept")

    def __init__(self, value, kept):
        self.value, self.kept = value, kept

    def __del__(self, _destroy=lib.gt_dataset_destroy):
        _destroy(self.value)


def _format(sample, label, length, classes):
    f = options("gt_dataset_format")
    f.sample_dtype, f.sample_ndim = as_dtype(sample.dtype).code, sample.ndim
    f.sample_shape[: sample.ndim] = sample.shape
    f.has_labels = label is not None
    if label is not None:
        f.label_dtype, f.label_ndim = as_dtype(label.dtype).code, label.ndim
        f.label_shape[: label.ndim] = label.shape
    f.length, f.classes = length, classes
    return f


def _plain(value, what):
    """A sample or label as a contiguous array of a dtype that the library has. Python's floats become float32."""
    if isinstance(value, Tensor):
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    elif array.dtype == np.float64 and not isinstance(value, np.ndarray):
        array = array.astype(np.float32)
    elif array.dtype not in _dtypes._BY_NUMPY:
        if array.dtype.kind not in "iu":
            raise ArgumentError(f"a {what} of {array.dtype} has no counterpart among the dtypes")
        array = array.astype(np.int64)
    return np.asarray(array, order="C")  # ascontiguousarray would give a number an axis


def _parts(value):
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ArgumentError(f"a data set's item is a sample or (sample, label), not {len(value)} things")
        return _plain(value[0], "sample"), _plain(value[1], "label")
    return _plain(value, "sample"), None


def _from_python(dataset):
    length = len(dataset)
    if length < 1:
        raise ArgumentError(f"{type(dataset).__name__} has no samples")
    sample, label = _parts(dataset[0])
    f = _format(sample, label, length, dataset._classes)
    shapes = (sample.shape, sample.dtype, None if label is None else label.shape, None if label is None else label.dtype)
    number = next(_numbers)
    c = options("gt_dataset_callbacks")
    c.user, c.fetch, c.destroy = number, _fetch, _forget
    fetcher = _Fetcher()
    fetcher.dataset, fetcher.shapes, fetcher.error = weakref.ref(dataset), shapes, None
    _fetching[number] = fetcher
    handle = ctypes.c_void_p()
    try:
        check(lib.gt_dataset_from_callbacks(ctypes.byref(f), ctypes.byref(c), ctypes.byref(handle)))
    except BaseException:
        _fetching.pop(number, None)
        raise
    return handle.value, fetcher


class _Fetcher:
    """What the workers know of a data set in Python. `dataset` is weak: loaders keep the Python object themselves."""

    __slots__ = ("dataset", "shapes", "error")
    dataset: Any
    shapes: Any
    error: Optional[BaseException]


_STATUS = int(_api.GT_CALLBACK)


@_api.gt_dataset_callbacks._fields_[3][1]
def _fetch(number, index, epoch, sample, label):
    fetcher = None
    try:
        fetcher = _fetching[number]
        dataset = fetcher.dataset()
        if dataset is None:
            raise RuntimeError("the data set is gone")
        x, y = _parts(dataset[index])
        shape, kind, label_shape, label_kind = fetcher.shapes
        _store(x, shape, kind, sample, index, "sample")
        if label_shape is not None:
            if y is None:
                raise ArgumentError(f"sample {index} has no label, sample 0 has one")
            _store(y, label_shape, label_kind, label, index, "label")
        return 0
    except BaseException as error:
        if fetcher is not None and fetcher.error is None:
            fetcher.error = error
        return _STATUS


def _store(array, shape, kind, address, index, what):
    if array.shape != shape:
        raise ArgumentError(f"{what} {index} has shape {list(array.shape)}, {what} 0 has {list(shape)}")
    if array.dtype != kind:
        array = array.astype(kind)
    ctypes.memmove(address, array.ctypes.data, array.nbytes)


@_api.gt_dataset_callbacks._fields_[5][1]
def _forget(number, _fetching=_fetching):
    _fetching.pop(number, None)


class TensorDataset(_LibraryDataset):
    """Samples from arrays: x [N, ...], labels y [N, ...] or None. They are copied; copy=False uses the memory of C-contiguous arrays in place, which must
    then stay as they are. classes: labels must be below it."""

    def __init__(self, x: Any, y: Any = None, *, classes: int = 0, copy: Any = True) -> None:
        x = _plain(x, "sample")
        y = None if y is None else _plain(y, "label")
        if x.ndim == 0 or (y is not None and (y.ndim == 0 or len(y) != len(x))):
            raise ArgumentError(f"TensorDataset: {len(x) if x.ndim else 'no'} samples and {'no' if y is None or not y.ndim else len(y)} labels")
        f = options("gt_dataset_format")
        f.sample_dtype, f.sample_ndim, f.length, f.classes = as_dtype(x.dtype).code, x.ndim - 1, len(x), classes
        f.sample_shape[: x.ndim - 1] = x.shape[1:]
        f.has_labels = y is not None
        if y is not None:
            f.label_dtype, f.label_ndim = as_dtype(y.dtype).code, y.ndim - 1
            f.label_shape[: y.ndim - 1] = y.shape[1:]
        handle = ctypes.c_void_p()
        check(lib.gt_dataset_from_arrays(ctypes.byref(f), x.ctypes.data, None if y is None else y.ctypes.data, not copy, ctypes.byref(handle)))
        self._handle = _Handle(handle.value, None if copy else (x, y))
        self._borrowed = None if copy else (x, y)


class IDX(_LibraryDataset):
    """A pair of IDX files (the format of MNIST), plain or gzip. images: path of unsigned bytes [N, H, W]; labels: path of as many, or None; classes: labels must be
    below it, 0 for any. Samples are uint8 [1, H, W]: a Transform makes floats of them."""

    def __init__(self, images: Any, labels: Any = None, classes: int = 0) -> None:
        handle = ctypes.c_void_p()
        check(lib.gt_dataset_from_idx(os.fsencode(images), None if labels is None else os.fsencode(labels), classes, ctypes.byref(handle)))
        self._handle = _Handle(handle.value, None)
        self.images, self.labels = images, labels


class FashionMNIST(IDX):
    """Fashion-MNIST from `root`, GTRAIN_DATA or /usr/share/datasets/fashion-mnist (Debian's package dataset-fashion-mnist): 60000 images to
    train with, or with train=False the 10000 to test with, uint8 [1, 28, 28]. MEAN and STD are of the pixels over 255."""

    CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    MEAN, STD = 0.2860, 0.3530

    def __init__(self, root: Optional[str] = None, train: bool = True) -> None:
        root = root or os.environ.get("GTRAIN_DATA") or "/usr/share/datasets/fashion-mnist"
        part = "train" if train else "t10k"
        paths = []
        for kind in ("images-idx3", "labels-idx1"):
            base = os.path.join(root, f"{part}-{kind}-ubyte")
            path = next((p for p in (base + ".gz", base) if os.path.exists(p)), None)
            if path is None:
                raise NotFoundError(f"{base}[.gz] is not there: install dataset-fashion-mnist, or give the folder with root= or GTRAIN_DATA")
            paths.append(path)
        super().__init__(paths[0], paths[1], classes=10)


class Transform:
    """Steps that a loader applies to each sample, in the order in which they were added:
    Transform().to_float(1 / 255).normalize(0.286, 0.353).random_crop(28, 28, padding=2).horizontal_flip()"""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        check(lib.gt_transform_create(ctypes.byref(handle)))
        self._h = handle.value

    def __del__(self, _destroy=lib.gt_transform_destroy) -> Any:
        if "_h" in self.__dict__:
            _destroy(self._h)

    def to_float(self, scale: float = 1 / 255) -> Transform:
        """uint8 (or float32) to float32, times `scale`. Returns the Transform."""
        check(lib.gt_transform_to_float(self._h, scale))
        return self

    def normalize(self, mean: Any, std: Any) -> Transform:
        """(x - mean[c]) / std[c]; one number each serves samples of any shape."""
        mean, std = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(std, np.float64))
        if mean.shape != std.shape or mean.ndim != 1:
            raise ArgumentError(f"normalize: {mean.size} means and {std.size} deviations")
        numbers = ctypes.c_double * len(mean)
        check(lib.gt_transform_normalize(self._h, numbers(*mean), numbers(*std), len(mean)))
        return self

    def random_crop(self, height: int = 0, width: int = 0, padding: Any = 0) -> Transform:
        """Pads the last two axes with `padding` zeros on each side and cuts out height x width at a random place; 0: as large as before. Returns the
        Transform."""
        check(lib.gt_transform_random_crop(self._h, height, width, padding))
        return self

    def horizontal_flip(self, p: float = 0.5) -> Transform:
        """Mirrors the last axis with probability `p`. Returns the Transform."""
        check(lib.gt_transform_horizontal_flip(self._h, p))
        return self


class Loader(Owned):
    """Batches of a data set: `for x, y in loader:` is one epoch, each in a new order with shuffle. x alone where there are no labels.

    dataset: a Dataset. batch_size: samples in a batch; drop_last leaves a last, smaller one out. transform: a Transform of each sample. seed: of the order
    and the transforms. prefetch: batches made ahead, 1 to 4, 0 for 4.
    num_workers: threads, 0 lets the library choose. dtype: of the samples on the device. timeout: seconds that one sample may take, 0 for ever.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int = 1, shuffle: bool = False, *, drop_last: bool = False, num_workers: int = 0, prefetch: int = 0, transform: Optional[Transform] = None, dtype: DtypeLike = None, seed: int = 0, timeout: float = 60.0,
        device: DeviceLike = None,
    ) -> None:  # fmt: skip
        ctx = context_for(device)
        o = options("gt_loader_options")
        o.batch_size, o.shuffle, o.drop_last, o.workers, o.prefetch = batch_size, bool(shuffle), bool(drop_last), num_workers, prefetch
        o.dtype = _api.GT_LOADER_DTYPE_KEEP if dtype is None else as_dtype(dtype).code
        o.seed, o.timeout = seed, timeout
        o.transform = None if transform is None else transform._h
        handle = ctypes.c_void_p()
        self.dataset, self.transform = dataset, transform
        check(lib.gt_loader_create(ctx._live(), dataset._library_handle(), ctypes.byref(o), ctypes.byref(handle)), ctx)
        self._hold(handle.value, ctx, lib.gt_loader_destroy)
        self._has_labels = dataset.format["label_shape"] is not None
        self._fresh = True

    def __len__(self) -> int:
        """Batches in an epoch."""
        return lib.gt_loader_batches(self._live())

    @property
    def batch_size(self) -> int:
        """Samples in each batch, but perhaps the last of an epoch."""
        return lib.gt_loader_batch_size(self._live())

    @property
    def samples(self) -> int:
        """In an epoch."""
        return lib.gt_loader_samples(self._live())

    def __iter__(self) -> Iterator[Any]:
        """A new epoch; the first time, or after start_epoch or a state that was set, the one the loader stands at."""
        check_process(self._ctx, "the loader")
        epoch, batch = self.state
        if not self._fresh and batch > 0:
            self.start_epoch(epoch + 1)
        self._fresh = False
        return self._batches()

    def _batches(self):
        while True:
            batch = self.next()
            if batch is None:
                return
            yield batch

    def next(self) -> Any:
        """The next batch of this epoch, (x, y) or x; None at its end."""
        ctx = self._ctx
        check_process(ctx, "the loader")
        x, y, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
        status = lib.gt_loader_next(self._live(), ctypes.byref(x), ctypes.byref(y), ctypes.byref(count))
        if status:
            raise self._failure(status)
        if count.value == 0:
            return None
        x = wrap(ctx, x.value)
        return (x, wrap(ctx, y.value)) if y.value else x

    def _failure(self, status):
        error = failure(self._ctx, status)
        handle: Any = self.dataset
        while handle is not None and isinstance(handle, _LibraryDataset):
            handle = handle._source
        fetcher = handle._handle.kept if handle is not None and handle._handle is not None else None
        if isinstance(error, WorkerError) and isinstance(fetcher, _Fetcher) and fetcher.error is not None:
            error.__cause__, fetcher.error = fetcher.error, None
        return error

    def start_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, which sets its order and transforms."""
        check(lib.gt_loader_start_epoch(self._live(), epoch), self._ctx)
        self._fresh = True

    @property
    def state(self) -> Tuple[int, int]:
        """(epoch, batches handed out)."""
        epoch, batch = ctypes.c_int64(), ctypes.c_int64()
        check(lib.gt_loader_state_get(self._live(), ctypes.byref(epoch), ctypes.byref(batch)))
        return epoch.value, batch.value

    @state.setter
    def state(self, state: Tuple[int, int]) -> None:
        """Continues there: the same samples follow."""
        check(lib.gt_loader_state_set(self._live(), *state), self._ctx)
        self._fresh = True


DataLoader = Loader
