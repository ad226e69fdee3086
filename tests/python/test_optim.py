import math

import numpy as np
import pytest
from conftest import close

import gtrain as gt
from gtrain import nn, optim


def _pair(torch, rng, make):
    values = [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (5,))]
    ours, theirs = [gt.tensor(v, requires_grad=True) for v in values], [torch.tensor(v, requires_grad=True) for v in values]
    return ours, theirs, make(optim, ours), make(torch.optim, theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda m, p: m.SGD(p, **({} if m is optim else {"lr": 1e-3})),  # older versions of PyTorch have no default
        lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
        lambda m, p: m.Adam(p),
        lambda m, p: m.Adam(p, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
        lambda m, p: m.AdamW(p),
        lambda m, p: m.AdamW([{"params": p[:1], "lr": 0.1, "weight_decay": 0.0}, {"params": p[1:]}], lr=0.01),
    ],
)
def test_updates_are_pytorchs(make, torch, rng):
    ours, theirs, mine, his = _pair(torch, rng, make)
    for _ in range(5):
        for tensors, o in ((ours, mine), (theirs, his)):
            o.zero_grad()
            (tensors[0].exp().sum() + (tensors[1] * tensors[1] * 3).sum()).backward()
            o.step()
    for a, b in zip(ours, theirs):
        close(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda s, o: s.StepLR(o, 3, 0.5),
        lambda s, o: s.MultiStepLR(o, [2, 5]),
        lambda s, o: s.ExponentialLR(o, 0.9),
        lambda s, o: s.LinearLR(o),
        lambda s, o: s.CosineAnnealingLR(o, 10, eta_min=0.01),
        lambda s, o: s.LambdaLR(o, lambda step: 1 / (step + 1)),
        lambda s, o: s.OneCycleLR(o, 0.4, total_steps=11),
    ],
)
def test_schedules_are_pytorchs(make, torch):
    ours = optim.SGD([gt.ones(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    mine, his = make(optim.lr_scheduler, ours), make(torch.optim.lr_scheduler, theirs)
    for _ in range(10):
        close(ours.lr, theirs.param_groups[0]["lr"], 1e-9)
        assert ours.param_groups[0]["lr"] == mine.get_last_lr()[0]
        theirs.step()
        mine.step()
        his.step()
    close(ours.lr, theirs.param_groups[0]["lr"], 1e-9)


def test_librarys_schedules():
    s = optim.Schedule.cosine(0.1, 100, warmup_steps=10)
    assert math.isclose(s(0), 0.01) and math.isclose(s(9), 0.1) and s(99) < 0.001
    assert optim.Schedule.step(1.0, 10)(25) == pytest.approx(0.01)
    with pytest.raises(gt.ArgumentError):
        optim.Schedule.cosine(0.1, 0)


def test_learning_rate_can_be_set_and_nothing_else():
    o = optim.Adam([gt.ones(1, requires_grad=True)], lr=0.5)
    assert o.lr == 0.5
    o.param_groups[0]["lr"] = 0.25
    assert o.lr == 0.25
    o.lr = 0.125
    assert o.param_groups[0]["lr"] == 0.125 and "lr: 0.125" in repr(o)
    with pytest.raises(gt.ArgumentError):
        o.param_groups[0]["eps"] = 1.0
    with pytest.raises(gt.ArgumentError):
        optim.SGD([])
    with pytest.raises(gt.ArgumentError):
        optim.SGD([gt.ones(1)])
    with pytest.raises(gt.ArgumentError):
        optim.SGD([{"params": [gt.ones(1, requires_grad=True)], "speed": 1}])


def test_step_without_gradients_says_so():
    a, b = gt.ones(1, requires_grad=True), gt.ones(1, requires_grad=True)
    o = optim.SGD([{"params": [a]}, {"params": [b]}], lr=1.0)
    with pytest.raises(gt.NoGradientsError):
        o.step()
    (a * 2).sum().backward()
    o.step()
    assert a.item() == -1 and b.item() == 1


def test_clipping():
    w = gt.tensor([0.0, 0.0], requires_grad=True)
    (w * gt.tensor([3.0, 4.0])).sum().backward()
    assert nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx(5)
    close(w.grad, [0.6, 0.8])
    nn.utils.clip_grad_value_([w], 0.7)
    close(w.grad, [0.6, 0.7])
    o = optim.SGD([w])
    assert o.clip_grad_norm(10.0).item() == pytest.approx(math.hypot(0.6, 0.7))
