#!/usr/bin/env python3
"""Writes src/gtrain/_api.py, the ctypes view of gtrain's headers: constants, structs, callback types and the prototype of every exported function.

    generate_api.py            writes the file
    generate_api.py --check    fails, with the difference, if the file is not what the headers say

The headers are read after the C preprocessor (cc, or $CC), so that macros need no second interpreter here.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"
OUTPUT = HERE.parent / "src" / "gtrain" / "_api.py"

SCALARS = {
    "int8_t": "c_int8", "int16_t": "c_int16", "int32_t": "c_int32", "int64_t": "c_int64",
    "uint8_t": "c_uint8", "uint16_t": "c_uint16", "uint32_t": "c_uint32", "uint64_t": "c_uint64",
    "char": "c_char", "size_t": "c_size_t", "float": "c_float", "double": "c_double", "int": "c_int",
}
EXPORT = '__attribute__((visibility("default")))'


class Unreadable(Exception):
    pass


def preprocessed(include):
    """The text of gtrain's own headers, macros expanded, without what they include from the system."""
    compiler = os.environ.get("CC", "cc").split()
    command = compiler + ["-E", "-x", "c", "-std=c11", f"-I{include}", str(include / "gtrain" / "gtrain.h")]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    ours, kept = False, []
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = Path(marker.group(1)).parent.name == "gtrain"
        elif ours:
            kept.append(line)
    return "\n".join(kept)


def macro_constants(include):
    """Object-like macros that are numbers; the rest is of no use outside C."""
    found = {}
    for header in sorted((include / "gtrain").glob("*.h")):
        for name, value in re.findall(r"^#define (GT_[A-Z0-9_]+) +([^\n]+)$", header.read_text(), re.M):
            value = re.sub(r"/\*.*", "", value).strip()
            if value == "UINT64_MAX":
                value = "0xFFFFFFFFFFFFFFFF"
            try:
                found[name] = int(eval(value, {"__builtins__": {}}, dict(found)))
            except (SyntaxError, NameError, TypeError):
                pass
    return found


def statements(text):
    """Splits at semicolons outside braces."""
    depth, start = 0, 0
    for i, c in enumerate(text):
        if c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
        elif c == ";" and depth == 0:
            yield " ".join(text[start:i].split())
            start = i + 1


def split_arguments(text):
    depth, part = 0, ""
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += c
    if part.strip():
        yield part.strip()


class Api:
    def __init__(self, include):
        self.constants = macro_constants(include)
        self.opaque, self.scalars, self.callbacks, self.structs, self.functions = [], {}, {}, {}, {}
        self.order = []  # of callbacks and structs
        for statement in statements(preprocessed(include)):
            self.read(statement)

    def read(self, s):
        if not s:
            return
        if s.startswith("enum {"):
            return self.read_enum(s)
        match = re.fullmatch(r"typedef struct (\w+) \{(.*)\} (\w+)", s)
        if match:
            return self.read_struct(match.group(3), match.group(2))
        match = re.fullmatch(r"typedef struct (\w+) (\w+)", s)
        if match:
            return self.opaque.append(match.group(2))
        match = re.fullmatch(r"typedef (.+?)\(\*(\w+)\) ?\((.*)\)", s)
        if match:
            self.callbacks[match.group(2)] = self.function_pointer(match.group(1), match.group(3))
            return self.order.append(match.group(2))
        match = re.fullmatch(r"typedef (\w+) (\w+)", s)
        if match and match.group(1) in SCALARS:
            self.scalars[match.group(2)] = SCALARS[match.group(1)]
            return
        if s.startswith(EXPORT):
            match = re.fullmatch(r"(.+?)(\w+)\((.*)\)", s[len(EXPORT):].strip())
            if match:
                arguments = [] if match.group(3).strip() == "void" else list(split_arguments(match.group(3)))
                parsed = [self.declaration(a) for a in arguments]
                self.functions[match.group(2)] = (self.type(match.group(1), "result"), parsed)
                return
        raise Unreadable(s)

    def read_enum(self, s):
        value = -1
        for entry in s[s.index("{") + 1 : s.rindex("}")].split(","):
            entry = entry.strip()
            if not entry:
                continue
            name, _, text = entry.partition("=")
            value = int(eval(text, {"__builtins__": {}}, self.constants)) if text.strip() else value + 1
            self.constants[name.strip()] = value

    def read_struct(self, name, body):
        fields = []
        for declaration in body.split(";"):
            declaration = declaration.strip()
            if not declaration:
                continue
            match = re.fullmatch(r"(.+?)\(\*(\w+)\) ?\((.*)\)", declaration)
            if match:
                fields.append((match.group(2), self.function_pointer(match.group(1), match.group(3))))
                continue
            first, *more = declaration.split(",")
            base = re.match(r"((?:const )?\w+) ", first).group(1)
            for text in [first, *(f"{base} {m.strip()}" for m in more)]:
                array = re.fullmatch(r"(.*?)\[(.+)\]", text)
                ctype, field = self.declaration(array.group(1) if array else text)
                if array:
                    ctype = f"{ctype} * {eval(array.group(2), {'__builtins__': {}}, self.constants)}"
                fields.append((field, ctype))
        self.structs[name] = fields
        self.order.append(name)

    def function_pointer(self, result, arguments):
        types = [] if arguments.strip() == "void" else [self.declaration(a)[0] for a in split_arguments(arguments)]
        return f"CFUNCTYPE({', '.join([self.type(result, 'callback'), *types])})"

    def declaration(self, text):
        match = re.fullmatch(r"(.+?)\(\*(\w+)\) ?\((.*)\)", text)
        if match:
            return self.function_pointer(match.group(1), match.group(3)), match.group(2)
        match = re.fullmatch(r"(.*[\s*])(\w+)", text)
        if not match:
            raise Unreadable(text)
        return self.type(match.group(1), text), match.group(2)

    def type(self, text, where):
        constant = text.split("*")[0].split()
        stars = text.count("*")
        base = [w for w in constant if w != "const"]
        if len(base) != 1:
            raise Unreadable(f"{text!r} in {where}")
        base = base[0]
        if base == "void":
            return "None" if stars == 0 else "POINTER(" * (stars - 1) + "c_void_p" + ")" * (stars - 1)
        if base == "char" and stars:
            pointed = "c_char_p" if "const" in constant else "POINTER(c_char)"
            return "POINTER(" * (stars - 1) + pointed + ")" * (stars - 1)
        if base in self.opaque:
            if stars == 0:
                raise Unreadable(f"{text!r} by value in {where}")
            return "POINTER(" * (stars - 1) + base + "_p" + ")" * (stars - 1)
        if base in SCALARS:
            name = SCALARS[base]
        elif base in self.scalars or base in self.callbacks or base in self.structs:
            name = base
        else:
            raise Unreadable(f"{text!r} in {where}")
        if base in self.structs and stars == 0 and where in ("result", "callback"):
            raise Unreadable(f"struct by value: {where}")
        return "POINTER(" * stars + name + ")" * stars

    def text(self):
        out = [
            '"""Generated from include/gtrain by tools/generate_api.py; not for editing."""',
            "",
            "# fmt: off",
            "# ruff: noqa",
            "IMPORTS",
            "",
            "# --- constants",
        ]
        out += [f"{name} = {value}" for name, value in self.constants.items()]
        out += ["", "# --- handles: addresses, as integers or None"]
        out += [f"{name}_p = c_void_p" for name in self.opaque]
        out += ["", "# --- numbers"]
        out += [f"{name} = {ctype}" for name, ctype in self.scalars.items()]
        out += ["", "# --- structs and callbacks"]
        for name in self.order:
            if name in self.callbacks:
                out.append(f"{name} = {self.callbacks[name]}")
                continue
            out += ["", "", f"class {name}(Structure):", "    _fields_ = ["]
            out += [f'        ("{field}", {ctype}),' for field, ctype in self.structs[name]]
            out += ["    ]", "", ""]
        out += ["", "", "# --- functions: result, arguments", "FUNCTIONS = {"]
        for name in sorted(self.functions):
            result, arguments = self.functions[name]
            names = ", ".join(a[1] for a in arguments)
            types = ", ".join(a[0] for a in arguments)
            out.append(f'    "{name}": ({result}, [{types}]),{"  # " + names if names else ""}')
        out += ["}", "", "STRUCTS = {"]
        out += [f'    "{name}": {name},' for name in self.structs]
        out += ["}"]
        text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(out)) + "\n"
        used = sorted(set(re.findall(r"\b(CFUNCTYPE|POINTER|Structure|c_\w+)\b", text)))
        return text.replace("IMPORTS", "from ctypes import " + ", ".join(used), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--include", type=Path, default=INCLUDE)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    text = Api(options.include).text()
    if not options.check:
        options.output.write_text(text)
        return 0
    before = options.output.read_text() if options.output.exists() else ""
    if before == text:
        return 0
    sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), text.splitlines(True), "committed", "from the headers"))
    print("_api.py is not what the headers say; run python_bindings/tools/generate_api.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
