"""Makes gtrain say what the trouble table (docs/guide/trouble.md) quotes.

    provoke.py <source>

Each function below runs into one kind of trouble. What was said must stand on the page, word by word; … on the page stands for anything. A message that needs a GPU or another
machine must at least be what a format string of the sources makes. Ends with 77, which ctest counts as skipped, where NumPy is missing.
"""

import ctypes
import gzip
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import check_text

try:
    import numpy as np
except ImportError:
    print(f"skipped: {sys.executable} has no numpy (apt-get install python3-numpy)")
    sys.exit(77)

import gtrain as gt  # noqa: E402
from gtrain import _api, nn  # noqa: E402
from gtrain._library import lib  # noqa: E402

F = nn.functional
CASES = []
said = []  # of the log


def case(function):
    CASES.append(function)
    return function


def raised(call, *arguments, **named):
    """The message of what a call raises."""
    try:
        call(*arguments, **named)
    except Exception as error:
        return [str(error)] + ([error.report.text] if isinstance(error, gt.OutOfMemoryError) else [])
    raise AssertionError("nothing was raised")


def each(*calls):
    return [text for call in calls for text in raised(call)]


def in_a_process(code, **environment):
    done = subprocess.run([sys.executable, "-B", "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    return [line.partition("Error: ")[2] or line for line in (done.stdout + done.stderr).splitlines()]


class Log(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


def samples(count, width=8, labels=4, value=0.0):
    return gt.data.TensorDataset(np.full((count, width), value, np.float32), np.arange(count) % labels)


# --- finding the library


@case
def libraries():
    libm = next(p for p in ("libm.so.6", "libm.so") if loads(p))
    opened = "import gtrain as gt; gt.Context('cuda')"
    lines = in_a_process("import gtrain", GTRAIN_LIBRARY="/nowhere") + in_a_process("import gtrain", GTRAIN_LIBRARY=libm)
    lines = [line.partition(" and misses")[0] for line in lines]
    with tempfile.TemporaryDirectory() as alone:  # without its CUDA module, whether this build has one or not
        lines += in_a_process(opened, GTRAIN_LIBRARY=shutil.copy(gt._library.path, alone))
    lines += in_a_process(opened, GTRAIN_CUDA_MODULE="/nowhere/libgtrain_cuda.so") + in_a_process(opened, GTRAIN_CUDA_MODULE=libm)
    return lines


def loads(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


@case
def no_gpu():
    """Says nothing where there is one."""
    log = "import gtrain as gt; gt.Context('auto', log=lambda level, text: print(text))"
    return in_a_process("import gtrain as gt; gt.Context('cuda')") + in_a_process(log)


@case
def options_of_other_versions():
    def refused(size, set_byte=None):
        options = (ctypes.c_char * 256)()
        view = ctypes.cast(options, ctypes.POINTER(_api.gt_context_options))
        assert lib.gt_context_options_init(view, 256) == 0
        view.contents.struct_size, view.contents.device = size, _api.GT_DEVICE_CPU
        if set_byte:
            options[set_byte] = b"\x01"
        handle = ctypes.c_void_p()
        assert lib.gt_context_create(view, ctypes.byref(handle)) == _api.GT_BAD_ABI
        return lib.gt_last_error().contents.message.decode()

    return [refused(0), refused(200, 190)]


@case
def settings_that_the_doctor_sees():
    return in_a_process("import gtrain.doctor as d; [print(f.what) for f in d.examine().faults]", OMP_WAIT_POLICY="active")


# --- shapes, dtypes, values


@case
def shapes_and_dtypes():
    other = gt.Context("cpu")
    net = nn.Sequential(nn.Linear(2, 2))
    return each(
        lambda: nn.Sequential(nn.Linear(784, 10))(gt.randn(8, 32)),
        lambda: nn.Sequential(nn.Conv2d(64, 32, 3))(gt.randn(8, 32, 28, 28)),
        lambda: gt.randn(3, 4) + gt.randn(5, 4),
        lambda: nn.Linear(4, 2)(gt.randn(3, 4, dtype="float16")),
        lambda: nn.Linear(4, 2)(gt.zeros(3, 4, dtype="uint8")),
        lambda: gt.tensor([1, 2]).mean(),
        lambda: net(gt.randn(2, 2, device=other)),
        lambda: F.cross_entropy(gt.randn(4, 10), gt.tensor([1, 2, 10, 3])),
        lambda: F.cross_entropy(gt.randn(4, 10), gt.tensor([1, 2, 3])),
        lambda: nn.Embedding(10, 4)(gt.tensor([3, 12])),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))(gt.randn(1, 4)),
    )


# --- gradients and updates


@case
def saved_and_modified():
    def stepped_between():
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
        first, second = net(gt.randn(2, 4)).sum(), net(gt.randn(2, 4)).sum()
        first.backward()
        optimizer.step()
        second.backward()

    def filled():
        y = gt.randn(3, requires_grad=True).exp()
        z = (y * y).sum()
        y.detach().fill_(1.0)
        z.backward()

    def segment():
        x = gt.randn(3, requires_grad=True)
        y = gt.checkpoint(lambda a: a.exp() * a, x)
        with gt.no_grad():
            x.fill_(1.0)
        y.sum().backward()

    return each(stepped_between, filled, segment)


@case
def backward_and_steps():
    def twice():
        w = gt.randn(3, requires_grad=True)
        loss = (w * w).sum()
        loss.backward()
        loss.backward()

    def of_a_vector():
        w = gt.randn(3, requires_grad=True)
        (w * w).backward()

    def into_a_leaf():
        w = gt.randn(3, requires_grad=True)
        w += 1

    def after_conversion():
        net = nn.Sequential(nn.Linear(4, 4))
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
        net.half()
        net(gt.randn(2, 4).half()).float().sum().backward()
        optimizer.step()

    def inside_a_window():
        net = nn.Linear(4, 4)
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
        window = gt.Window(optimizer, 2)
        with window.micro_batch() as micro:
            micro.backward(net(gt.randn(2, 4)).sum(), items=2)
        optimizer.step()

    return each(
        twice,
        of_a_vector,
        into_a_leaf,
        after_conversion,
        inside_a_window,
        lambda: gt.randn(3).sum().backward(),
        lambda: gt.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1).step(),
        lambda: gt.optim.SGD(nn.Linear(2, 2).parameters(), lr=-1),
    )


# --- precision and NaN


@case
def not_finite():
    del said[:]
    for precision, batch in (("f32", 2), ("f16", 1)):
        net = nn.Sequential(nn.Linear(8, 4))
        trainer = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1), precision=precision)
        trainer.fit(gt.Loader(samples(64, value=np.nan), batch), 1)
    return list(said)


@case
def scaler_out_of_order():
    net = nn.Linear(4, 2)
    optimizer, scaler = gt.optim.SGD(net.parameters(), lr=0.1), gt.amp.GradScaler()
    scaler.scale(net(gt.randn(2, 4)).sum()).backward()
    scaler.unscale_(optimizer)
    return each(lambda: scaler.unscale_(optimizer), gt.amp.GradScaler().update)


# --- memory


@case
def out_of_memory():
    def fragmented():
        with gt.Context("cpu", memory_limit=100 << 20):
            del_me = gt.empty(100 << 20, dtype="uint8")
            del del_me
            blocks = [gt.empty(10 << 20, dtype="uint8") for _ in range(10)]
            kept = blocks[::2]
            del blocks
            gt.empty(20 << 20, dtype="uint8")
        return kept

    def growing():
        with gt.Context("cpu", memory_limit=40 << 20):
            net, kept = nn.Linear(256, 256), []
            optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(100):
                optimizer.zero_grad()
                kept.append(net(gt.randn(1024, 256)))
                kept[-1].square().mean().backward()
                optimizer.step()

    def without_backward():
        with gt.Context("cpu", memory_limit=40 << 20):
            net = nn.Linear(256, 256)
            return [net(gt.randn(1024, 256)).square().mean() for _ in range(100)]

    def limited():
        with gt.Context("cpu", memory_limit=7 << 20):
            gt.empty(8 << 20, dtype="uint8")

    return each(fragmented, growing, without_backward, limited, lambda: gt.empty(1 << 50, dtype="uint8"))


@case
def shrinking():
    del said[:]
    with gt.Context("cpu", memory_limit=1 << 20):
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
        trainer = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1), shrink_on_oom=True)
        trainer.fit(gt.Loader(samples(1024, 64), 512), 1)
    return list(said)


# --- data and files


class Broken(gt.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise ValueError("broken")
        return np.zeros(2, np.float32), 0


class Slow(Broken):
    calls = 0

    def __getitem__(self, index):
        Slow.calls += 1
        if Slow.calls > 2:  # the first is the package's own, to see the shape
            time.sleep(1.5)
        return np.zeros(2, np.float32), 0


@case
def loaders():
    return each(
        lambda: gt.Loader(samples(3), 8, drop_last=True),
        lambda: list(gt.Loader(Broken(), 2)),
        lambda: list(gt.Loader(Slow(), 2, timeout=0.3, num_workers=1)),
        lambda: gt.Loader(gt.data.TensorDataset(np.zeros((3, 1, 4, 4), np.uint8)), 2, transform=gt.data.Transform().normalize(0.5, 0.5)),
        lambda: gt.data.TensorDataset(np.zeros((3, 2), np.float32), np.array([0, 1, 9]), classes=3),
    )


@case
def forked_loader():
    loader = gt.Loader(samples(4), 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            x, y, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
            lib.gt_loader_next(loader._h, ctypes.byref(x), ctypes.byref(y), ctypes.byref(count))
            os.write(write, lib.gt_last_error().contents.message)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        message = file.read()
    os.waitpid(child, 0)
    return [message]


@case
def files():
    images = struct.pack(">4BIII", 0, 0, 8, 3, 2, 2, 2) + bytes(8)
    for name, content in (("text", b"hello"), ("cut.gz", gzip.compress(images, mtime=0)[:-6]), ("x.safetensors", b"\xff" * 7 + b"\x7f{}")):
        with open(name, "wb") as file:
            file.write(content)
    net, data = nn.Sequential(nn.Linear(4, 3)), samples(1024, 4)
    gt.io.save_module(net, "net.safetensors")
    loaders = [gt.Loader(data, n) for n in (512, 256)]
    gt.io.save_state("run.safetensors", module=net, loader=loaders[0])

    def in_a_window():
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
        window = gt.Window(optimizer, 2, module=net)
        with window.micro_batch() as micro:
            micro.backward(net(gt.randn(2, 4)).sum(), items=2)
        gt.io.save_state("run.safetensors", module=net, optimizers=optimizer)

    class Reads(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum().item() > 0 else x

    return each(
        in_a_window,
        lambda: gt.data.IDX("text"),
        lambda: gt.data.IDX("cut.gz"),
        lambda: gt.data.IDX("none"),
        lambda: gt.io.load_file("x.safetensors"),
        lambda: gt.io.load_module(nn.Sequential(nn.Linear(4, 5)), "net.safetensors"),
        lambda: gt.io.load_state("run.safetensors", module=net, loader=loaders[1]),
        lambda: gt.io.load_state("net.safetensors", module=net),
        lambda: gt.io.export_onnx(Reads(), gt.randn(3, 4), "x.onnx"),
    )


# --- Python


@case
def python():
    def closed():
        ctx = gt.Context("cpu")
        ctx.close()
        gt.randn(3, device=ctx)

    layer = nn.Linear(2, 2)
    return each(
        closed,
        lambda: nn.Sequential(layer, layer),
        lambda: bool(gt.randn(3) == gt.randn(3)),
        lambda: setattr(layer.weight, "grad", gt.randn(2, 2)),
    )


def as_pattern(quote):
    return re.compile(".*".join(map(re.escape, quote.split("…"))))


def main():
    source = sys.argv[1]
    page = os.path.join(source, "docs", "guide", "trouble.md")
    wanted = [(number, quote, as_pattern(quote)) for number, quote in check_text.quotes(check_text.read(page))]
    logging.getLogger("gtrain").addHandler(Log())
    logging.getLogger("gtrain").setLevel(logging.INFO)
    logging.getLogger("gtrain").propagate = False
    found, problems = set(), []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for run in CASES:
            texts = run()
            lines = [line for text in texts for line in text.splitlines()]
            hits = {quote for _, quote, pattern in wanted for line in lines if pattern.search(line)}
            if not hits and lines:
                problems.append(f"{run.__name__}: nothing of what was said is quoted:\n  " + "\n  ".join(lines))
            found |= hits
        os.chdir("/")
    formats = check_text.formats(source)
    elsewhere = 0
    for number, quote, _ in wanted:
        if quote not in found:
            elsewhere += 1
            if check_text.said(quote, formats):
                print(f"not provoked here, but in the sources: {quote}")
            else:
                problems.append(f"{page}:{number}: was not said, and no format string of the sources makes it: {quote}")
    print(f"{len(wanted)} messages are quoted, {len(found)} of them were said")
    if len(found) < 45:
        problems.append("fewer than 45 were said")
    print("\n".join(problems))
    return 1 if problems else 0


sys.exit(main())
