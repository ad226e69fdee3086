import json

import pytest
from conftest import DEVICE

import gtrain as gt
from gtrain import memory, nn


def test_statistics_add_up(ctx):
    t = gt.zeros(1 << 18)
    s = memory.stats()
    assert s.in_use + s.cached == s.reserved and s.in_use >= t.nbytes and sum(s.categories.values()) == s.in_use
    assert "parameters" in s.categories and s.peak_in_use >= s.in_use
    assert "in use" in str(s) and "in use" in s._repr_html_()
    del t
    memory.reset_peak()
    assert memory.stats().peak_in_use == memory.stats().in_use
    memory.trim()
    assert memory.stats().cached == 0 or DEVICE != "cpu"


def test_running_out_raises_with_a_report(ctx):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
    ctx.set_memory_limit(16 << 20)
    before = {k: v.numpy() for k, v in net.state_dict().items()}
    x = gt.ones(4096, 256)
    with pytest.raises(gt.OutOfMemoryError) as caught:
        net(x)
    report = caught.value.report
    assert isinstance(caught.value, MemoryError) and report.cause == "LIMIT" and report.limit == 16 << 20
    assert report.in_use + report.cached == report.reserved and report.requested > 0 and report.module
    assert report.remedies and {r.kind for r in report.remedies} & {"CHECKPOINT", "MICRO_BATCH"}
    assert report.data["cause"] and json.loads(report.json) == report.data
    assert "LIMIT" in repr(report) and len(str(report).splitlines()) <= 24 and "<" in report._repr_html_()
    assert report.groups and report.groups[0].bytes > 0
    del caught
    assert net(gt.ones(2, 256)).shape == (2, 256)
    assert all((net.state_dict()[k].numpy() == v).all() for k, v in before.items())
    assert memory.report().cause == "NONE"
    ctx.memory.set_limit(0)
    assert net(x).shape == (4096, 256)


def test_observer_can_make_room(ctx):
    ctx.set_memory_limit(64 << 20)
    held, seen = [], []
    with pytest.raises(gt.OutOfMemoryError):
        while True:
            held.append(gt.zeros(1 << 20))
    full = len(held)

    def observer(report):
        seen.append(report.cause)
        if held:
            held.pop()
            return True
        return False

    ctx.memory.set_observer(observer)
    t = gt.zeros(1 << 20)
    assert seen == ["LIMIT"] and len(held) == full - 1 and t.numel() == 1 << 20

    def angry(report):
        raise ValueError("no")

    ctx.memory.set_observer(angry)
    with pytest.raises(ValueError, match="no"):
        gt.zeros(1 << 24)
    ctx.memory.set_observer(None)
    with pytest.raises(gt.OutOfMemoryError):
        gt.zeros(1 << 24)


def test_files_are_written(tmp_path):
    gt.ones(100).sum()
    memory.set_history(1000)
    gt.ones(100).sum()
    memory.snapshot(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())
    memory.timeline(str(tmp_path / "t.html"))
    assert (tmp_path / "t.html").read_text().lstrip().lower().startswith("<!doctype html")
    memory.viz(tmp_path / "v.pickle")
    assert (tmp_path / "v.pickle").stat().st_size > 0
    with pytest.raises(gt.FileSystemError) as caught:
        memory.snapshot(tmp_path / "no" / "s.json")
    assert isinstance(caught.value, OSError) and caught.value.errno == 2


def test_texts_have_pythons_names_and_remedies_can_be_run(ctx):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(16)])
    optimizer = gt.optim.SGD(net.parameters())
    ctx.set_memory_limit(48 << 20)
    with pytest.raises(gt.OutOfMemoryError) as caught:
        net(gt.ones(4096, 256))
    report, text = caught.value.report, str(caught.value)
    del caught
    assert "gt_" not in report.text and "gt_" not in text and "the exception's report" in text
    kinds = {r.kind: r for r in report.remedies}
    assert {"OFFLOAD", "MICRO_BATCH", "RAISE_LIMIT"} <= set(kinds)
    for remedy in report.remedies:
        assert "gt_" not in remedy.subject and remedy.call
        exec(remedy.call, {"gt": gt, "net": net, "optimizer": optimizer, "context": ctx})
    assert memory.stats().limit == kinds["RAISE_LIMIT"].limit


@pytest.mark.parametrize(
    "values, checkpointed",
    [
        ({"depth": 1}, ["0", "1"]),
        ({"depth": 2}, ["0.0", "0.1", "1.0", "1.1"]),
        ({"segments": 2}, []),
        ({"segments": 2, "target": "1"}, []),
    ],
)
def test_a_checkpoint_remedys_call_is_what_it_says(ctx, values, checkpointed):
    fields = {name: 0 for name in memory.Remedy.__dataclass_fields__}
    fields.update(kind="CHECKPOINT", target="")
    remedy = memory.Remedy(**{**fields, **values})
    net = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
    exec(remedy.call, {"net": net})
    assert [name for name, module in net.named_modules() if module.checkpointing] == checkpointed
    if not checkpointed:
        assert remedy.call == ("net" if not remedy.target else "net.get_submodule('1')") + ".set_segments(2)"
    net(gt.ones(3, 4)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
