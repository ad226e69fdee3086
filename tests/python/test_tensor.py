import operator
import pickle
import copy

import numpy as np
import pytest
from conftest import DEVICE, close

import gtrain as gt


def test_makes_tensors_from_what_python_has():
    assert gt.tensor([1.0, 2.0]).dtype is gt.float32
    assert gt.tensor([1, 2]).dtype is gt.int64
    assert gt.tensor(np.zeros(2)).dtype is gt.float64
    assert gt.tensor([True, False]).tolist() == [1, 0]
    assert gt.tensor(3.5).shape == () and gt.tensor(3.5).item() == 3.5
    assert gt.tensor([1, 2], dtype="float16").dtype is gt.float16
    assert gt.tensor([[1.5], [2.5]], dtype=gt.bfloat16).numpy().dtype == np.float32
    assert gt.zeros(2, 3).shape == gt.zeros((2, 3)).shape == (2, 3)
    assert gt.full((2,), 7).dtype is gt.int64 and gt.full((2,), 7.0).dtype is gt.float32
    assert gt.arange(3).tolist() == [0, 1, 2] and gt.arange(1, 2, 0.25).tolist() == [1, 1.25, 1.5, 1.75]
    assert gt.ones_like(gt.zeros(2, dtype="float64")).dtype is gt.float64
    with pytest.raises(gt.DtypeError):
        gt.tensor(["a"])


def test_arrays_come_back_as_they_were(rng):
    for kind in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8):
        array = (rng.random((3, 4)) * 100).astype(kind)
        back = gt.from_numpy(array).numpy()
        assert back.dtype == kind and (back == array).all()
        assert (gt.from_numpy(array.T).numpy() == array.T).all()
    assert gt.from_numpy(np.zeros((0, 3), np.float32)).shape == (0, 3)
    big = 2**60 + 1
    assert gt.tensor(big).item() == big


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_operators_do_as_numpy(op, rng):
    a, b = rng.random((3, 1, 4)).astype(np.float32) + 1, rng.random((2, 1)).astype(np.float32) + 1
    close(op(gt.tensor(a), gt.tensor(b)), op(a, b))
    for number in (3, 2.5, 4, np.float32(1.5)):
        close(op(gt.tensor(a), number), op(a, number))
        close(op(number, gt.tensor(a)), op(np.float32(number), a))
    close(op(gt.tensor(a), b), op(a, b))
    close(op(b, gt.tensor(a)), op(b, a))


def test_integers_and_dtypes_meet_as_in_pytorch(torch):
    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64, "int32": torch.int32, "int64": torch.int64}
    for a, ta in kinds.items():
        for b, tb in kinds.items():
            ours = gt.ones(2, dtype=a) + gt.ones(2, dtype=b)
            assert str(ours.dtype)[7:] == str((torch.ones(2, dtype=ta) + torch.ones(2, dtype=tb)).dtype)[6:], (a, b)
            scalar = gt.ones(2, dtype=a) * gt.ones((), dtype=b)
            assert str(scalar.dtype)[7:] == str((torch.ones(2, dtype=ta) * torch.ones((), dtype=tb)).dtype)[6:], (a, b)
    assert (gt.tensor([1, 2]) + 1).dtype is gt.int64
    assert (gt.tensor([1, 2]) + 0.5).tolist() == [1.5, 2.5]
    assert (gt.tensor([1, 2]) / 2).tolist() == [0.5, 1.0]
    assert (-gt.tensor([1, 2])).tolist() == [-1, -2]
    assert (gt.tensor([1, 2, 3]) / gt.tensor([2, 2, 2])).tolist() == [0.5, 1.0, 1.5]


def test_comparison_gives_ones_and_zeros():
    a = gt.tensor([1, 2, 3])
    assert (a == gt.tensor([1, 5, 3])).tolist() == [1, 0, 1]
    assert (a != 2).tolist() == [1, 0, 1]
    assert (a == None) is False  # noqa: E711
    assert (a == gt.tensor([1, 2, 3])).float().mean().item() == 1.0


def test_indexing_does_as_numpy(rng):
    a = rng.random((4, 5, 6)).astype(np.float32)
    t = gt.tensor(a)
    keys = [
        0, -1, slice(1, 3), (slice(None), 2), (Ellipsis, 1), (1, Ellipsis), (1, 2, 3), (slice(0, 4, 2), slice(1, None, 3)), (None, 1), (Ellipsis, None),
        (slice(None), None, 3), slice(3, 1), slice(-2, None), (), Ellipsis, (slice(None), slice(None), -1),
    ]  # fmt: skip
    for key in keys:
        got = t[key]
        assert got.shape == a[key].shape, key
        close(got, a[key])
    close(t[[2, 0, -1]], a[[2, 0, -1]])
    close(t[gt.tensor([[1, 2], [3, 0]])], a[np.array([[1, 2], [3, 0]])])
    close(t[:, [4, 0]], a[:, [4, 0]])
    close(t[[1, 2], 3], a[[1, 2], 3])
    for bad in (4, -5, (0, 0, 0, 0), (0, 5)):
        with pytest.raises(IndexError):
            t[bad]
    with pytest.raises(gt.NotSupportedError):
        t[::-1]
    assert [r.shape for r in t] == [(5, 6)] * 4
    assert len(t) == 4


def test_assignment_writes_into_the_tensor(rng):
    a = rng.random((4, 5)).astype(np.float32)
    t = gt.tensor(a)
    for key, value in ((0, 1.5), ((slice(None), 2), 3), ((1, 1), -1.0), ((slice(0, 4, 2), slice(1, 3)), rng.random((2, 2)).astype(np.float32))):
        a[key] = value
        t[key] = value
        close(t, a)
    t[...] = 0
    assert t.sum().item() == 0


def test_shapes_change_as_in_pytorch(rng):
    a = rng.random((2, 3, 4)).astype(np.float32)
    t = gt.tensor(a)
    close(t.permute(2, 0, 1), a.transpose(2, 0, 1))
    close(t.transpose(-1, 0), np.swapaxes(a, -1, 0))
    close(t.mT, np.swapaxes(a, -1, -2))
    close(t.reshape(4, -1), a.reshape(4, -1))
    close(t.flatten(1), a.reshape(2, 12))
    close(t.flatten(0, 1), a.reshape(6, 4))
    assert t.unsqueeze(-1).shape == (2, 3, 4, 1) and t.unsqueeze(0).squeeze().shape == (2, 3, 4) and t[:, :1].squeeze(1).shape == (2, 4)
    close(gt.tensor(a[:, :1]).expand(-1, 3, -1), np.broadcast_to(a[:, :1], a.shape))
    close(gt.cat([t, t], 1), np.concatenate([a, a], 1))
    close(gt.stack([t, t], -1), np.stack([a, a], -1))
    assert [c.shape for c in t.chunk(2, 2)] == [(2, 3, 2)] * 2 and [c.shape[1] for c in t.split(2, 1)] == [2, 1]
    with pytest.raises(gt.ShapeError):
        t.permute(2, 0, 1).view(24)
    assert t.view(24).data_ptr() == t.data_ptr()


def test_reductions_do_as_numpy(rng):
    a = rng.random((3, 4, 5)).astype(np.float32)
    t = gt.tensor(a)
    close(t.sum(), a.sum(), 1e-5)
    close(t.sum((0, 2)), a.sum((0, 2)))
    close(t.mean(-1, keepdim=True), a.mean(-1, keepdims=True))
    values, indices = t.max(1)
    close(values, a.max(1))
    assert (indices.numpy() == a.argmax(1)).all()
    close(t.min(2).values, a.min(2))
    assert t.argmax().item() == a.argmax()
    close(t.var(1), a.var(1, ddof=1))
    close(t.std(), a.std(ddof=1))
    close(t.clamp(0.2, 0.5), a.clip(0.2, 0.5))


def test_gradients_accumulate_and_are_forgotten():
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    assert w.grad is None
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4]
    (w * w).sum().backward()
    assert w.grad.tolist() == [4, 8]
    w.grad = None
    assert w.grad is None
    y = w * 3
    y.backward(gt.tensor([1.0, 10.0]), retain_graph=True)
    y.backward(gt.tensor([1.0, 10.0]))
    assert w.grad.tolist() == [6, 60]
    with pytest.raises(gt.StateError):
        y.backward(gt.tensor([1.0, 10.0]))
    with pytest.raises(gt.NotSupportedError):
        w.grad = gt.zeros(2)


def test_views_and_assignment_are_differentiable():
    w = gt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (w[0] * w[1, 1]).sum().backward()
    assert w.grad.tolist() == [[4, 4], [0, 3]]
    w.grad = None
    y = w * 1
    y[0] = 0.0
    y.sum().backward()
    assert w.grad.tolist() == [[0, 0], [1, 1]]
    table = gt.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    table[[0, 0, 2]].sum().backward()
    assert table.grad.tolist() == [[2], [0], [1]]


def test_in_place_operators_write_into_the_tensor():
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    before = w.data_ptr()
    with gt.no_grad():
        w -= 0.5 * w.grad
    assert w.tolist() == [0, 0] and w.data_ptr() == before and w.requires_grad
    a = gt.ones(2)
    b = a
    a += 1
    a *= 3
    assert b.tolist() == [6, 6]
    w.data = gt.tensor([5.0, 6.0])
    assert w.tolist() == [5, 6]


def test_what_backward_needs_may_not_change():
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    y = w.exp()
    z = y * y
    y += 1
    with pytest.raises(gt.SavedModifiedError):
        z.sum().backward()


def test_no_grad_in_all_its_forms():
    w = gt.ones(2, requires_grad=True)
    with gt.no_grad():
        assert not (w * 2).requires_grad and not gt.is_grad_enabled()

    @gt.no_grad()
    def f():
        return w * 2

    @gt.no_grad
    def g():
        return w * 2

    assert not f().requires_grad and not g().requires_grad and gt.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), gt.no_grad():
        1 / 0
    assert gt.is_grad_enabled()


def test_memory_goes_with_the_object(ctx):
    before = ctx.memory.stats().in_use
    t = gt.zeros(1 << 16)
    assert ctx.memory.stats().in_use >= before + (1 << 18)
    view = t[:10]
    del t
    assert ctx.memory.stats().in_use >= before + (1 << 18)
    del view
    assert ctx.memory.stats().in_use == before
    w = gt.ones(1 << 14, requires_grad=True)
    kept = ctx.memory.stats().in_use
    for _ in range(50):
        loss = (w * 2).exp().sum()
    del loss
    assert ctx.memory.stats().in_use == kept


def test_copies_and_pickles(rng):
    t = gt.tensor(rng.random((2, 3)).astype(np.float32), requires_grad=True)
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        close(other, t.detach())
        assert other.requires_grad and other.data_ptr() != t.data_ptr()
    assert pickle.loads(pickle.dumps(gt.ones(2, dtype="bfloat16"))).dtype is gt.bfloat16
    assert t.clone().data_ptr() != t.data_ptr()


def test_prints_and_converts():
    where = "" if DEVICE == "cpu" else ", device='cuda:0'"
    assert repr(gt.tensor([1.0, 2.0])) == f"tensor([1., 2.]{where})"
    assert repr(gt.tensor(2.5, requires_grad=True)).endswith("requires_grad=True)")
    assert "float16" in repr(gt.ones(1, dtype="float16"))
    assert f"{gt.tensor(1.23456):.2f}" == "1.23" and float(gt.tensor(2.5)) == 2.5 and int(gt.tensor(3)) == 3
    assert [10, 20, 30][gt.tensor(1)] == 20
    assert bool(gt.tensor(1.0)) and not gt.tensor(0.0)
    with pytest.raises(gt.StateError):
        bool(gt.ones(2))
    assert "float32" in gt.ones(2)._repr_html_()
    assert np.asarray(gt.ones(2)).tolist() == [1, 1]


def test_errors_say_what_does_not_fit():
    with pytest.raises(gt.ShapeError, match="3 columns") as caught:
        gt.ones(2, 3) @ gt.ones(2, 3)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, gt.Error) and ".c:" in caught.value.raised_at
    with pytest.raises(TypeError):
        gt.ones(2) + "a"
    with pytest.raises(gt.ArgumentError):
        gt.Context("tpu")
    with pytest.raises(gt.ShapeError):
        gt.zeros(-1)


def test_dtype_and_device_conversions():
    t = gt.tensor([1.7, -2.3])
    assert t.half().dtype is gt.float16 and t.to(gt.int64).tolist() == [1, -2] and t.long().dtype is gt.int64
    assert t.to("float64").dtype is gt.float64 and t.to(t.double()).dtype is gt.float64 and t.to(t.dtype) is t
    other = gt.Context("cpu", threads=1)
    moved = t.to(device=other)
    assert moved.context is other
    close(moved, t)
    with pytest.raises(gt.DeviceError):
        moved + t
    del moved
    other.close()
    assert other.closed
    with pytest.raises(gt.StateError):
        gt.zeros(2, device=other)


def test_tensors_of_a_closed_context_are_inert():
    other = gt.Context("cpu", threads=1)
    t = gt.ones(2, device=other)
    other.close()
    with pytest.raises(gt.StateError):
        t + t
    assert "closed" in repr(t)
    del t
