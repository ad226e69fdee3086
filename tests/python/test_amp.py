import numpy as np
import pytest
from conftest import close

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import amp, nn


def test_autocast_casts_products_and_nests():
    x, w = gt.ones(2, 3), gt.ones(4, 3)
    with amp.autocast():
        assert (x @ w.T).dtype is gt.float16 and F.softmax(x).dtype is gt.float32
        with amp.autocast(enabled=False):
            assert (x @ w.T).dtype is gt.float32
        with amp.autocast(dtype=gt.bfloat16):
            assert amp.get_autocast_dtype() is gt.bfloat16
    assert (x @ w.T).dtype is gt.float32 and amp.get_autocast_dtype() is gt.float32

    @amp.autocast("cpu" if not x.is_cuda else "cuda", dtype="bfloat16")
    def f():
        return x @ w.T

    assert f().dtype is gt.bfloat16
    assert amp.autocast_policy("conv2d") == "half" and amp.autocast_policy("nothing") == "none"
    with pytest.raises(gt.DtypeError):
        with amp.autocast(dtype=gt.float64):
            pass


def test_scaler_steps_skips_and_keeps_its_state():
    w = gt.tensor([1.0], requires_grad=True)
    o, scaler = gt.optim.SGD([w], lr=0.5), amp.GradScaler(init_scale=1024.0, growth_interval=3)
    assert scaler.get_scale() == 1024 and scaler.state.status == "idle"
    scaler.scale((w * 2).sum()).backward()
    assert w.grad.item() == 2048
    scaler.unscale_(o)
    assert w.grad.item() == 2
    with pytest.raises(gt.StateError):
        scaler.unscale_(o)
    scaler.step(o)
    scaler.update()
    assert w.item() == 0 and scaler.state.status == "stepped"
    o.zero_grad()
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(o)
    scaler.update()
    assert w.item() == 0 and scaler.get_scale() == 512 and scaler.state.status == "skipped" and scaler.state.skipped == 1
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    off = amp.GradScaler(enabled=False)
    loss = (w * 2).sum()
    assert off.scale(loss) is loss and off.get_scale() == 1.0 and off.state_dict() == {}
    with pytest.raises(gt.ArgumentError):
        amp.GradScaler(backoff_factor=2.0)


def test_mixed_precision_training_learns(rng):
    x, y = gt.tensor(rng.standard_normal((64, 8)).astype(np.float32)), gt.tensor(rng.integers(0, 3, 64))
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    o, scaler = gt.optim.Adam(net.parameters(), lr=0.01), amp.GradScaler()
    losses = []
    for _ in range(40):
        o.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_accumulation_is_the_mean_over_all_items():
    w = gt.tensor([0.0], requires_grad=True)
    o = gt.optim.SGD([w], lr=1.0)
    with gt.accumulate(o, 3) as window:
        for n, g in ((4, 1.0), (4, 1.0), (2, 5.0)):
            with window.micro_batch() as micro:
                micro.backward((w * g).sum(), items=n)
        assert window.state.status == "updated" and window.state.items == 10 and window.state.gradient_norm == pytest.approx(1.8)
    close(w, [-1.8])


def test_short_window_counts_and_a_failed_one_does_not():
    w = gt.tensor([0.0], requires_grad=True)
    o = gt.optim.SGD([w], lr=0.1)
    with gt.accumulate(o, 4) as window:
        for _ in range(7):
            with window.micro_batch() as micro:
                micro.backward((w * 1).sum(), items=1)
    close(w, [-0.2])
    with pytest.raises(ZeroDivisionError):
        with gt.accumulate(o, 2) as window:
            with window.micro_batch() as micro:
                micro.backward((w * 1).sum(), items=1)
            1 / 0
    with pytest.raises(gt.StateError, match="without"):
        with gt.accumulate(o, 2) as window:
            with window.micro_batch():
                pass
    with pytest.raises(gt.ArgumentError, match="items"):
        with gt.accumulate(o, 2) as window:
            with window.micro_batch() as micro:
                micro.backward((w * 1).sum())
    close(w, [-0.2])
    with pytest.raises(gt.ArgumentError):
        gt.accumulate(o, 0)


def test_windows_take_their_items_from_cross_entropy(rng):
    net = nn.Linear(4, 3)
    x, y = rng.standard_normal((6, 4)).astype(np.float32), np.array([0, 1, -100, 2, -100, 1])
    start = {k: v.numpy() for k, v in net.state_dict().items()}
    o = gt.optim.SGD(net.parameters(), lr=0.5)
    F.cross_entropy(net(gt.tensor(x)), gt.tensor(y)).backward()
    o.step()
    whole = net.weight.numpy()
    net.load_state_dict(start)
    with gt.accumulate(o, 2, module=net, scaler=amp.GradScaler(), clip_norm=1e6) as window:
        for part in (slice(0, 2), slice(2, 6)):
            with window.micro_batch() as micro:
                micro.backward(F.cross_entropy(net(gt.tensor(x[part])), gt.tensor(y[part])))
    close(net.weight, whole, 1e-5)
