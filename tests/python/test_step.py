import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import amp, nn
from gtrain.data import Loader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.25), nn.Linear(16, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def _batches(rng, sizes=(24, 24, 24, 15, 24, 15, 24)):
    return [(gt.tensor(rng.standard_normal((n, 10)).astype(np.float32)), gt.tensor(np.arange(n) % 3)) for n in sizes]


def _world(seed=5, momentum=0.9):
    gt.manual_seed(seed)
    net = Net()
    return net, gt.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)


def _same(a, b):
    return all(np.array_equal(x.numpy(), b.state_dict()[name].numpy()) for name, x in a.state_dict().items())


def test_losses_and_weights_are_those_of_the_eager_loop(rng):
    batches = _batches(rng)
    net, optimizer = _world()
    losses, logits = [], []
    for x, y in batches:
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
        logits.append(out.detach().numpy())
    after = gt.Context.get_rng_state(gt.default_context())
    twin, optimizer = _world()

    def function(x, y):
        out = twin(x)
        return F.cross_entropy(out, y), out

    step = gt.Step(function, optimizer, module=twin)
    for (x, y), loss, out in zip(batches, losses, logits):
        found, outputs = step(x, y)
        assert float(found) == loss and np.array_equal(outputs.numpy(), out)
    assert twin.calls == 2  # once a shape
    assert _same(net, twin) and gt.default_context().get_rng_state() == after
    assert step.state.updates == len(batches) and step.state.learning_rate == 0.1


def test_micro_batches_schedule_clipping_and_a_scaler(rng):
    batches = _batches(rng, (24, 24, 24, 24))
    schedule = gt.Schedule.cosine(0.1, 4)
    net, optimizer = _world()
    scaler = amp.GradScaler(init_scale=1024.0)
    with gt.accumulate(optimizer, 3, module=net, scaler=scaler, schedule=schedule, clip_norm=0.5) as window:
        for x, y in batches:
            for i in range(3):
                with window.micro_batch() as micro:
                    with amp.autocast(dtype=gt.bfloat16):
                        loss = F.cross_entropy(net(x[8 * i : 8 * i + 8]), y[8 * i : 8 * i + 8])
                    micro.backward(loss)
        norm = window.state.gradient_norm
    twin, optimizer = _world()
    step = gt.Step(
        lambda x, y: F.cross_entropy(twin(x), y), optimizer, module=twin, scaler=amp.GradScaler(init_scale=1024.0), schedule=schedule, micro_batches=3, clip_norm=0.5,
        autocast=gt.bfloat16,
    )  # fmt: skip
    for x, y in batches:
        step(x, y)
    assert _same(net, twin) and step.state.gradient_norm == norm and step.state.updates == 4
    assert twin.calls == 3 * 2  # the second trace finds the half copies of the weights


def test_the_learning_rate_may_change_and_ignored_labels_do_not_count(rng):
    x = gt.tensor(rng.standard_normal((8, 10)).astype(np.float32))
    y = gt.tensor(np.array([0, 1, 2, -100, -100, -100, 1, 2]))
    net, optimizer = _world()
    net.eval()
    whole = float(F.cross_entropy(net(x), y))
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net, micro_batches=2)
    assert abs(float(step(x, y)) - whole) < 1e-6
    assert step.state.items == 5
    before = net.last.weight.numpy().copy()
    optimizer.param_groups[0]["lr"] = 0.0
    step(x, y)
    assert np.array_equal(before, net.last.weight.numpy())


def test_without_an_optimizer_it_is_inference(rng):
    net, _ = _world()
    net.eval()
    step = gt.Step(net)
    for n in (4, 7, 4):
        x = gt.tensor(rng.standard_normal((n, 10)).astype(np.float32))
        out = step(x)
        with gt.no_grad():
            assert np.array_equal(out.numpy(), net(x).numpy())
    assert step(x) is step(x) and not out.requires_grad
    net.train()
    moved = net.norm.running_mean.numpy().copy()
    gt.Step(lambda x: (net(x), x.sum()), module=net)(x)
    assert not np.array_equal(moved, net.norm.running_mean.numpy())


def test_what_goes_wrong_is_an_exception(rng):
    ((x, y),) = _batches(rng, (24,))
    net, optimizer = _world()
    before = {name: v.numpy().copy() for name, v in net.state_dict().items()}

    def reads(x, y):
        loss = F.cross_entropy(net(x), y)
        print(float(loss))
        return loss

    with pytest.raises(gt.StateError, match="traced"):
        gt.Step(reads, optimizer, module=net)(x, y)

    def angry(x, y):
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        gt.Step(angry, optimizer, module=net)(x, y)
    with pytest.raises(TypeError, match="returned float"):
        gt.Step(lambda x, y: 1.0, optimizer, module=net)(x, y)
    with pytest.raises(TypeError, match="returned NoneType as number 1"):
        gt.Step(lambda x, y: (net(x).sum(), None), optimizer, module=net)(x, y)
    with pytest.raises(gt.ShapeError, match="micro-batches"):
        gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net, micro_batches=25)(x, y)
    with pytest.raises(TypeError, match="input 1 is list"):
        gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)(x, [1])
    with pytest.raises(gt.ArgumentError, match="micro_batches"):
        gt.Step(lambda x: x, micro_batches=0)
    with pytest.raises(gt.ArgumentError):
        gt.Step(3)
    with pytest.raises(gt.DtypeError):
        gt.Step(lambda x: x, autocast=gt.float64)
    kept = []

    def keeps(x, y):
        kept.append(net(x))
        return F.cross_entropy(kept[-1], y)

    with pytest.raises(gt.StateError, match="kept"):
        gt.Step(keeps, optimizer, module=net)(x, y)
    assert all(np.array_equal(before[name], v.numpy()) for name, v in net.state_dict().items())
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)
    assert np.isfinite(float(step(x, y)))
    step.reset()
    assert np.isfinite(float(step(x, y))) and step.state.updates == 2
    step.close()
    with pytest.raises(gt.StateError, match="closed"):
        step(x, y)
    with pytest.raises(gt.StateError):
        gt.Step(net).state


def test_a_step_lives_as_long_as_it_is_needed(ctx, rng):
    ((x, y),) = _batches(rng, (24,))
    net, optimizer = _world()
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)
    gc.collect()
    loss = step(x, y)
    value, gone = float(loss), weakref.ref(step)
    gc.disable()
    del step
    assert gone() is None  # with its arena, without a collection
    gc.enable()
    assert float(loss) == value
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)
    step(x, y)
    ctx.close()
    with pytest.raises(gt.StateError):
        step(x, y)


def test_an_interrupt_while_tracing_is_raised_and_nothing_has_changed(rng):
    ((x, y),) = _batches(rng, (24,))
    net, optimizer = _world()
    before = net.last.weight.numpy().copy()

    def slow(x, y):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        return F.cross_entropy(net(x), y)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        gt.Step(slow, optimizer, module=net)(x, y)
    assert time.monotonic() - start < 4 and np.array_equal(before, net.last.weight.numpy())
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    runs = 0
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() - start < 20:
            step(x, y)
            runs += 1
    assert step.state.updates - runs in (0, 1) and np.isfinite(float(step(x, y)))


def test_a_compiled_trainer_is_the_uncompiled_one(rng):
    x = rng.standard_normal((110, 10)).astype(np.float32)
    y = (x @ rng.standard_normal((10, 3))).argmax(1)
    training, validation = TensorDataset(x[:90], y[:90], classes=3), TensorDataset(x[90:], y[90:], classes=3)

    def fit(compile, **settings):
        net, optimizer = _world()
        trainer = gt.Trainer(net, optimizer, compile=compile, log_every=1, **settings)
        result = trainer.fit(Loader(training, 16, shuffle=True, seed=3), 3, Loader(validation, 8))
        return net, result, [(p.training, p.validation) for p in result.history], trainer.evaluate(Loader(training, 16))

    for settings in ({}, {"accumulation": 4, "clip_norm": 0.5}, {"precision": "f16"}, {"loss": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1)}):
        a, b = fit(False, **settings), fit(True, **settings)
        # NaN is not equal to itself
        assert _same(a[0], b[0]) and repr(a[2:]) == repr(b[2:]) and a[1].training.loss == b[1].training.loss
        assert b[0].calls < a[0].calls / 2
    with pytest.raises(gt.NotSupportedError, match="offload"):
        fit(True, offload=1000)


def test_a_budget_and_what_was_planned(rng):
    ((x, y),) = _batches(rng, (24,))
    net, optimizer = _world()
    step = gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer, module=net, memory_budget=64 << 20)
    with pytest.raises(gt.StateError):
        step.describe()
    loss = float(step(x, y))
    assert "first" in step.describe() and step.describe(graphviz=True).startswith("digraph") and step.budget()
    twin, optimizer = _world()
    assert float(gt.Step(lambda x, y: F.cross_entropy(twin(x), y), optimizer, module=twin)(x, y)) == loss
    third, optimizer = _world()
    offloading = gt.Step(lambda x, y: F.cross_entropy(third(x), y), optimizer, module=third, memory_budget=64 << 20, offload=True)
    assert float(offloading(x, y)) == loss and "recompute: nothing" in offloading.budget()
    with pytest.raises(gt.OutOfMemoryError):
        gt.Step(lambda x, y: F.cross_entropy(net(x), y), optimizer=gt.optim.SGD(net.parameters(), lr=0.1), module=net, memory_budget=100)(x, y)


def test_elementwise_ops_in_chains(rng):
    ((x, y),) = _batches(rng, (24,))
    losses, texts = [], []
    for fuse in (None, True, False):
        net, optimizer = _world()

        def loss(x, y):
            z = net(x)
            z = z * F.sigmoid(z)
            return (z * z).mean() + F.cross_entropy(z, y)

        step = gt.Step(loss, optimizer, module=net, fuse_elementwise=fuse)
        losses.append([float(step(x, y)) for _ in range(3)])
        texts.append(step.describe())
    assert losses[0] == losses[1] == losses[2]
    assert "chain(" in texts[0] and "chain(" in texts[1] and "chain(" not in texts[2]
