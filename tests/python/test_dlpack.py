import gc
import weakref

import numpy as np
import pytest
from conftest import DEVICE, close

import gtrain as gt

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="NumPy's arrays are on the CPU")


@on_cpu
def test_numpy_sees_our_memory_and_we_see_numpys(ctx):
    t = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    a = np.from_dlpack(t)
    t[0, 0] = 9
    assert a[0, 0] == 9 and ctx._exports == 1
    if a.flags.writeable:  # since NumPy 2
        a[0, 1] = 2
        assert t[0, 1].item() == 2
    with pytest.raises(gt.StateError, match="arrays"):
        ctx.close()
    del t
    gc.collect()
    assert a[1].tolist() == [3, 4]
    del a
    assert ctx._exports == 0
    b = np.arange(6, dtype=np.float32).reshape(2, 3).T
    u = gt.from_dlpack(b)
    u[0, 1] = -1
    assert b[0, 1] == -1 and u.stride() == (1, 3) and not u.is_contiguous()
    close(u * 2, b * 2)
    assert gt.from_dlpack(b, copy=True).data_ptr() != b.ctypes.data


@on_cpu
def test_every_dtype_crosses(rng):
    for kind in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8):
        a = (rng.random((2, 3)) * 10).astype(kind)
        t = gt.from_dlpack(a)
        assert (t.numpy() == a).all() and np.from_dlpack(t).dtype == kind
    assert gt.from_dlpack(np.array(3.5)).item() == 3.5
    assert np.from_dlpack(gt.zeros(0, 3)).shape == (0, 3) and gt.from_dlpack(np.zeros((0, 3))).shape == (0, 3)
    assert gt.from_dlpack(np.array([True, False])).tolist() == [1, 0]
    with pytest.raises(gt.DtypeError):
        gt.from_dlpack(np.zeros(2, np.complex64))


@on_cpu
def test_owner_lives_as_long_as_any_view():
    class Owner(np.ndarray):
        pass

    a = np.ones((1000,), np.float32).view(Owner)
    gone = weakref.ref(a)
    t = gt.from_dlpack(a)
    view = t[10:20]
    del a, t
    gc.collect()
    assert gone() is not None and view.sum().item() == 10
    del view
    gt.ones(1)  # lets go of what was dropped
    gc.collect()
    assert gone() is None


@on_cpu
def test_what_cannot_be_shared_is_copied_or_refused():
    a = np.ones(4, np.float32)
    a.flags.writeable = False
    t = gt.from_dlpack(a)
    t[0] = 5
    assert a[0] == 1
    w = gt.ones(2, requires_grad=True)
    with pytest.raises(gt.StateError, match="detach"):
        np.from_dlpack(w)
    assert np.from_dlpack(w.detach()).tolist() == [1, 1]
    with pytest.raises((BufferError, ValueError)):
        gt.from_dlpack(np.ones(4, np.float32)[::-1])
    capsule = gt.ones(2).__dlpack__()
    del capsule  # never consumed
    gc.collect()


@on_cpu
def test_shared_memory_takes_part_in_gradients():
    a = np.array([1.0, 2.0], np.float32)
    w = gt.from_dlpack(a).requires_grad_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4]
    gt.optim.SGD([w], lr=0.5).step()
    assert a.tolist() == [0, 0]


def test_pytorch_shares_both_ways(torch, ctx):
    device = "cuda" if DEVICE == "cuda" else "cpu"
    x = torch.arange(12, dtype=torch.float32, device=device).reshape(3, 4).t()
    for _ in range(20):
        x += 1
        t = gt.from_dlpack(x)
        t *= 2
        back = torch.from_dlpack(t)
        back -= 1
        x -= 0  # on PyTorch's stream, after ours
    assert t.data_ptr() == x.data_ptr() == back.data_ptr() and t.shape == (4, 3)
    expected = torch.arange(12, dtype=torch.float64).reshape(3, 4).t()
    for _ in range(20):
        expected = (expected + 1) * 2 - 1
    close(t, expected.float())
    half = gt.from_dlpack(torch.ones(3, dtype=torch.bfloat16, device=device))
    assert half.dtype is gt.bfloat16 and torch.from_dlpack(half).dtype == torch.bfloat16
    del back, half
    own = torch.from_dlpack(gt.ones(5))
    gc.collect()
    assert own.sum().item() == 5


def test_strides_of_convolutions_survive(torch):
    images = torch.ones(2, 3, 4, 4, device="cuda" if DEVICE == "cuda" else "cpu").to(memory_format=torch.channels_last)
    t = gt.from_dlpack(images)
    assert t.stride() == images.stride()
    assert torch.from_dlpack(t.contiguous()).is_contiguous()
