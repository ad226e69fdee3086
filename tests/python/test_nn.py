"""Modules beside PyTorch's, and what is ours alone."""

import copy
import gc
import weakref

import numpy as np
import pytest
from conftest import close

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import nn


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.scale = nn.Parameter(gt.ones(width))
        self.register_buffer("shift", gt.zeros(width))
        self.width = width

    def forward(self, x):
        return self.second(F.relu(self.first(x))) * self.scale + self.shift


def _same(ours, theirs, x, torch, rtol=1e-4, atol=1e-5, labels=None):
    """Forward and all gradients of two networks with the same weights."""
    ours.load_state_dict(theirs.state_dict())
    tx, gx = torch.tensor(x, requires_grad=x.dtype == np.float32), gt.tensor(x, requires_grad=x.dtype == np.float32)
    ty, gy = theirs(tx), ours(gx)
    close(gy, ty, rtol, atol)
    (ty * ty).sum().backward()
    (gy * gy).sum().backward()
    for name, p in theirs.named_parameters():
        close(dict(ours.named_parameters())[name].grad, p.grad, rtol, atol * 10)
    if x.dtype == np.float32:
        close(gx.grad, tx.grad, rtol, atol * 10)
    for name, b in theirs.named_buffers():
        close(ours.state_dict()[name], b, rtol, atol)


def test_layers_compute_as_pytorchs(torch, rng):
    t = torch.nn
    image = rng.standard_normal((3, 4, 8, 8)).astype(np.float32)
    rows = rng.standard_normal((6, 4)).astype(np.float32)
    cases = [
        (lambda m: m.Linear(4, 5), rows),
        (lambda m: m.Linear(4, 5, bias=False), rows),
        (lambda m: m.Conv2d(4, 6, 3, padding=1), image),
        (lambda m: m.Conv2d(4, 6, (3, 1), stride=2, padding=(1, 0), bias=False), image),
        (lambda m: m.Conv2d(4, 4, 3, groups=2, dilation=2, padding="same"), image),
        (lambda m: m.BatchNorm2d(4), image),
        (lambda m: m.BatchNorm1d(4, eps=1e-3, momentum=0.3), rows),
        (lambda m: m.BatchNorm2d(4, affine=False), image),
        (lambda m: m.LayerNorm(4), rows),
        (lambda m: m.LayerNorm((8, 8)), image),
        (lambda m: m.ReLU(), image),
        (lambda m: m.GELU(), rows),
        (lambda m: m.GELU("tanh"), rows),
        (lambda m: m.SiLU(), rows),
        (lambda m: m.Tanh(), rows),
        (lambda m: m.Sigmoid(), rows),
        (lambda m: m.Softmax(dim=1), rows),
        (lambda m: m.LogSoftmax(dim=1), rows),
        (lambda m: m.MaxPool2d(2), image),
        (lambda m: m.MaxPool2d(3, stride=2, padding=1), image),
        (lambda m: m.AvgPool2d(3, 2, 1), image),
        (lambda m: m.AvgPool2d(3, 2, 1, count_include_pad=False), image),
        (lambda m: m.AdaptiveAvgPool2d((1, 1)), image),
        (lambda m: m.Flatten(), image),
        (lambda m: m.Identity(), rows),
        (lambda m: m.Sequential(m.Conv2d(4, 8, 3), m.BatchNorm2d(8), m.ReLU(), m.Flatten(), m.Linear(8 * 36, 3)), image),
        (lambda m: m.Embedding(10, 4), np.array([[1, 2], [9, 1]], np.int64)),
    ]
    for make, x in cases:
        _same(make(nn), make(t), x, torch)


def test_functions_compute_as_pytorchs(torch, rng):
    f = torch.nn.functional
    x = rng.standard_normal((2, 3, 6, 6)).astype(np.float32)
    w, b = rng.standard_normal((5, 3, 3, 3)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    T, G = torch.tensor, gt.tensor
    close(F.conv2d(G(x), G(w), G(b), stride=2, padding=1), f.conv2d(T(x), T(w), T(b), stride=2, padding=1), 1e-4, 1e-4)
    close(F.pad(G(x), (1, 2, 0, 3), value=0.5), f.pad(T(x), (1, 2, 0, 3), value=0.5))
    close(F.layer_norm(G(x), (6, 6)), f.layer_norm(T(x), (6, 6)), 1e-4, 1e-5)
    logits, labels = rng.standard_normal((7, 4)).astype(np.float32), np.array([0, 1, 2, 3, -100, 1, 1])
    weight = rng.random(4).astype(np.float32)
    for named in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1}, {"ignore_index": 1}):
        l = np.where(labels == -100, 1, labels) if "ignore_index" in named else labels  # noqa: E741
        close(F.cross_entropy(G(logits), G(l), **named), f.cross_entropy(T(logits), T(l), **named))
    close(F.cross_entropy(G(logits), G(labels), weight=G(weight)), f.cross_entropy(T(logits), T(labels), weight=T(weight)))
    many, places = rng.standard_normal((2, 4, 5)).astype(np.float32), rng.integers(0, 4, (2, 5))
    for reduction in ("mean", "none"):
        close(F.cross_entropy(G(many), G(places), reduction=reduction), f.cross_entropy(T(many), T(places), reduction=reduction))
    close(F.mse_loss(G(x), G(x * 2)), f.mse_loss(T(x), T(x * 2)))
    close(F.l1_loss(G(x), G(x * 2)), f.l1_loss(T(x), T(x * 2)))
    close(nn.CrossEntropyLoss(label_smoothing=0.2)(G(logits), G(labels)), torch.nn.CrossEntropyLoss(label_smoothing=0.2)(T(logits), T(labels)))
    with pytest.raises(gt.ArgumentError):
        F.mse_loss(G(x), G(x), reduction="average")
    with pytest.raises(gt.LabelError, match="4"):
        F.cross_entropy(G(logits), G(np.full(7, 4))).item()


def test_parameters_start_as_in_pytorch():
    layer = nn.Linear(400, 300)
    bound = 400**-0.5
    w = layer.weight.numpy()
    assert abs(w).max() <= bound and abs(w).max() > 0.99 * bound and abs(w.mean()) < bound / 100
    norm = nn.BatchNorm2d(3)
    assert norm.weight.tolist() == [1, 1, 1] and norm.running_var.tolist() == [1, 1, 1] and norm.num_batches_tracked.item() == 0
    t = gt.empty(64, 128)
    assert nn.init.kaiming_normal_(t, nonlinearity="relu") is t
    assert abs(t.std().item() - (2 / 128) ** 0.5) < 0.01
    nn.init.xavier_uniform_(t)
    assert abs(t.numpy()).max() <= (6 / 192) ** 0.5
    nn.init.constant_(t, 3.0)
    assert t.mean().item() == 3.0
    with pytest.raises(gt.ShapeError):
        nn.init.xavier_uniform_(gt.empty(3))


def test_subclass_registers_what_it_is_given():
    net = Block()
    assert list(net.state_dict()) == ["scale", "first.weight", "first.bias", "second.weight", "second.bias", "shift"]
    assert [n for n, _ in net.named_parameters()] == ["scale", "first.weight", "first.bias", "second.weight", "second.bias"]
    assert net.scale is net.scale and net.first.weight is net.first.weight and isinstance(net.first.weight, nn.Parameter)
    assert net.first.path == "first" and net.kind == "Block" and net.width == 4
    assert [n for n, _ in net.named_modules()] == ["", "first", "second"]
    assert net.get_submodule("second") is net.second
    assert not dict(net.named_buffers())["shift"].requires_grad
    assert "Block(" in repr(net) and "Linear(in_features=4" in repr(net) and "Block" in net._repr_html_()
    y = net(gt.ones(2, 4))
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    with pytest.raises(AttributeError, match="nothing"):
        net.nothing
    with pytest.raises(AttributeError, match="super"):
        type("Bad", (nn.Module,), {"__init__": lambda self: setattr(self, "a", nn.Linear(1, 1))})()


def test_training_and_evaluation_modes():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    assert net.training and net[0].training
    assert net.eval() is net and not net.training and not net[1].training
    x = gt.ones(8, 4)
    close(net(x), np.ones((8, 4)) / (1 + 1e-5) ** 0.5)
    net.train()
    assert (net[0](gt.ones(1000)) == 0).sum().item() > 300
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_half_keeps_norms_in_f32():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).half()
    assert net[0].weight.dtype is gt.float16 and net[1].weight.dtype is gt.float32
    assert net(gt.ones(2, 3, 5, 5, dtype=gt.float16)).dtype is gt.float16
    assert nn.Linear(2, 2, dtype=gt.bfloat16).weight.dtype is gt.bfloat16
    with pytest.raises(gt.NotSupportedError):
        net.to(gt.Context("cpu", threads=1))


def test_state_dicts_load_all_or_nothing(rng):
    net = Block()
    before = {k: v.numpy() for k, v in net.state_dict().items()}
    good = {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in before.items()}
    for broken, what in (({k: v for k, v in good.items() if k != "scale"}, "missing: scale"), ({**good, "extra": good["scale"]}, "unexpected: extra"), ({**good, "first.weight": np.zeros((2, 2))}, "first.weight")):
        with pytest.raises(gt.ShapeError, match=what):
            net.load_state_dict(broken)
        for k, v in net.state_dict().items():
            close(v, before[k])
    assert net.load_state_dict({**good, "extra": good["scale"]}, strict=False) == ([], ["extra"])
    for k, v in net.state_dict().items():
        close(v, good[k])
    other = Block()
    other.load_state_dict(net.state_dict())
    close(other(gt.ones(1, 4)), net(gt.ones(1, 4)))


def test_loading_says_what_did_not_match_as_in_pytorch():
    net = nn.Linear(2, 2)
    state = net.state_dict()
    assert repr(net.load_state_dict(state)) == "<All keys matched successfully>"
    result = net.load_state_dict({"weight": state["weight"], "extra": state["bias"]}, strict=False)
    assert result.missing_keys == ["bias"] and result.unexpected_keys == ["extra"] and "extra" in repr(result)


def test_what_is_no_tensor_of_ours_is_refused_by_name():
    net, array = nn.Linear(2, 2), np.ones((3, 2), np.float32)
    for call in (
        lambda: net(array),
        lambda: net(gt.ones(3, 2), array),
        lambda: F.cross_entropy(net(gt.ones(3, 2)), np.zeros(3, np.int64)),
        lambda: F.cross_entropy(array, gt.zeros(3, dtype=gt.int64)),
    ):
        with pytest.raises(TypeError, match=r"numpy.ndarray is no tensor of gtrain: gt.from_dlpack"):
            call()


def test_modules_refuse_to_be_copied():
    import pickle

    for net in (nn.Linear(2, 2), Block()):
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="state_dict"):
                call(net)


def test_arguments_that_make_no_difference_are_accepted():
    x = gt.tensor([[-1.0, 2.0]])
    assert F.relu(x, inplace=True).tolist() == [[0.0, 2.0]] and x.tolist() == [[-1.0, 2.0]]
    assert nn.Identity(54, unused=True)(x).tolist() == x.tolist()


def test_batch_norm_counts_its_batches_and_loads_the_count():
    net = nn.Sequential(nn.BatchNorm1d(3))
    for _ in range(3):
        net(gt.randn(4, 3))
    assert net.state_dict()["0.num_batches_tracked"].item() == 3
    state = {k: v.numpy() for k, v in net.state_dict().items()}
    net(gt.randn(4, 3))
    net.load_state_dict(state)
    assert net[0].num_batches_tracked.item() == 3


def test_children_can_be_replaced():
    net = Block()
    old = net.second
    net.second = nn.Linear(4, 2)
    net.scale.data.fill_(1)
    assert net.second.weight.shape == (2, 4) and [n for n, _ in net.named_children()] == ["first", "second"]
    assert old.weight.shape == (4, 4) and old.path == "" and old(gt.ones(1, 4)).shape == (1, 4)
    with pytest.raises(gt.StateError, match="owner"):
        net.first = net.second
    with pytest.raises(gt.StateError):
        Block().first = net.first
    del net.second
    assert not hasattr(net, "second")
    net.second = old
    assert net(gt.ones(1, 4)).shape == (1, 4)
    net.second = None
    assert net.second is None and "second.weight" not in net.state_dict()


def test_last_layer_of_a_network_of_the_librarys_can_be_replaced():
    net = nn.resnet18(num_classes=5)
    assert isinstance(net.fc, nn.Linear) and net.fc.in_features == 512 and net.layer1[0].kind == "Residual"
    net.fc = nn.Linear(512, 3)
    assert net(gt.ones(2, 3, 32, 32)).shape == (2, 3)
    assert net.state_dict()["fc.weight"].shape == (3, 512) and net.fc.path == "fc"
    net[-1] = nn.Linear(512, 2)
    assert net.eval()(gt.ones(1, 3, 32, 32)).shape == (1, 2)
    names = list(net.state_dict())
    assert "layer2.0.downsample.1.running_mean" in names and "bn1.num_batches_tracked" in names


def test_containers():
    net = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    net.append(nn.Linear(3, 1))
    assert [n for n, _ in net.named_children()] == ["a", "b", "0"] and len(net) == 3 and net.a is net[0]
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    assert len(layers) == 3 and [n for n, _ in layers.named_parameters()][0] == "0.weight" and layers[-1] is list(layers)[2]
    named = nn.ModuleDict({"x": nn.Linear(1, 1)})
    named["y"] = nn.ReLU()
    assert "y" in named and list(named.keys()) == ["x", "y"]
    close(nn.Residual(nn.Sequential(nn.ReLU()))(gt.tensor([[-1.0, 2.0]])), [[-1, 4]])
    close(nn.Residual(nn.ReLU(), activation="relu")(gt.tensor([[-1.0, 2.0]])), [[0, 4]])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.heads = nn.ModuleDict({"a": nn.Linear(2, 1)})

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.heads["a"](x)

    net = Net()
    assert net(gt.ones(1, 2)).shape == (1, 1) and len(list(net.parameters())) == 6 and net.heads["a"].path == "heads.a"


def test_python_modules_run_inside_the_librarys_containers():
    net = nn.Sequential(Block(), nn.ReLU(), Block())
    y = net(gt.ones(3, 4))
    y.sum().backward()
    assert net[0].first.weight.grad is not None and net[2].first.path == "2.first"


def test_forward_takes_and_returns_what_it_likes():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x, y=None, *, scale=1.0, flag="no"):
            h = self.inner(x)
            return {"h": h * scale, "rest": (y, flag)}

    net = Pair()
    out = net(gt.ones(1, 2), gt.zeros(1), scale=2.0, flag="yes")
    assert out["rest"][1] == "yes" and out["h"].requires_grad
    out["h"].sum().backward()
    assert net.inner.weight.grad.tolist() == [[2, 2], [2, 2]]
    with pytest.raises(TypeError, match="one tensor"):
        nn.Sequential(Pair())(gt.ones(1, 2))


def test_exceptions_of_forward_come_through():
    class Odd(Exception):
        pass

    class Bad(nn.Module):
        def forward(self, x):
            raise Odd("here")

    class Wrong(nn.Module):
        def forward(self, x):
            return x @ x

    for net in (Bad(), nn.Sequential(nn.ReLU(), Bad())):
        with pytest.raises(Odd, match="here"):
            net(gt.ones(2, 3))
    with pytest.raises(gt.ShapeError):
        nn.Sequential(Wrong())(gt.ones(2, 3))

    class Nothing(nn.Module):
        def forward(self, x):
            return None

    with pytest.raises(TypeError, match="NoneType"):
        Nothing()(gt.ones(1))
    assert nn.ReLU()(gt.ones(1)).item() == 1


def test_errors_name_the_modules_path():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(4)

        def forward(self, x):
            return self.block(x)

    with pytest.raises(gt.ShapeError, match="block.first"):
        Outer()(gt.ones(2, 3))


def test_activations_of_python_modules_go_when_python_lets_go(ctx):
    class Deep(nn.Module):
        def forward(self, x):
            for _ in range(20):
                x = x + 1
            return x

    net, x = Deep(), gt.ones(1 << 16)
    with gt.no_grad():
        net(x)
        ctx.memory.reset_peak()
        base = ctx.memory.stats().in_use
        y = net(x)
    assert ctx.memory.stats().peak_in_use - base <= 3 * x.nbytes
    assert y[0].item() == 21


def test_modules_are_freed_with_the_last_object(ctx):
    before = ctx.memory.stats().in_use
    net = nn.Sequential(Block(64), nn.Linear(64, 64))
    part = net[0].first
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert part(gt.ones(1, 64)).shape == (1, 64)
    del part
    gc.collect()
    assert ctx.memory.stats().in_use == before
    weight = nn.Linear(8, 8).weight
    assert weight.shape == (8, 8) and weight.sum().item() != 0


def test_tied_weights_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(gt.ones(2, 2))
            self.b = self.a

        def forward(self, x):
            return F.linear(F.linear(x, self.a), self.b)

    net = Tied()
    assert len(list(net.parameters())) == 1 and list(net.state_dict()) == ["a", "b"] and net.num_parameters() == 4
    net(gt.ones(1, 2)).sum().backward()
    assert net.a.grad is not None


def test_checkpointed_module_recomputes(ctx):
    class Counted(nn.Module):
        runs = 0

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            Counted.runs += 1
            return self.inner(x).exp()

    net = nn.Sequential(Counted(), Counted())
    x = gt.ones(2, 4)
    net(x).sum().backward()
    plain = [p.grad.numpy() for p in net.parameters()]
    net.zero_grad()
    Counted.runs = 0
    net[0].checkpointing = True
    net[1].checkpoint_()
    loss = net(x).sum()
    assert Counted.runs == 2
    loss.backward()
    assert Counted.runs == 4
    for p, g in zip(net.parameters(), plain):
        close(p.grad, g)
    loss = net(x).sum()
    parameters = list(net.parameters())
    del net
    gc.collect()
    with pytest.raises(gt.StateError, match="gone"):
        loss.backward()  # the Python objects are gone, the library's module is not


def test_segments_of_a_sequential():
    net = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)])
    x = gt.ones(2, 4)
    net(x).sum().backward()
    plain = [p.grad.numpy() for p in net.parameters()]
    net.zero_grad()
    net.set_segments(2)
    net(x).sum().backward()
    for p, g in zip(net.parameters(), plain):
        close(p.grad, g, 0, 0)
    with pytest.raises(gt.ArgumentError):
        net.set_segments(9)


def test_deep_copies_of_state_are_independent():
    net = Block()
    state = copy.deepcopy(net.state_dict())
    with gt.no_grad():
        net.scale.fill_(9.0)
    assert state["scale"].tolist() == [1, 1, 1, 1]


def test_weights_and_results_of_a_small_network_match_pytorchs_training(torch, rng):
    def make(m):
        return m.Sequential(m.Conv2d(1, 4, 3, padding=1), m.BatchNorm2d(4), m.ReLU(), m.MaxPool2d(2), m.Flatten(), m.Linear(64, 3))

    ours, theirs = make(nn), make(torch.nn)
    ours.load_state_dict(theirs.state_dict())
    x, y = rng.standard_normal((16, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 16)
    mine, his = gt.optim.SGD(ours.parameters(), lr=0.05, momentum=0.9), torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        his.zero_grad()
        torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)).backward()
        his.step()
        mine.zero_grad()
        F.cross_entropy(ours(gt.tensor(x)), gt.tensor(y)).backward()
        mine.step()
    for name, t in theirs.state_dict().items():
        close(ours.state_dict()[name], t, 1e-3, 1e-4)
