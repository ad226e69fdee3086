"""What notebooks and terminals show: HTML of models, tensors, memory, results; progress bars."""

import html.parser
import io
import re
import sys

import numpy as np
import pytest

import gtrain as gt
from gtrain import nn
from gtrain.data import Loader, TensorDataset


class _Page(html.parser.HTMLParser):
    """Every tag is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def shown(thing):
    text = thing._repr_html_()
    page = _Page(text)
    for tag, attributes in page.tags:
        # A fixed colour of text would vanish on a light or on a dark page; only the squares of a legend have one.
        colours = re.findall(r"(?<![-\w])color:([^;]*)", attributes.get("style", ""))
        assert tag == "span" or set(colours) <= {"inherit"}, colours
    return page.text


def test_model_shows_its_layers_and_sizes():
    net = nn.Sequential({"body": nn.Sequential(nn.Linear(8, 16), nn.ReLU()), "head": nn.Linear(16, 4)})
    net.head.requires_grad_(False)
    text = shown(net)
    assert "212 parameters" in text and "in_features=8" in text and "144" in text
    assert text.count("frozen") == 1


def test_large_model_is_folded():
    page = _Page(nn.resnet18(10)._repr_html_())
    assert ("details", {}) in page.tags and "all 76 modules" in page.text and "11,181,642" in page.text


def test_names_are_escaped():
    text = nn.Sequential({"<b>a&b": nn.Linear(2, 2), "r": nn.ReLU()})._repr_html_()
    assert "&lt;b&gt;a&amp;b" in text and "<b>a&b" not in text


def test_tensor_shows_range_and_what_is_not_finite():
    assert "min -1 · mean 1 · max 3" in shown(gt.tensor([-1.0, 3.0, 1.0]))
    assert "2 of 3 not finite" in shown(gt.tensor([1.0, float("inf"), float("nan")]))
    for other in (gt.tensor(3.0), gt.arange(4), gt.zeros(0), gt.zeros(1 << 11, 1 << 10), gt.zeros(2, dtype="bfloat16")):
        assert str(list(other.shape)) in shown(other)


def test_tensor_of_a_closed_context():
    context = gt.Context("cpu")
    with context:
        t = gt.zeros(2)
    context.close()
    assert "closed" in shown(t)


def test_memory_and_report(ctx):
    kept = gt.zeros(1024, 1024)
    assert "user tensors" in shown(gt.memory.stats()) and "4.0 MiB" in shown(gt.memory.stats())
    ctx.set_memory_limit(gt.memory.stats().reserved + (1 << 20))
    with pytest.raises(gt.OutOfMemoryError) as caught:
        gt.zeros(1 << 16, 1 << 10)
    text = shown(caught.value.report)
    assert "out of memory" in text and "what can be done" in text and "gt.memory.set_limit(" in text
    assert kept.numel()


def _training(precision="f32", **settings):
    rng = np.random.default_rng(0)
    data = TensorDataset(rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40), classes=3)
    net = nn.Linear(6, 3)
    trainer = gt.Trainer(net, gt.optim.SGD(net.parameters(), lr=0.1), precision=precision, log_every=2, **settings)
    return trainer, Loader(data, 8), Loader(data, 20)


def test_fit_result_is_a_table_of_epochs():
    trainer, train, test = _training()
    result = trainer.fit(train, 2, validation=test)
    text = shown(result)
    assert "10 steps" in text and "validation loss" in text and f"{100 * result.validation.accuracy:.1f} %" in text
    assert "skipped" not in text and "history" not in repr(result)
    assert "validation" not in shown(trainer.fit(train, 1))


def test_scaler_state():
    scaler = gt.amp.GradScaler(init_scale=1024.0)
    w = nn.Parameter(gt.zeros(1))
    w.name = "w"
    optimizer = gt.optim.SGD([w], lr=0.1)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    text = shown(scaler.state)
    assert "skipped" in text and "512" in text and "the gradient of" in text


# --- bars ---------------------------------------------------------------------------------------------------------------------------------


def _lines(text):
    """The last state of each line that a terminal would show."""
    return [line.split("\r")[-1].rstrip() for line in text.split("\n") if line]


def test_fit_with_a_bar_for_each_epoch(monkeypatch):
    pytest.importorskip("tqdm")
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    calls = []
    trainer, train, test = _training(on_step=lambda p: calls.append(p.step), on_epoch=lambda p: calls.append("epoch"))
    result = trainer.fit(train, 2, validation=test, progress=True)
    lines = _lines(err.getvalue())
    assert len(lines) == 2 and calls == [1, 2, 3, 4, 5, "epoch"] * 2
    for i, line in enumerate(lines):
        p = result.history[i]
        assert line.startswith(f"epoch {i + 1}/2 100%") and "5/5" in line
        assert f"loss {p.training.loss:.4f}" in line and f"validation {p.validation.loss:.4f}, {100 * p.validation.accuracy:.1f} %" in line
    err.truncate(0)
    trainer.fit(train, 1)
    assert err.getvalue() == ""


def test_bar_ends_with_what_stops_the_training(monkeypatch):
    pytest.importorskip("tqdm")
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)

    def fail(p):
        if p.step == 3:
            raise ValueError("enough")

    trainer, train, _ = _training(on_step=fail)
    with pytest.raises(ValueError, match="enough"):
        trainer.fit(train, 2, progress=True)
    assert err.getvalue().endswith("\n") and "3/5" in _lines(err.getvalue())[0]
    assert trainer._bars is None
    trainer.on_step = lambda p: True
    assert trainer.fit(train, 1, progress=True).stopped


def test_bar_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    trainer, train, _ = _training()
    with pytest.raises(ImportError, match="pip install tqdm"):
        trainer.fit(train, 1, progress=True)
    assert trainer.fit(train, 1).epochs == 1
