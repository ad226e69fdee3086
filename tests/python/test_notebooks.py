"""The committed notebooks as files: whole, executed in order, and with nothing of the machine that ran them. tests/python/notebooks.py runs them."""

import copy
import json
import re
import sys

import notebooks
import pytest


@pytest.mark.parametrize("name", notebooks.NEEDS)
def test_committed_notebook_is_whole(name):
    notebook = json.loads(notebooks.path_of(name).read_text(encoding="utf-8"))
    assert notebooks.problems(notebook, name) == []


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb")) == sorted(notebooks.NEEDS)


@pytest.mark.parametrize("name", notebooks.NEEDS)
def test_what_a_notebook_imports_is_listed(name):
    known = getattr(sys, "stdlib_module_names", None)
    if known is None:
        pytest.skip("this Python does not list its own modules")
    cells = json.loads(notebooks.path_of(name).read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imported = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", code, re.MULTILINE)) - set(known) - {"numpy", "gtrain", "IPython"}  # the last is where notebooks run
    if "progress=True" in code:
        imported.add("tqdm")
    assert imported == set(notebooks.NEEDS[name])


def _stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def _notebook(*outputs):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}]
    cells += [
        {"cell_type": "code", "metadata": {}, "source": ["f()"], "execution_count": i, "outputs": [output]} for i, output in enumerate(outputs, 1)
    ]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}


GOOD = _notebook(_stream(["one\n", "two"]), _stream("test accuracy: 92.10 %\n"))


def test_check_accepts_what_is_right():
    assert notebooks.problems(GOOD, "01_first_model") == []
    picture = {"output_type": "display_data", "data": {"image/png": "iVBOR/home/AAA", "text/plain": "<Figure>"}, "metadata": {}}
    assert notebooks.problems(_notebook(picture), "02_out_of_memory") == []


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda n: n["cells"][2].update(execution_count=1), "in order"),
        (lambda n: n["cells"][2].update(execution_count=None), "in order"),
        (lambda n: n["cells"][1].update(source=[]), "empty"),
        (lambda n: n["cells"][1].update(metadata={"execution": {"iopub.execute_input": "2026"}}), "metadata"),
        (lambda n: n["cells"][1].update(outputs=[{"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}]), "ValueError"),
        (lambda n: n["cells"][1].update(outputs=[_stream("UserWarning", "stderr")]), "stderr"),
        (lambda n: n["cells"][1].update(outputs=[_stream("saved to /home/ann/net.onnx")]), "/home/ann/net.onnx"),
        (lambda n: n["cells"][1].update(source=["load('/root/x')"]), "/root/x"),
        (lambda n: n["cells"][1].update(outputs=[_stream("<F object at 0x7f0012345678>")]), "address"),
        (lambda n: n["cells"][1].update(outputs=[_stream(" 10%\r 20%")]), "overwrite"),
        (lambda n: n["cells"][2].update(outputs=[_stream("test accuracy: 90.99 %\n")]), "below 91.0"),
        (lambda n: n["cells"][2].update(outputs=[_stream("done")]), "test accuracy"),
        (lambda n: n.update(cells=n["cells"][:1]), "no code"),
        (lambda n: n.update(nbformat=3), "format 4"),
    ],
)
def test_check_names_what_is_wrong(change, words):
    notebook = copy.deepcopy(GOOD)
    change(notebook)
    assert words in "; ".join(notebooks.problems(notebook, "01_first_model"))


def test_overwritten_lines_keep_what_is_seen_last():
    assert notebooks.overwritten("a\n\r 0%|\r 50%|\r100%| loss 0.1\r\nb\n") == "a\n100%| loss 0.1\nb\n"
    assert notebooks.overwritten("plain  \n") == "plain  \n"
