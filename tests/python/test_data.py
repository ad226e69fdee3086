import gzip
import struct
import threading

import numpy as np
import pytest

import gtrain as gt
from gtrain.data import IDX, Dataset, FashionMNIST, Loader, TensorDataset, Transform


def test_arrays_come_out_in_batches(rng):
    x, y = rng.standard_normal((10, 3)).astype(np.float32), rng.integers(0, 4, 10)
    loader = Loader(TensorDataset(x, y, classes=4), batch_size=4)
    assert len(loader) == 3 and loader.samples == 10 and loader.batch_size == 4
    for _ in range(2):
        batches = list(loader)
        assert [len(b[0]) for b in batches] == [4, 4, 2]
        assert (np.concatenate([b[0].numpy() for b in batches]) == x).all()
        assert (np.concatenate([b[1].numpy() for b in batches]) == y).all()
    assert len(list(Loader(TensorDataset(x), 4, drop_last=True))) == 2
    assert isinstance(next(iter(Loader(TensorDataset(x), 4))), gt.Tensor)
    half = next(iter(Loader(TensorDataset(x, y), 4, dtype=gt.float16)))[0]
    assert half.dtype is gt.float16
    with pytest.raises(gt.LabelError):
        TensorDataset(x, y, classes=2)
    with pytest.raises(gt.ArgumentError):
        TensorDataset(x, y[:3])
    with pytest.raises(gt.ArgumentError):
        Loader(TensorDataset(x, y), 20, drop_last=True)


def test_epochs_are_new_permutations_and_can_be_continued():
    data = TensorDataset(np.arange(32, dtype=np.int64))
    loader = Loader(data, 8, shuffle=True, seed=3)
    epochs = [np.concatenate([b.numpy() for b in loader]) for _ in range(3)]
    assert all(sorted(e) == list(range(32)) for e in epochs) and len({tuple(e) for e in epochs}) == 3
    assert loader.state == (2, 4)
    other = Loader(data, 8, shuffle=True, seed=3)
    other.state = (1, 2)
    assert (np.concatenate([b.numpy() for b in other]) == epochs[1][16:]).all()
    assert (np.concatenate([b.numpy() for b in other]) == epochs[2]).all()
    other.start_epoch(0)
    for i, b in enumerate(other):  # one that is left half-way
        if i == 1:
            break
    assert (np.concatenate([b.numpy() for b in other]) == epochs[1]).all()


def test_datasets_of_ones_own_are_asked_on_worker_threads():
    threads = set()

    class Squares(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            threads.add(threading.get_ident())
            return np.full((2,), i, np.float32), i * i

    loader = Loader(Squares(), 5, num_workers=3)
    out = [(x.numpy()[:, 0], y.numpy()) for x, y in loader]
    assert (np.concatenate([x for x, _ in out]) == np.arange(20)).all()
    assert (np.concatenate([y for _, y in out]) == np.arange(20) ** 2).all()
    assert threads - {threading.get_ident()}
    part = Squares().slice(5, 3)
    assert len(part) == 3 and next(iter(Loader(part, 3)))[1].tolist() == [25, 36, 49]
    assert part.format["sample_shape"] == (2,) and part.format["label_dtype"] is gt.int64


def test_what_a_dataset_raises_is_the_cause():
    class Bad(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, i):
            if i == 7:
                raise LookupError("number seven")
            return np.zeros(3 if i != 3 else 4, np.float32)

    loader = Loader(Bad(), 2)
    with pytest.raises(gt.WorkerError) as caught:
        list(loader)
    assert "3" in str(caught.value) and isinstance(caught.value.__cause__, ValueError)
    loader = Loader(Bad().slice(6, 4), 2)
    with pytest.raises(gt.WorkerError) as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(TypeError):
        Loader(Dataset(), 1)


def _idx(path, array, kind=8, zipped=True):
    raw = struct.pack(">HBB", 0, kind, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    return path


def test_idx_files_and_transforms(tmp_path, rng):
    images, labels = rng.integers(0, 256, (12, 8, 8)), rng.integers(0, 10, 12)
    data = IDX(_idx(tmp_path / "i", images, zipped=False), _idx(tmp_path / "l", labels, zipped=False), classes=10)
    assert len(data) == 12 and data.format["sample_shape"] == (1, 8, 8)
    transform = Transform().to_float(1 / 255).normalize(0.5, 0.25)
    x, y = next(iter(Loader(data, 12, transform=transform)))
    np.testing.assert_allclose(x.numpy()[:, 0], (images / 255 - 0.5) / 0.25, atol=1e-5)
    assert (y.numpy() == labels).all()
    augmented = Transform().to_float().random_crop(8, 8, padding=2).horizontal_flip()
    first = [next(iter(Loader(data, 12, transform=augmented, seed=1, num_workers=n)))[0].numpy() for n in (1, 3)]
    assert (first[0] == first[1]).all() and not (first[0][:, 0] == images / np.float32(255)).all()
    with pytest.raises(gt.FileError):
        IDX(_idx(tmp_path / "b", labels, zipped=False))
    with pytest.raises(gt.FileSystemError):
        IDX(tmp_path / "none")
    with pytest.raises(gt.ArgumentError):
        Transform().normalize([1, 2], [1])


def test_fashion_mnist_where_it_is_installed():
    try:
        data = FashionMNIST(train=False)
    except gt.NotFoundError:
        pytest.skip("dataset-fashion-mnist is not installed")
    assert len(data) == 10000 and len(FashionMNIST.CLASSES) == 10
    x, y = next(iter(Loader(data, 4)))
    assert x.shape == (4, 1, 28, 28) and x.dtype is gt.uint8 and y.dtype is gt.int64
