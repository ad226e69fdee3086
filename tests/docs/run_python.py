"""Runs the Python of a page of the guide.

    run_python.py blocks <page.md>     the ```python blocks, in order, as one program
    run_python.py tables <page.md>     the code in the second column of each table (the first column's, which is another library's, is only parsed)

Ends with 77, which ctest counts as skipped, where NumPy is missing.
"""

import os
import re
import sys
import tempfile
import traceback

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.M | re.S)
CODE = re.compile(r"`([^`]+)`")


def blocks(text, page):
    """Each block as a code object whose lines are those of the page."""
    for match in FENCE.finditer(text):
        if match.group(1) == "python":
            line = text.count("\n", 0, match.start(2))
            yield compile("\n" * line + match.group(2), page, "exec")


def rows(text):
    """(line, cells) of each row below a table's head."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            inside = True
        elif inside:
            yield number, cells


def surroundings():
    """What the cells of a row may name."""
    import gtrain as gt
    import numpy as np

    nn = gt.nn
    names = {"gt": gt, "nn": nn, "F": nn.functional, "optim": gt.optim, "np": np, "ctx": gt.default_context()}
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    names.update(net=net, optimizer=gt.optim.Adam(net.parameters()), scaler=gt.amp.GradScaler())
    names.update(x=gt.rand(4, 8) + 0.1, y=gt.tensor([0, 1, 2, 3]), w=gt.randn(8, 2), img=gt.randn(2, 3, 8, 8), k=gt.randn(4, 3, 3, 3))
    names.update(a=np.ones((8, 8), np.float32), b=np.arange(8) % 4)
    names.update(data=gt.data.TensorDataset(names["a"], names["b"]))
    names["loader"] = gt.Loader(names["data"], 4)
    # Gradients are there, as after a backward, and a loss whose backward has not run.
    loss = nn.functional.cross_entropy(net(names["x"]), names["y"])
    names["scaler"].scale(nn.functional.cross_entropy(net(names["x"]), names["y"])).backward()
    names["loss"] = loss
    gt.io.save_module(net, "net.safetensors")
    return names


def run_tables(text, page):
    done = failed = 0
    for number, cells in rows(text):
        if len(cells) < 3:
            continue
        names = surroundings()
        for code in CODE.findall(cells[1]):
            done += 1
            try:
                exec(compile(code, f"{page}:{number}", "exec"), names)
            except Exception:
                failed += 1
                print(f"{page}:{number}: {code}\n{traceback.format_exc(limit=2)}")
        for code in CODE.findall(cells[0]):
            try:
                compile(code, f"{page}:{number}", "exec")
            except SyntaxError as error:
                failed += 1
                print(f"{page}:{number}: {code}: {error}")
    print(f"{page}: {done} pieces of code in tables, {failed} failures")
    return 1 if failed or done == 0 else 0


def run_blocks(text, page):
    names = {"__name__": "__main__"}
    done = 0
    for code in blocks(text, page):
        exec(code, names)
        done += 1
    print(f"{page}: {done} blocks")
    return 0 if done else 1


def main():
    try:
        import numpy  # noqa: F401
    except ImportError:
        print(f"skipped: {sys.executable} has no numpy (apt-get install python3-numpy)")
        return 77
    mode, page = sys.argv[1:]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return {"blocks": run_blocks, "tables": run_tables}[mode](text, page)
        finally:
            os.chdir("/")


sys.exit(main())
