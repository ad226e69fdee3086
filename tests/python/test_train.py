import math
import os
import signal
import threading
import time

import numpy as np
import pytest
from conftest import close

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import amp, nn
from gtrain.data import Loader, TensorDataset


@pytest.fixture
def problem(rng):
    x = rng.standard_normal((256, 10)).astype(np.float32)
    y = (x @ rng.standard_normal((10, 3))).argmax(1)
    return TensorDataset(x[:192], y[:192], classes=3), TensorDataset(x[192:], y[192:], classes=3)


def _net():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))


def test_fit_learns_and_reports(problem):
    net = _net()
    steps, epochs = [], []
    trainer = gt.Trainer(net, gt.optim.Adam(net.parameters(), lr=0.01), on_step=lambda p: steps.append(p), on_epoch=lambda p: epochs.append(p), log_every=1)
    result = trainer.fit(Loader(problem[0], 32, shuffle=True), 8, Loader(problem[1], 64))
    assert len(steps) == 48 and len(epochs) == 8 and not result.stopped and result.epochs == 8 and result.steps == 48
    assert result.training.accuracy > 0.85 and result.validation.samples == 64 and result.history == tuple(epochs)
    assert isinstance(steps[0].training, gt.Metrics) and isinstance(result.validation, gt.Metrics) and steps[0].measured is True
    assert steps[0].measured and steps[-1].total_steps == 48 and steps[0].learning_rate == 0.01 and steps[3].epoch == 0
    assert trainer.evaluate(Loader(problem[1], 64)).accuracy == result.validation.accuracy
    assert trainer.state == (8, 48)
    assert "learning_rate=0.01" in repr(steps[0]) and not hasattr(steps[0], "nothing")
    loader, validation = Loader(problem[0], 32), Loader(problem[1], 32)
    trainer.fit(loader, 1, validation)
    assert len(list(loader)) == 6 and len(list(validation)) == 2


def test_callbacks_stop_and_raise(problem):
    net = _net()
    loader = Loader(problem[0], 32)
    trainer = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1), on_step=lambda p: p.step == 2)
    result = trainer.fit(loader, 5)
    assert result.stopped and result.steps == 2

    def angry(p):
        raise LookupError(f"at {p.step}")

    trainer.on_step = angry
    with pytest.raises(LookupError, match="at "):
        trainer.fit(loader, 1)
    trainer.on_step = None
    trainer.on_epoch = angry
    with pytest.raises(LookupError):
        trainer.fit(loader, 1)
    trainer.on_epoch = None
    assert trainer.fit(loader, 1).steps == 6


def test_keyboard_interrupt_stops_between_steps_and_training_goes_on(problem):
    net = _net()
    trainer = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1))
    loader = Loader(problem[0], 8)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader, 100000)
    assert time.monotonic() - start < 5
    assert all(np.isfinite(v.numpy()).all() for v in net.state_dict().values())
    assert trainer.fit(loader, 1).epochs == 1


def test_losses_of_ones_own(problem, rng):
    net = _net()
    modes = []

    def loss(output, y):
        modes.append(gt.is_grad_enabled())
        return F.cross_entropy(output, y, label_smoothing=0.1)

    trainer = gt.Trainer(net, gt.optim.Adam(net.parameters(), lr=0.01), loss=loss)
    result = trainer.fit(Loader(problem[0], 64), 2, Loader(problem[1], 64))
    assert result.training.loss < 1.3 and math.isnan(result.training.accuracy) and True in modes and False in modes

    def bad(output, y):
        raise LookupError("loss")

    with pytest.raises(LookupError):
        gt.Trainer(net, gt.optim.SGD(net.parameters()), loss=bad).fit(Loader(problem[0], 64), 1)
    with pytest.raises(TypeError, match="float"):
        gt.Trainer(net, gt.optim.SGD(net.parameters()), loss=lambda o, y: 1.0).fit(Loader(problem[0], 64), 1)
    with pytest.raises(gt.ArgumentError):
        gt.Trainer(net, gt.optim.SGD(net.parameters()), loss="hinge")


def test_python_modules_train(problem):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(10, 32), nn.Linear(32, 3)

        def forward(self, x):
            return self.b(self.a(x).relu())

    net = Net()
    result = gt.Trainer(net, gt.optim.Adam(net.parameters(), lr=0.01)).fit(Loader(problem[0], 32, shuffle=True), 8)
    assert result.training.accuracy > 0.85

    class Fails(Net):
        def forward(self, x):
            raise LookupError("forward")

    net = Fails()
    with pytest.raises(LookupError, match="forward"):
        gt.Trainer(net, gt.optim.SGD(net.parameters())).fit(Loader(problem[0], 32), 1)


def test_trainer_does_what_a_loop_does(problem):
    nets = [_net(), _net()]
    nets[1].load_state_dict(nets[0].state_dict())
    trainer = gt.Trainer(nets[0], gt.optim.SGD(nets[0].parameters(), lr=0.1, momentum=0.9), clip_norm=0.5)
    trainer.fit(Loader(problem[0], 32, shuffle=True, seed=4), 2)
    o, loader = gt.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.9), Loader(problem[0], 32, shuffle=True, seed=4)
    for _ in range(2):
        for x, y in loader:
            o.zero_grad()
            F.cross_entropy(nets[1](x), y).backward()
            o.clip_grad_norm(0.5)
            o.step()
    for a, b in zip(nets[0].parameters(), nets[1].parameters()):
        close(a, b, 1e-4, 1e-6)


def test_options_reach_the_library(problem):
    net = _net()
    scaler = amp.GradScaler(init_scale=256.0)
    trainer = gt.Trainer(
        net, gt.optim.SGD(net.parameters(), lr=1.0), precision="f16", scaler=scaler, accumulation=2, checkpointing=2, shrink_on_oom=True, offload=1 << 20,
        schedule=gt.Schedule.cosine(0.1, 6, warmup_steps=2), cross_entropy={"label_smoothing": 0.1}, clip_value=1.0,
    )  # fmt: skip
    seen = []
    trainer.on_step = lambda p: seen.append(p.learning_rate)
    result = trainer.fit(Loader(problem[0], 32), 2)
    assert result.steps == 12 and trainer.scaler.get_scale() == 256 and trainer.state[1] == 6 and 0.05 in seen
    auto = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.01), precision="f16")
    assert auto.scaler.get_scale() == 65536
    with pytest.raises(gt.ArgumentError):
        gt.Trainer(net, gt.optim.SGD(net.parameters()), precision="f8")
    two = gt.optim.SGD([{"params": list(net.parameters())[:1]}, {"params": list(net.parameters())[1:]}])
    with pytest.raises(gt.ArgumentError):
        gt.Trainer(net, two)


def test_out_of_memory_in_fit_carries_the_report(problem, ctx):
    net = nn.Sequential(nn.Linear(10, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 3))
    ctx.set_memory_limit(ctx.memory.stats().reserved + (1 << 20))
    with pytest.raises(gt.OutOfMemoryError) as caught:
        gt.Trainer(net, gt.optim.Adam(net.parameters())).fit(Loader(problem[0], 192), 1)
    assert caught.value.report.cause == "LIMIT"
