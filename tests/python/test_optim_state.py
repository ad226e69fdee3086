"""Optimizer.state_dict and load_state_dict: PyTorch's layout, both ways, all or nothing."""

import math

import numpy as np
import pytest
from conftest import close

import gtrain as gt
from gtrain import nn, optim

RULES = [
    lambda m, p: m.SGD(p, lr=0.05),
    lambda m, p: m.SGD(p, lr=0.05, momentum=0.9),
    lambda m, p: m.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda m, p: m.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    lambda m, p: m.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    lambda m, p: m.AdamW(p, lr=0.02),
    lambda m, p: m.AdamW([{"params": p[:1], "lr": 0.1, "weight_decay": 0.0}, {"params": p[1:]}], lr=0.01),
]
each_rule = pytest.mark.parametrize("make", RULES)


def _values(rng):
    return [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (5,), (2, 3, 2, 2))]


def _ours(values, dtype="float32"):
    return [gt.tensor(v, dtype=dtype, requires_grad=True) for v in values]


def _run(optimizer, tensors, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        ((tensors[0] * 0.5).exp().sum() + (tensors[1] * tensors[1] * 3).sum() + (tensors[2] * tensors[2] * tensors[2]).sum()).backward()
        optimizer.step()


def _to_torch(torch, value):
    if isinstance(value, gt.Tensor):
        return torch.from_numpy(value.numpy())
    if isinstance(value, dict):
        return {k: _to_torch(torch, v) for k, v in value.items()}
    return [_to_torch(torch, v) for v in value] if isinstance(value, list) else value


def _copies(state):
    return {"state": {k: {n: t.clone() for n, t in e.items()} for k, e in state["state"].items()}, "param_groups": state["param_groups"]}


def _bits(state):
    return {(k, n): t.numpy().tobytes() for k, e in state["state"].items() for n, t in e.items()}


@each_rule
def test_a_state_of_pytorchs_goes_on_here(make, torch, rng):
    theirs = [torch.tensor(v, requires_grad=True) for v in _values(rng)]
    his = make(torch.optim, theirs)
    _run(his, theirs, 4)
    ours = _ours([t.detach().numpy() for t in theirs])
    mine = make(optim, ours)
    mine.load_state_dict(his.state_dict())
    _run(his, theirs, 4)
    _run(mine, ours, 4)
    for a, b in zip(ours, theirs):
        close(a, b, 1e-5, 1e-6)


@each_rule
def test_a_state_of_ours_goes_on_in_pytorch(make, torch, rng):
    ours = _ours(_values(rng))
    mine = make(optim, ours)
    _run(mine, ours, 4)
    theirs = [torch.tensor(t.detach().numpy(), requires_grad=True) for t in ours]
    his = make(torch.optim, theirs)
    his.load_state_dict(_to_torch(torch, mine.state_dict()))
    _run(mine, ours, 4)
    _run(his, theirs, 4)
    for a, b in zip(ours, theirs):
        close(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("make", RULES[1:2] + RULES[4:6])
def test_the_layout_is_pytorchs(make, torch, rng):
    ours, theirs = _ours(_values(rng)), [torch.tensor(v, requires_grad=True) for v in _values(np.random.default_rng(7))]
    mine, his = make(optim, ours), make(torch.optim, theirs)
    assert mine.state_dict()["state"] == his.state_dict()["state"] == {}
    _run(mine, ours, 3)
    _run(his, theirs, 3)
    a, b = mine.state_dict(), his.state_dict()
    assert a["state"].keys() == b["state"].keys()
    for key, entry in b["state"].items():
        assert a["state"][key].keys() == entry.keys()
        for name, value in entry.items():
            assert a["state"][key][name].shape == tuple(value.shape)
            close(a["state"][key][name], value, 1e-5, 1e-6)
    for x, y in zip(a["param_groups"], b["param_groups"]):
        assert x["params"] == y["params"] and all(y[k] == v for k, v in x.items())


@each_rule
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_going_on_is_bit_for_bit(make, dtype, rng):
    first = _ours(_values(rng), dtype)
    mine = make(optim, first)
    _run(mine, first, 3)
    saved, weights = _copies(mine.state_dict()), [t.detach().clone() for t in first]
    _run(mine, first, 3)
    second = [gt.tensor(w, requires_grad=True) for w in weights]
    other = make(optim, second)
    other.load_state_dict(saved)
    _run(other, second, 3)
    for a, b in zip(first, second):
        assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes()
    assert _bits(mine.state_dict()) == _bits(other.state_dict())


def test_the_tensors_are_the_optimizers_own(rng):
    tensors = _ours(_values(rng))
    o = optim.Adam(tensors)
    _run(o, tensors, 1)
    state = o.state_dict()
    before = state["state"][0]["exp_avg"].numpy()
    o.load_state_dict(state)  # onto itself: nothing changes
    close(state["state"][0]["exp_avg"], before, 0, 0)
    _run(o, tensors, 1)
    assert not np.array_equal(state["state"][0]["exp_avg"].numpy(), before)
    o.close()
    assert state["state"][0]["exp_avg"].numpy().shape == (3, 4)


def test_channels_last_weights_keep_their_logical_order(torch, rng):
    net = nn.Conv2d(3, 4, 3)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    theirs = torch.nn.Conv2d(3, 4, 3)
    theirs.load_state_dict(_to_torch(torch, net.state_dict()))
    mine, his = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        his.zero_grad()
        theirs(torch.tensor(x)).square().sum().mul(0.01).backward()
        his.step()
    net.load_state_dict(theirs.state_dict())
    mine.load_state_dict(his.state_dict())
    for _ in range(2):
        for model, o, value in ((net, mine, gt.tensor(x)), (theirs, his, torch.tensor(x))):
            o.zero_grad()
            (model(value).square().sum() * 0.01).backward()
            o.step()
    close(net.weight, theirs.weight, 1e-4, 1e-5)
    close(mine.state_dict()["state"][0]["momentum_buffer"], his.state_dict()["state"][0]["momentum_buffer"], 1e-4, 1e-5)


def _net():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def _train(net, o, steps=2):
    for _ in range(steps):
        o.zero_grad()
        net(gt.ones(2, 4)).square().sum().backward()
        o.step()


def test_by_name_the_order_does_not_matter():
    net = _net()
    o = optim.Adam(net.parameters())
    _train(net, o)
    state = o.state_dict(names=True)
    assert list(state["state"]) == ["0.weight", "0.bias", "2.weight", "2.bias"] == state["param_groups"][0]["params"]
    other = _net()
    p = dict(other.named_parameters())
    turned = optim.Adam([p["2.bias"], p["0.bias"], p["0.weight"], p["2.weight"]])
    turned.load_state_dict(state)
    again = turned.state_dict(names=True)["state"]
    for name, entry in state["state"].items():
        close(again[name]["exp_avg"], entry["exp_avg"], 0, 0)
        assert again[name]["step"].item() == 2
    with pytest.raises(gt.ArgumentError, match="1 have none"):
        optim.SGD([gt.ones(1, requires_grad=True)]).state_dict(names=True)


def test_every_mismatch_is_named_and_nothing_is_loaded():
    net = _net()
    o = optim.Adam(net.parameters(), lr=0.1)
    _train(net, o)
    before = _bits(o.state_dict())
    bad = _copies(o.state_dict())
    del bad["state"][0]["exp_avg_sq"]
    bad["state"][1]["exp_avg"] = gt.zeros(7)
    bad["state"][2]["max_exp_avg_sq"] = gt.zeros(2, 3)
    bad["state"][3]["step"] = 1.5
    bad["state"][9] = {"step": 1.0}
    bad["param_groups"][0].update(lr=0.5, betas=(0.5, 0.9), amsgrad=True, maximize=False, foreach=None, rho=3)
    with pytest.raises(gt.ArgumentError) as caught:
        o.load_state_dict(bad)
    assert {n for n, _ in caught.value.mismatches} == {
        "0.weight.exp_avg_sq", "0.bias.exp_avg", "2.weight.max_exp_avg_sq", "2.bias.step", "9",
        "param_groups[0].betas", "param_groups[0].amsgrad", "param_groups[0].rho",
    }  # fmt: skip
    for name, text in caught.value.mismatches:
        assert f"{name}: {text}" in str(caught.value)
    assert "[7] in the state, [3] here" in str(caught.value)
    assert _bits(o.state_dict()) == before and o.lr == 0.1


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda s: s["param_groups"].append(dict(s["param_groups"][0])), "param_groups"),
        (lambda s: s["param_groups"][0]["params"].pop(), "param_groups[0].params"),
        (lambda s: s["param_groups"][0].update(lr=math.nan), "param_groups[0].lr"),
        (lambda s: s["param_groups"][0].pop("eps"), "param_groups[0].eps"),
        (lambda s: s["state"][0].update(exp_avg=gt.zeros(3, 4, dtype="int64")), "0.weight.exp_avg"),
        (lambda s: s["state"][0].update(exp_avg="text"), "0.weight.exp_avg"),
        (lambda s: s["state"][0].update(step=2.0**31), "0.weight.step"),
        (lambda s: s["state"][0].pop("step"), "0.weight.step"),
        (lambda s: s["state"][0].update(master=gt.zeros(3, 4)), "0.weight.master"),
    ],
)
def test_what_does_not_fit_is_refused(change, name):
    net = _net()
    o = optim.Adam(net.parameters())
    _train(net, o)
    before = _bits(o.state_dict())
    state = _copies(o.state_dict())
    change(state)
    with pytest.raises(gt.ArgumentError) as caught:
        o.load_state_dict(state)
    assert name in [n for n, _ in caught.value.mismatches]
    assert _bits(o.state_dict()) == before


def test_what_is_no_state_is_refused():
    o = optim.SGD([gt.ones(1, requires_grad=True)])
    for wrong in (None, [], {}, {"state": {}}, {"state": [], "param_groups": []}):
        with pytest.raises(gt.ArgumentError, match="param_groups"):
            o.load_state_dict(wrong)


def test_names_that_differ_are_all_listed():
    net = _net()
    o = optim.Adam(net.parameters())
    state = o.state_dict(names=True)
    state["param_groups"][0]["params"][0] = "first.weight"
    state["param_groups"][0]["params"][3] = "last.bias"
    with pytest.raises(gt.ArgumentError) as caught:
        o.load_state_dict(state)
    assert {n for n, _ in caught.value.mismatches} == {"0.weight", "2.bias", "first.weight", "last.bias"}


def test_a_parameter_without_an_entry_begins_anew():
    net = _net()
    o = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    fresh = o.state_dict()
    _train(net, o)
    assert o.state_dict()["state"]
    o.load_state_dict(fresh)
    assert o.state_dict()["state"] == {}
    _train(net, o, 1)
    grads = [p.grad.numpy() for p in net.parameters()]
    for i, g in enumerate(grads):
        close(o.state_dict()["state"][i]["momentum_buffer"], g, 0, 0)


def test_frozen_parameters_keep_their_number():
    net = _net()
    net[0].requires_grad_(False)
    o = optim.Adam(net.parameters())
    _train(net, o)
    state = o.state_dict()
    assert state["param_groups"][0]["params"] == [0, 1, 2, 3] and list(state["state"]) == [2, 3]
    o.load_state_dict(state)
    state["state"][0] = dict(state["state"][2])
    with pytest.raises(gt.ArgumentError, match="0.weight: has state, but is not trained here"):
        o.load_state_dict(state)


def test_learning_rates_are_taken_over_and_a_scheduler_goes_on():
    net = _net()
    o = optim.SGD([{"params": list(net[0].parameters()), "lr": 0.5}, {"params": list(net[2].parameters())}], lr=0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(o, 2, 0.1)
    for _ in range(3):
        _train(net, o, 1)
        scheduler.step()
    other = optim.SGD([{"params": list(net[0].parameters()), "lr": 0.5}, {"params": list(net[2].parameters())}], lr=0.1, momentum=0.9)
    resumed = optim.lr_scheduler.StepLR(other, 2, 0.1)
    other.load_state_dict(o.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    for a, b in zip(o.param_groups, other.param_groups):
        assert a["lr"] == b["lr"] and a["initial_lr"] == b["initial_lr"]
    assert other.lr == pytest.approx(0.05)
    for _ in range(3):
        scheduler.step()
        resumed.step()
        assert scheduler.get_last_lr() == resumed.get_last_lr()


def test_nothing_is_loaded_inside_a_window():
    net = _net()
    o = optim.Adam(net.parameters())
    _train(net, o)
    before, state = _bits(o.state_dict()), _copies(o.state_dict())
    for entry in state["state"].values():
        entry["exp_avg"].fill_(1.0)
    window = gt.accumulate(o, 2)
    with window.micro_batch() as micro:
        micro.backward(net(gt.ones(2, 4)).square().mean(), items=2)
    with pytest.raises(gt.StateError):
        o.load_state_dict(state)
    window.cancel()
    assert _bits(o.state_dict()) == before
    o.load_state_dict(state)
    close(o.state_dict()["state"][0]["exp_avg"], np.ones((3, 4)), 0, 0)


def test_learning_rates_come_with_the_state():
    net = _net()
    o = optim.SGD([{"params": list(net[0].parameters())}, {"params": list(net[2].parameters()), "lr": 0.3}], lr=0.1)
    state = o.state_dict()
    o.lr = 0.7
    o.load_state_dict(state)
    assert [g["lr"] for g in o.param_groups] == [0.1, 0.3] and o.lr == 0.1
    net[2].weight.sum().backward()
    before = net[2].weight.detach().numpy()
    o.step()
    close(net[2].weight, before - 0.3, 1e-6, 1e-6)


def test_a_scalers_state_is_taken_over_from_pytorchs_too():
    scaler = gt.amp.GradScaler(init_scale=1024.0)
    scaler.load_state_dict({"scale": 256.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7})
    state = scaler.state_dict()
    assert state == {"scale": 256.0, "growth_count": 7, "updates": 0, "skipped": 0, "skipped_in_row": 0}
    other = gt.amp.GradScaler()
    other.load_state_dict(state)
    assert other.state_dict() == state
    with pytest.raises(gt.ArgumentError, match="scale, skipped"):
        other.load_state_dict({"growth_count": 1, "updates": 1, "skipped_in_row": 0})
    with pytest.raises(gt.ArgumentError):
        other.load_state_dict({**state, "scale": -1.0})
    assert other.state_dict() == state
