import gc
import threading
import weakref

import numpy as np
import pytest
from conftest import DEVICE, close

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import autograd, nn

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="its callbacks compute with NumPy")


def test_checkpoint_gives_the_same_gradients_and_frees_its_function(ctx):
    w = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    runs = []

    def segment(x, power, *, flag):
        runs.append(flag)
        return F.dropout(x.exp(), 0.5) * power

    ctx.manual_seed(5)
    F.dropout(w.exp(), 0.5).sum().backward()
    plain = w.grad.numpy() * 2
    w.grad = None
    ctx.manual_seed(5)
    gone = weakref.ref(segment)
    loss = gt.checkpoint(segment, w, 2, flag="on").sum()
    del segment
    gc.collect()
    assert gone() is not None, "backward needs it"
    loss.backward()
    close(w.grad, plain, 0, 0)
    assert runs == ["on", "on"]
    del loss
    gt.checkpoint(lambda x: x, w)  # lets go of what is done with
    gc.collect()
    assert gone() is None


def test_checkpoints_of_dropped_results_are_freed():
    w = gt.ones(2, requires_grad=True)
    gone = []
    for _ in range(20):
        f = lambda x: x * 2  # noqa: E731
        gone.append(weakref.ref(f))
        gt.checkpoint(f, w)
    del f
    gt.checkpoint(lambda x: x, w)
    gc.collect()
    assert sum(r() is not None for r in gone) == 0
    assert len(autograd._kept) <= 2


def test_checkpoint_with_several_outputs_and_nesting():
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    a, nothing, b = gt.checkpoint(lambda x: (x * 2, None, gt.checkpoint(lambda z: z.square(), x)), w)
    assert nothing is None
    (a + b).sum().backward()
    assert w.grad.tolist() == [4, 6]
    with pytest.raises(gt.ArgumentError):
        gt.checkpoint(lambda: 1)


def test_exceptions_of_a_checkpoint_come_through_in_forward_and_backward():
    w = gt.ones(2, requires_grad=True)
    with pytest.raises(ZeroDivisionError):
        gt.checkpoint(lambda x: 1 / 0, w)
    runs = []

    def second_fails(x):
        runs.append(1)
        if len(runs) == 2:
            raise KeyError("second")
        return x * 2

    loss = gt.checkpoint(second_fails, w).sum()
    with pytest.raises(KeyError, match="second"):
        loss.backward()
    (w * 2).sum().backward()


def test_checkpointing_saves_memory(ctx):
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(12)]
    x = gt.ones(512, 64)

    def peak(run):
        ctx.memory.reset_peak()
        base = ctx.memory.stats().in_use
        run().sum().backward()
        for layer in layers:
            layer.zero_grad()
        return ctx.memory.stats().peak_in_use - base

    def chain(x, part):
        for layer in part:
            x = layer(x)
        return x

    def checkpointed():
        h = x
        for i in range(0, 12, 4):
            h = gt.checkpoint(chain, h, layers[i : i + 4])
        return h

    plain, less = peak(lambda: chain(x, layers)), peak(checkpointed)
    assert less < 0.75 * plain


def test_offload_changes_no_number(rng):
    net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
    x = gt.tensor(rng.standard_normal((64, 32)).astype(np.float32))
    net(x).sum().backward()
    plain = [p.grad.numpy() for p in net.parameters()]
    net.zero_grad()
    with gt.offload(1024):
        loss = net(x).sum()
    loss.backward()
    for p, g in zip(net.parameters(), plain):
        close(p.grad, g, 0, 0)


def _exp():
    def forward(inputs, outputs):
        np.exp(inputs[0].numpy(), out=outputs[0].numpy())

    def backward(inputs, outputs, output_grads, input_grads):
        input_grads[0].numpy()[...] = output_grads[0].numpy() * outputs[0].numpy()

    return gt.CustomOp("my_exp", forward, backward, saves_inputs=False)


@on_cpu
def test_custom_op_computes_and_differentiates(rng):
    op = _exp()
    x = gt.tensor(rng.standard_normal((3, 4)).astype(np.float32), requires_grad=True)
    y = op(x.T)
    close(y, np.exp(x.detach().numpy().T))
    (y * y).sum().backward()
    close(x.grad, 2 * np.exp(2 * x.detach().numpy()), 1e-4)


@on_cpu
def test_custom_op_with_shapes_and_several_outputs():
    def shape(shapes, dtypes):
        (n, k), _ = shapes
        return [((n,), dtypes[0]), ((k,), gt.float64)]

    def forward(inputs, outputs):
        a, b = (i.numpy() for i in inputs)
        outputs[0].numpy()[...] = (a * b).sum(1)
        outputs[1].numpy()[...] = a.sum(0)

    def backward(inputs, outputs, output_grads, input_grads):
        a, b = (i.numpy() for i in inputs)
        g0, g1 = (g.numpy() for g in output_grads)
        input_grads[0].numpy()[...] = g0[:, None] * b + g1
        assert input_grads[1] is None

    op = gt.CustomOp("sums", forward, backward, shape=shape, n_outputs=2)
    a, b = gt.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True), gt.full((3, 2), 2.0)
    rows, columns = op(a, b)
    assert rows.tolist() == [6, 14, 22] and columns.tolist() == [9, 12] and columns.dtype is gt.float64
    (rows.sum() + columns.float().sum()).backward()
    assert a.grad.tolist() == [[3, 3]] * 3


@on_cpu
def test_exceptions_of_an_ops_callbacks_come_through():
    class Odd(Exception):
        pass

    def fail(*arguments):
        raise Odd("here")

    x = gt.ones(2, requires_grad=True)
    for op in (gt.CustomOp("a", fail), gt.CustomOp("b", lambda i, o: None, shape=fail)):
        with pytest.raises(Odd):
            op(x)
    loss = gt.CustomOp("c", lambda i, o: None, fail)(x).sum()
    with pytest.raises(Odd):
        loss.backward()
    with pytest.raises(gt.ArgumentError, match="outputs"):
        gt.CustomOp("d", lambda i, o: None, shape=lambda s, d: [])(x)
    assert (x * 2).sum().item() == 4


@on_cpu
def test_objects_that_go_inside_an_ops_callback_wait(ctx):
    kept = [gt.ones(4)]

    def forward(inputs, outputs):
        kept.clear()  # frees a tensor of the same context
        outputs[0].numpy()[...] = 1

    before = ctx.memory.stats().in_use
    assert gt.CustomOp("clears", forward)(gt.zeros(4)).sum().item() == 4
    gt.zeros(1)
    assert ctx.memory.stats().in_use <= before


def test_tensors_dropped_on_another_thread_are_freed_on_their_own(ctx):
    before = ctx.memory.stats().in_use
    held = [gt.ones(1 << 12) for _ in range(10)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert ctx.memory.stats().in_use == before
    loaders = [gt.Loader(gt.data.TensorDataset(np.ones((4, 2), np.float32)), 2)]
    thread = threading.Thread(target=loaders.clear)
    thread.start()
    thread.join()
    assert len(ctx._garbage) == 1
    gt.ones(1)
    assert ctx._garbage == []


def test_two_contexts_work_on_two_threads_at_once():
    results = {}

    def work(i):
        with gt.Context(DEVICE, seed=i, threads=1, deterministic=True):
            net = nn.Linear(64, 64)
            o = gt.optim.SGD(net.parameters(), lr=0.01)
            x = gt.randn(32, 64)
            for _ in range(30):
                o.zero_grad()
                net(x).square().mean().backward()
                o.step()
            results[i] = net(x).square().mean().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone = dict(results)
    results.clear()
    for i in range(3):
        work(i)
    assert results == alone
