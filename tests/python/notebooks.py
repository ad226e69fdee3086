"""Runs the notebooks of python_bindings/notebooks from their first cell to their last.

    python tests/python/notebooks.py 01_first_model             # run it; a cell that fails is an error
    python tests/python/notebooks.py --update 01_first_model    # run it and write its outputs into the file
    python tests/python/notebooks.py --check                    # look at the files alone: what is committed is whole and in order

A run happens in a folder of its own, which is removed afterwards; its kernel is the Python that runs this. Exits with 77, which ctest counts as skipped,
where something that a notebook needs is missing.
"""

import argparse
import copy
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "python_bindings" / "notebooks"

# Each notebook and the modules that it imports, beside gtrain and NumPy.
NEEDS = {
    "01_first_model": ("matplotlib", "tqdm"),
    "02_out_of_memory": ("matplotlib",),
    "03_mixed_precision": ("matplotlib", "tqdm"),
    "04_from_pytorch": ("matplotlib", "tqdm", "torch"),
}
RUNNER_NEEDS = ("numpy", "nbformat", "nbclient", "ipykernel")
LEAST_ACCURACY = 91.0  # of 01_first_model, in percent
CELL_TIMEOUT = 1200  # seconds


def path_of(name):
    return FOLDER / f"{name}.ipynb"


# --- what a committed notebook must be ----------------------------------------------------------------------------------------------------


def texts_of(output):
    """What an output says in words: its text, HTML and traceback; not its pictures."""
    parts = [output.get("text", ""), output.get("traceback", "")]
    parts += [data for kind, data in output.get("data", {}).items() if not kind.startswith("image/") or kind == "image/svg+xml"]
    return "\n".join("".join(part) if isinstance(part, list) else str(part) for part in parts)


def problems(notebook, name):
    """What is wrong with a notebook (as parsed JSON), in words; empty if nothing is."""
    found = []
    if notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        return ["it is no notebook of format 4"]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not code:
        found.append("it has no code")
    counts = [cell.get("execution_count") for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"its cells were not run once each in order: {counts}")
    words = []
    for number, cell in enumerate(code, 1):
        source = "".join(cell["source"])
        if not source.strip():
            found.append(f"code cell {number} is empty")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "error":
                found.append(f"code cell {number} failed: {output.get('ename')}: {output.get('evalue')}")
            if output["output_type"] == "stream" and output.get("name") == "stderr":
                found.append(f"code cell {number} wrote to stderr: {texts_of(output)[:200]!r}")
            words.append((number, texts_of(output)))
        words.append((number, source))
    for number, text in words:
        for place in re.findall(r"(?<![\w.])/(?:home|root|Users|tmp|private|mnt)/[^\s'\"]*", text):
            found.append(f"code cell {number} names a place on one machine: {place}")
        if str(ROOT) in text:
            found.append(f"code cell {number} names the checkout's place: {ROOT}")
        for address in re.findall(r"\bat 0x[0-9a-f]{6,}", text):
            found.append(f"code cell {number} shows an address: {address}")
        if "\r" in text:
            found.append(f"code cell {number} has lines that overwrite each other")
    for cell in notebook["cells"]:
        noise = sorted(set(cell.get("metadata", {})) - {"tags"})
        if noise:
            found.append(f"a cell has metadata: {', '.join(noise)}")
    if name == "01_first_model":
        found += accuracy_problems("\n".join(text for _, text in words))
    return found


def accuracy_problems(text):
    figures = [float(f) for f in re.findall(r"^test accuracy: (\d+\.\d+) %$", text, re.MULTILINE)]
    if not figures:
        return ["it shows no line 'test accuracy: … %'"]
    return [f"its test accuracy is {f} %, below {LEAST_ACCURACY} %" for f in figures if f < LEAST_ACCURACY]


def check(names):
    bad = 0
    for name in names:
        try:
            found = problems(json.loads(path_of(name).read_text(encoding="utf-8")), name)
        except (OSError, ValueError) as error:
            found = [f"it cannot be read: {error}"]
        for problem in found:
            print(f"{name}: {problem}")
        bad += bool(found)
    return bad


# --- running one --------------------------------------------------------------------------------------------------------------------------


def missing(name):
    return [m for m in RUNNER_NEEDS + NEEDS[name] if importlib.util.find_spec(m) is None]


def environment(folder):
    """For the kernel: what it writes for itself goes to `folder`, and paths stay right in another working directory."""
    env = dict(os.environ)
    for key in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        place = folder / key.lower()
        place.mkdir()
        env[key] = str(place)
    env["JUPYTER_PATH"] = str(folder)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a note of the debugger, which nobody asked for
    env.pop("MPLBACKEND", None)
    env.setdefault("OMP_WAIT_POLICY", "passive")  # beside other tests, threads that spin while they wait would make each other many times slower
    if env.get("GTRAIN_LIBRARY"):
        env["GTRAIN_LIBRARY"] = os.path.abspath(env["GTRAIN_LIBRARY"])
    if env.get("GTRAIN_DATA"):
        env["GTRAIN_DATA"] = os.path.abspath(env["GTRAIN_DATA"])
    if env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in env["PYTHONPATH"].split(os.pathsep) if p)
    return env


def tidy(notebook):
    """Takes out what differs from run to run without meaning: times, versions, the steps of progress bars."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k == "tags"}
        if cell.cell_type != "code":
            continue
        merged = []
        for output in cell.outputs:
            if output.output_type == "stream" and merged and merged[-1].output_type == "stream" and merged[-1].name == output.name:
                merged[-1].text += output.text
            else:
                merged.append(copy.deepcopy(output))
        for output in merged:
            if output.output_type == "stream":
                output.text = overwritten(output.text)
            output.get("metadata", {}).pop("needs_background", None)
        cell.outputs = [o for o in merged if o.output_type != "stream" or o.text]
    return notebook


def overwritten(text):
    """What a terminal shows in the end: of a line's parts between carriage returns, the last that says something."""
    lines = []
    for line in text.split("\n"):
        parts = [part.rstrip() for part in line.split("\r")]
        lines.append(next((part for part in reversed(parts) if part), "") if len(parts) > 1 else line)
    return "\n".join(lines)


def run(name, update):
    lacking = missing(name)
    if lacking:
        print(f"skipped: {sys.executable} has no {' and no '.join(lacking)} (apt-get install {' '.join('python3-' + m for m in lacking)})")
        return 77
    import nbclient
    import nbformat

    notebook = nbformat.read(path_of(name), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory(prefix="gtrain-notebook-") as place:
        place = Path(place)
        env = environment(place)
        kernel = place / "kernels" / "gtrain"
        kernel.mkdir(parents=True)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "gtrain", "language": "python"}))
        work = place / "work"
        work.mkdir()
        probe = "import gtrain.data as d; d.FashionMNIST(); import matplotlib.font_manager"  # the latter writes a cache, which can be told
        tried = subprocess.run([sys.executable, "-c", probe], env=env, cwd=work, capture_output=True, text=True)
        if "NotFoundError" in tried.stderr:
            print("skipped: Fashion-MNIST is not there (apt-get install dataset-fashion-mnist, or give its folder in GTRAIN_DATA)")
            return 77
        if tried.returncode:
            print(tried.stderr, file=sys.stderr)
            return 1
        before = dict(os.environ)
        os.environ.update(env)
        try:
            client = nbclient.NotebookClient(
                notebook, timeout=CELL_TIMEOUT, kernel_name="gtrain", record_timing=False, resources={"metadata": {"path": str(work)}}
            )
            started = time.monotonic()
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        finally:
            os.environ.clear()
            os.environ.update(before)
    tidy(notebook)
    print(f"{name}: {len([c for c in notebook.cells if c.cell_type == 'code'])} cells in {time.monotonic() - started:.0f} s")
    found = problems(json.loads(nbformat.writes(notebook)), name)
    for problem in found:
        print(f"{name}: {problem}", file=sys.stderr)
    if not update:
        return 0  # every cell ran; another version's warning is no failure of ours
    if found:
        print(f"{name}: not updated", file=sys.stderr)
        return 1
    nbformat.write(notebook, path_of(name))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NEEDS)}; all without one")
    parser.add_argument("--update", action="store_true", help="write the outputs into the notebook")
    parser.add_argument("--check", action="store_true", help="run nothing; say what is wrong with the files as they are")
    arguments = parser.parse_args()
    names = [name.removesuffix(".ipynb") for name in arguments.names] or list(NEEDS)
    unknown = [name for name in names if name not in NEEDS]
    if unknown:
        parser.error(f"no such notebook: {', '.join(unknown)}")
    if arguments.check:
        return 1 if check(names) else 0
    results = [run(name, arguments.update) for name in names]
    return 1 if 1 in results else 77 if 77 in results else 0


if __name__ == "__main__":
    sys.exit(main())
