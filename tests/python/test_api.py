"""The generated prototypes against the headers, the C compiler and the library."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gtrain import _api, _library

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CC", "cc")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER.split()[0]) is None, reason="no C compiler")


@needs_compiler
def test_generated_file_is_what_the_headers_say():
    result = subprocess.run([sys.executable, ROOT / "python_bindings/tools/generate_api.py", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_exported_function_has_its_types():
    exported = set((ROOT / "tests/abi/symbols.txt").read_text().split())
    assert set(_api.FUNCTIONS) == exported
    for name, (result, arguments) in _api.FUNCTIONS.items():
        function = getattr(_library.lib, name)
        assert function.argtypes == arguments
        assert function.restype is result


def test_structs_lie_as_frozen():
    struct, seen = None, set()
    for line in (ROOT / "tests/abi/layout.txt").read_text().splitlines():
        name, *numbers = line.split()
        if not line.startswith(" "):
            struct = _api.STRUCTS[name]
            seen.add(name)
            assert ctypes.sizeof(struct) == int(numbers[0]), name
        else:
            field = getattr(struct, name)
            assert [field.offset, field.size] == list(map(int, numbers)), (struct, name)
    assert seen == set(_api.STRUCTS)


@needs_compiler
def test_structs_lie_as_the_compiler_lays_them(tmp_path):
    rows = []
    for name, struct in _api.STRUCTS.items():
        rows.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            rows.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    source = "#include <gtrain/gtrain.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(rows) + "\nreturn 0;\n}\n"
    (tmp_path / "layout.c").write_text(source)
    subprocess.run([*COMPILER.split(), f"-I{ROOT / 'include'}", tmp_path / "layout.c", "-o", tmp_path / "layout"], check=True)
    for line in subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.splitlines():
        name, *numbers = line.split()
        name, _, field = name.partition(".")
        struct = _api.STRUCTS[name]
        if field:
            assert [getattr(struct, field).offset, getattr(struct, field).size] == list(map(int, numbers)), line
        else:
            assert ctypes.sizeof(struct) == int(numbers[0]), line


def test_constants_are_the_librarys():
    for value in range(27):
        name = _library.lib.gt_status_name(value).decode()
        assert getattr(_api, name) == value


def test_generator_refuses_what_it_cannot_read(tmp_path):
    sys.path.insert(0, str(ROOT / "python_bindings/tools"))
    try:
        import generate_api
    finally:
        sys.path.pop(0)
    api = generate_api.Api.__new__(generate_api.Api)
    api.constants, api.opaque, api.scalars, api.callbacks, api.structs, api.functions, api.order = {}, [], {}, {}, {}, {}, []
    api.read("typedef struct gt_x gt_x")
    for bad in (generate_api.EXPORT + " gt_x gt_by_value(void)", generate_api.EXPORT + " long gt_long(void)", "int gt_variable"):
        with pytest.raises(generate_api.Unreadable):
            api.read(bad)
