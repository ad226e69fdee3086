"""The package's type hints hold together. Skipped where mypy is not installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python_bindings"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


def _mypy(tmp_path, *arguments):
    command = [sys.executable, "-m", "mypy", "--config-file", PACKAGE / "pyproject.toml", "--cache-dir", tmp_path, *arguments]
    return subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True)


def test_the_package_passes(tmp_path):
    result = _mypy(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_a_user_writes_is_checked(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import gtrain as gt\n"
        "from gtrain import nn\n"
        "net = nn.Sequential(nn.Linear(4, 2))\n"
        "optimizer = gt.optim.Adam(net.parameters(), lr=0.1)\n"
        "loss: gt.Tensor = (gt.ones(2, 4) * 2 + 1).sum()\n"
        "state = optimizer.state_dict()\n"
        "gt.matmul(gt.ones(2, 2), gt.ones(2, 2)).shape[0] + 1\n"
        "net.get_submodule(3)\n"
    )
    result = _mypy(tmp_path, program)
    assert "program.py:8: error" in result.stdout and result.stdout.count("error:") == 1, result.stdout
