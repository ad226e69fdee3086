"""What only a process of its own can show: a quiet end (E5), forks (E4), signals, a library that is not there."""

import logging
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import DEVICE

import gtrain as gt

START = f"import gtrain as gt, numpy as np, os, sys\nfrom gtrain import nn\nimport gtrain.nn.functional as F\ngt.set_device({DEVICE!r})\n"


def run(program, code=0, timeout=120, **environment):
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", START + textwrap.dedent(program)], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == code, result.stdout + result.stderr
    return result


ENDS = {
    "everything alive": """
        x = gt.ones(3, requires_grad=True); y = (x * 2).sum(); y.backward()
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()); o = gt.optim.Adam(net.parameters()); net(x).sum().backward(); o.step()
        scaler = gt.amp.GradScaler(); window = gt.Window(o, 2); g = x.grad
    """,
    "loader in the middle of an epoch": """
        class Data(gt.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, i): return np.full(3, i, np.float32)
        batches = iter(gt.Loader(Data(), 2, num_workers=4)); first = next(batches)
    """,
    "cycles": """
        class Knot: pass
        knot = Knot(); knot.t = gt.ones(3); knot.net = nn.Linear(2, 2); knot.self = knot; knot.loader = gt.Loader(gt.data.TensorDataset(np.ones((4, 2), np.float32)), 2)
        knot.ctx = gt.Context("cpu", threads=1); knot.u = gt.ones(2, device=knot.ctx)
    """,
    "objects that use it when they go": """
        class Late:
            def __init__(self): self.t = gt.ones(3)
            def __del__(self):
                try: self.t + 1
                except Exception: pass
        late = Late(); sys.late = late
    """,
    "arrays of others": "a = np.from_dlpack(gt.ones(3).to(device='cpu')); sys.a = a; b = gt.from_dlpack(np.ones(3, np.float32)); sys.b = b",
    "checkpoint without backward": """
        w = gt.ones(3, requires_grad=True); y = gt.checkpoint(lambda x: x.exp(), w)
        class M(nn.Module):
            def forward(self, x): return x * 2
        net = M(); net.checkpointing = True; z = net(w)
    """,
    "a context in another thread": """
        import threading
        def work():
            with gt.Context("cpu", threads=1) as c: c.kept = gt.ones(3); sys.kept = c
        t = threading.Thread(target=work); t.start(); t.join()
    """,
    "sys.exit": "x = gt.ones(3); sys.exit(0)",
    "callbacks that are set": """
        ctx = gt.default_context(); ctx.memory.set_observer(lambda r: False)
        op = gt.CustomOp('nothing', lambda i, o: None); y = op(gt.ones(3))
    """,
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS.keys())
def test_E5_interpreter_ends_quietly(program):
    result = run(program)
    assert result.stderr == "" and result.stdout == ""


def test_E5_an_exception_ends_as_usual():
    result = run("x = gt.ones(3); loader = gt.Loader(gt.data.TensorDataset(np.ones((4, 2), np.float32)), 2); next(iter(loader)); raise ValueError('mine')", code=1)
    assert result.stderr.rstrip().endswith("ValueError: mine") and result.stderr.count("Traceback") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_E4_children_of_a_fork_compute_on_the_cpu_and_are_told_of_the_rest():
    result = run(
        """
        import warnings; warnings.simplefilter("ignore")
        x = gt.ones(64, 64, requires_grad=True)
        loader = gt.Loader(gt.data.TensorDataset(np.ones((40, 2), np.float32)), 2); batches = iter(loader); next(batches)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                on_cpu = not x.is_cuda
                try:
                    y = (x @ x).sum(); y.backward(); computed = y.item() == 64 ** 3
                except gt.ForkedError:
                    computed = not on_cpu
                try: next(batches)
                except gt.ForkedError: code = 0 if computed else 2
                del loader, batches
            finally:
                sys.stdout.flush()
                if code: os._exit(code)
                sys.exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status)); print(len(list(batches)), (x * 2).sum().item())
        """
    )
    assert result.stdout.split() == ["0", "19", "8192.0"] and result.stderr == ""


@pytest.mark.skipif(DEVICE != "cpu", reason="every context must say that there is no GPU")
def test_interrupt_while_the_library_logs_is_not_lost():
    result = run(
        """
        import signal
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # every context says that there is no GPU
        said, rung, made = [], 0, []  # what goes runs Python code too, in which an exception is lost: nothing goes here
        class Alarm(Exception): pass
        def ring(number, frame): raise Alarm
        signal.signal(signal.SIGALRM, ring)
        for i in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + (i % 20) * 4e-5)
                while True:
                    c = gt.Context("auto", log=lambda level, text: said.append(text))
                    made.append(c)
                    c.close()
            except Alarm:
                rung += 1
        print(rung, "no GPU is used" in said[-1])
        """
    )
    assert result.stdout.split() == ["100", "True"] and result.stderr == ""


def test_what_a_log_function_raises_is_raised_by_the_call():
    def refuse(level, text):
        if level >= logging.WARNING:
            raise LookupError(text)

    with gt.Context(DEVICE, log=refuse):
        net = gt.nn.Linear(2, 2)
        bad = gt.Loader(gt.data.TensorDataset(np.full((8, 2), np.nan, np.float32), np.zeros(8, np.int64)), 4)
        with pytest.raises(LookupError, match="2 updates were left out"):
            gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1)).fit(bad, 1)


def test_interrupt_in_a_python_loop_leaves_valid_state():
    run(
        """
        import signal, threading, time
        net = nn.Linear(64, 64); o = gt.optim.SGD(net.parameters(), lr=0.001); x = gt.ones(32, 64)
        hits = 0
        for delay in (0.01, 0.05, 0.1, 0.03, 0.02) * 4:
            try:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    o.zero_grad()
                    with gt.no_grad(): net(x)
                    gt.checkpoint(net, x).square().mean().backward()
                    o.step()
            except KeyboardInterrupt:
                hits += 1
        assert hits == 20 and np.isfinite(net.weight.numpy()).all()
        """
    )


def test_missing_and_foreign_libraries_are_refused_with_their_names(tmp_path):
    program = "import gtrain"
    for value in (tmp_path / "nowhere.so", tmp_path):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "GTRAIN_LIBRARY": str(value)})
        assert result.returncode == 1 and "ImportError" in result.stderr and str(value) in result.stderr
    import ctypes.util

    libm = ctypes.util.find_library("m")
    if libm:
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "GTRAIN_LIBRARY": libm})
        assert result.returncode == 1 and "this package was made for" in result.stderr


def test_gil_is_released_while_the_library_works():
    import threading
    import time

    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core")
    a = gt.ones(1200, 1200, dtype="float64", device="cpu")
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    (a @ a).sum().item()
    end = time.perf_counter()
    stop.set()
    thread.join()
    inside = sum(start < t < end for t in ticks)
    assert end - start < 0.02 or inside >= 3
