import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import close

import gtrain as gt
from gtrain import doctor, io, nn
from gtrain.data import Loader, TensorDataset


def test_tensors_come_back_from_a_file(tmp_path, rng):
    path = tmp_path / "t.safetensors"
    a = rng.standard_normal((3, 4)).astype(np.float32)
    tensors = {"a": gt.tensor(a).T, "b": gt.ones(2, dtype="bfloat16"), "c": gt.arange(3), "empty": gt.zeros(0, 3), "one": gt.tensor(2.5)}
    io.save_file(tensors, path, metadata={"who": "me"})
    back = io.load_file(path)
    assert set(back) == set(tensors)
    for name, t in tensors.items():
        assert back[name].dtype is t.dtype and back[name].shape == t.shape
        close(back[name], t)
    with io.SafeTensors(path) as file:
        assert len(file) == 5 and "a" in file and "x" not in file and file.metadata["who"] == "me"
        with pytest.raises(gt.NotFoundError):
            file["x"]
    with pytest.raises(gt.StateError):
        file.keys()
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(gt.FileError):
        io.load_file(path)
    with pytest.raises(gt.FileSystemError):
        io.load_file(tmp_path / "none")


def test_modules_are_saved_and_loaded_by_name(tmp_path):
    make = lambda n: nn.Sequential(nn.Linear(3, n), nn.BatchNorm1d(n))  # noqa: E731
    net, other = make(4), make(4)
    io.save_module(net, tmp_path / "m.safetensors")
    assert io.load_module(other, tmp_path / "m.safetensors") == ([], [])
    for a, b in zip(net.state_dict().values(), other.state_dict().values()):
        close(a, b)
    with pytest.raises(gt.Error) as caught:
        io.load_module(make(5), tmp_path / "m.safetensors")
    assert {name for name, _ in caught.value.mismatches} >= {"0.weight", "1.running_mean"}
    bigger = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    assert io.load_module(bigger, tmp_path / "m.safetensors", strict=False)[0] == ["2.weight", "2.bias"]


def test_a_run_goes_on_where_it_stopped(tmp_path, ctx, rng):
    x, y = rng.standard_normal((64, 5)).astype(np.float32), rng.integers(0, 3, 64)

    def start():
        ctx.manual_seed(3)
        net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.2), nn.Linear(16, 3))
        trainer = gt.Trainer(net, gt.optim.Adam(net.parameters(), lr=0.01))
        return net, trainer, Loader(TensorDataset(x, y), 16, shuffle=True, seed=1)

    net, trainer, loader = start()
    trainer.fit(loader, 2)
    io.save_state(io.state_path(tmp_path / "s-", 2), trainer=trainer, loader=loader)
    trainer.fit(loader, 2)
    whole = {k: v.numpy() for k, v in net.state_dict().items()}
    net, trainer, loader = start()
    path, number = io.latest_state(tmp_path / "s-")
    assert number == 2 and path == io.state_path(tmp_path / "s-", 2)
    io.load_state(path, trainer=trainer, loader=loader)
    trainer.fit(loader, 2)
    for k, v in net.state_dict().items():
        assert (v.numpy() == whole[k]).all() or ctx._is_cuda
    io.save_state(io.state_path(tmp_path / "s-", 4), trainer=trainer, loader=loader)
    io.keep_last(tmp_path / "s-", 1)
    assert io.latest_state(tmp_path / "s-")[1] == 4 and len(list(tmp_path.iterdir())) == 1
    assert io.latest_state(tmp_path / "none-") is None
    o = gt.optim.SGD(net.parameters(), lr=0.5)
    io.save_state(tmp_path / "o.safetensors", optimizers=o)
    o.lr = 0.1
    io.load_state(tmp_path / "o.safetensors", optimizers=o)
    assert o.lr == 0.5 and o.param_groups[0]["lr"] == 0.5
    with pytest.raises(gt.ArgumentError):
        io.save_state(tmp_path / "x")


def test_models_are_exported_as_onnx(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    io.export_onnx(net, gt.ones(2, 3), tmp_path / "m.onnx", input_names="x", output_name="y", metadata={"made": "here"})
    assert (tmp_path / "m.onnx").stat().st_size > 100

    class Draws(nn.Module):
        def forward(self, x):
            return x * gt.rand(3)

    with pytest.raises(gt.NotSupportedError):
        io.export_onnx(Draws(), gt.ones(2, 3), tmp_path / "d.onnx")
    assert not (tmp_path / "d.onnx").exists()


def test_exported_model_computes_the_same(tmp_path, rng):
    onnxruntime = pytest.importorskip("onnxruntime")
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    x = rng.standard_normal((5, 1, 6, 6)).astype(np.float32)
    io.export_onnx(net, gt.tensor(x[:2]), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    close(session.run(None, {"input": x})[0], net(gt.tensor(x)).detach().numpy(), 1e-4, 1e-5)


def test_doctor_examines_this_machine():
    found = doctor.examine(library_path="/nowhere")
    assert found.verdict in ("ready", "cpu only", "broken") and found.data["verdict"] and str(found) == found.text
    assert all(f.what and f.severity in ("error", "warning", "note") for f in found.faults)
    result = subprocess.run([sys.executable, "-m", "gtrain.doctor", "--json"], capture_output=True, text=True)
    assert json.loads(result.stdout)["verdict"] and result.returncode in (0, 1, 2) and result.stderr == ""
    assert subprocess.run([sys.executable, "-m", "gtrain.doctor", "--what"], capture_output=True).returncode == 2
