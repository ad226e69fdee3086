#!/usr/bin/env python3
"""Reads gtrain's public headers as they are written, with plain comments, for Doxygen.

    headers.py include/gtrain/optim.h        what Doxygen is to read in place of the header (its INPUT_FILTER)
    headers.py --check include/gtrain        fails, with a line each, where a declaration or a parameter is not described

How the headers are read:
- The comment at a file's beginning describes the file. Programs stand between @code and @endcode, or are indented.
- A comment before a declaration, or behind it on its last line, describes it. A declaration without words of its own that follows at once shares the words before it.
- "/* --- title" begins a section, which lasts to the next. What follows a colon or full stop after the title describes it.
- "typedef int32_t gt_kind; enum { … };" is one enumeration of that type. Constants that a list macro makes are written out.
- Some things are the same everywhere and are said here, not in the headers: struct_size, padding, and the functions gt_…_init.
"""

import re
import sys
from pathlib import Path

STANDARD_FIELDS = {
    "struct_size": "The size of the struct in the caller's header; set by the struct's init function.",
    "padding": "Not used. It keeps the layout free of gaps that a compiler chooses.",
}
# Parameters that mean the same wherever they are, said where a function's own words do not name them. First match; keys are "name" or "function name".
STANDARD_PARAMETERS = [
    (r"gt_tensor_size axis", "the axis, from 0; negative ones count from the end"),
    (r"gt_tensor_\w+ dtype", "type of the elements"),
    (r"gt_tensor_(read|write|from_data) data", "host memory"),
    (r"gt_tensor_write bytes", "size of `data`, which must be gt_tensor_bytes"),
    (r"gt_module_to_dtype dtype", "the floating-point dtype to convert to"),
    (r"gt_(oom_remedy|doctor_fault)_name kind", "the value to name"),
    (r"gt_\w+ (n_inputs|n_outputs|n_metadata|count)", "entries of the array before it"),
    (r"gt_\w+ index", "its number, from 0"),
    (r"gt_\w+ ndim", "entries of `shape`"),
    (r"gt_\w+ axis", "the axis; negative ones count from the end"),
    (r"gt_\w+ epsilon", "added to the variance"),
    (r"gt_\w+ path", "the file's path"),
    (r"gt_\w+ size", "bytes of the buffer before it"),
    (r"gt_\w+ requires_grad", "0: not"),
    (r"gt_\w+ fn", "the function, called with `user`"),
    (r"gt_\w+ bytes", "the limit in bytes"),
    (r"gt_\w+ learning_rate", "the new rate"),
]
# What a function writes its result to: gt_thing **thing.
RESULT = re.compile(r"(?:const )?(?:gt_\w+|char) \*\*(\w+)$")
# Handles: what a function is about, which its name says already.
OBVIOUS = re.compile(r"(const )?gt_\w+ \*(const \*)?\w+$")


class Item:
    """A declaration with its comment."""

    def __init__(self, kind, name, line, text="", doc="", inherited=False):
        self.kind, self.name, self.line, self.text, self.doc, self.inherited = kind, name, line, text, doc, inherited
        self.members = []  # of a struct or an enumeration: (declaration, doc)
        self.parameters = []


def comment_text(raw):
    """The words of a comment, without its stars."""
    body = re.sub(r"^/\*+ ?|\s*\*/$", "", raw.strip())
    return "\n".join(re.sub(r"^\s*\* ?", "", line).rstrip() for line in body.split("\n")).strip("\n")


def words_of(doc):
    """A comment without its "@since"."""
    words = re.sub(r"@since \S+", "", doc).strip()
    return words if re.search(r"\w", words) else ""


class Header:
    """One header, read."""

    def __init__(self, path):
        self.path = Path(path)
        self.source = self.path.read_text()
        self.intro = ""
        self.items = []  # Item, or ("section", title, text)
        self.lists = {}  # list macro: rows of arguments
        self.read()

    # --- taking it apart

    def read(self):
        source = self.source
        first = re.match(r"\s*(/\*.*?\*/)", source, re.S)
        self.intro = comment_text(first.group(1)) if first else ""
        at = first.end() if first else 0
        pending, previous, adjacent = None, None, False
        while at < len(source):
            line = source.count("\n", 0, at) + 1
            rest = source[at:]
            if m := re.match(r"[ \t]*\n[ \t]*(?=\n)", rest):
                if pending is not None:  # words that belong to no declaration
                    self.free(pending)
                    pending = None
                adjacent = False
                at += m.end()
            elif m := re.match(r"\s+", rest):
                at += m.end()
            elif m := re.match(r"/\*.*?\*/", rest, re.S):
                text = comment_text(m.group())
                if previous is not None and "\n" not in source[previous[1] : at]:
                    previous[0].doc = (previous[0].doc + " " if previous[0].doc and not previous[0].inherited else "") + text
                    previous[0].inherited = previous[0].inherited and not words_of(text)
                    if previous[0].inherited:
                        previous[0].doc = words_of(self.shared) + " " + text
                elif text.startswith("---"):
                    self.section(text)
                    adjacent = False
                else:
                    if pending is not None:
                        self.free(pending)
                    pending = text
                at += m.end()
            elif rest.startswith("#"):
                end = re.match(r"(?:[^\n\\]|\\\n|\\.)*", rest).end()
                text = rest[:end]
                # A comment behind a macro on its line.
                tail = re.search(r"[ \t]*(/\*.*?\*/)[ \t]*$", text)
                item = self.macro(text[: tail.start()] if tail else text, line)
                if item:
                    item.doc = comment_text(tail.group(1)) if tail else pending or ""
                    pending = None
                    self.items.append(item)
                at += end
            else:
                end, text = self.declaration_end(at)
                item = self.declare(text, line)
                if item:
                    item.doc = pending or ""
                    if not pending and adjacent and self.shared:
                        item.doc, item.inherited = self.shared, True
                    if pending:
                        self.shared = pending
                    self.items.append(item)
                    adjacent = bool(item.doc)
                    previous = (item, end)
                pending = None
                at = end
        self.join_enums()

    shared = ""

    def free(self, text):
        self.items.append(("text", text))

    def section(self, text):
        text = re.sub(r"^-+\s*|\s*-+$", "", text.split("\n", 1)[0]) + ("\n" + text.split("\n", 1)[1] if "\n" in text else "")
        title, more = text, ""
        for m in re.finditer(r"[:.](?=\s|$)|\n", text):
            title, more = text[: m.start()], text[m.end() :]
            if title.count("(") == title.count(")"):
                break
        title = title.strip()
        self.items.append(("section", title.strip(" -").replace("`", ""), more.strip()))

    def declaration_end(self, at):
        """A declaration ends with a semicolon outside braces and comments."""
        depth, i, source = 0, at, self.source
        while i < len(source):
            if source.startswith("/*", i):
                i = source.index("*/", i) + 2
                continue
            c = source[i]
            depth += (c == "{") - (c == "}")
            i += 1
            if c == ";" and depth == 0:
                break
            if depth == 0 and source[at:i].strip() in ("GT_EXTERN_C_BEGIN", "GT_EXTERN_C_END") and c == "\n":
                break
        return i, source[at:i]

    def macro(self, text, line):
        m = re.match(r"#define (\w+)(\([^)]*\))?[ \t]*(.*)", text, re.S)
        if not m or m.group(1).endswith("_H"):
            return None
        name, arguments, value = m.groups()
        if arguments and arguments == "(X)":
            self.lists[name] = [split(row) for row in re.findall(r"X\(((?:[^()\"]|\"(?:[^\"\\]|\\.)*\")*)\)", value)]
        elif name.endswith("_ENUM"):
            return None  # of an enumeration, read with it
        # Both ways of defining GT_API and the like are one.
        if any(isinstance(i, Item) and i.kind == "macro" and i.name == name for i in self.items):
            return None
        return Item("macro", name, line, f"#define {name}{arguments or ''} {'…' if '(X)' == arguments else value}")

    def declare(self, text, line):
        plain = " ".join(re.sub(r"/\*.*?\*/", "", text, flags=re.S).split()).replace("( ", "(")
        if plain in ("GT_EXTERN_C_BEGIN", "GT_EXTERN_C_END", ""):
            return None
        if m := re.match(r"typedef struct (\w+) \{", plain):
            item = Item("struct", m.group(1), line)
            item.members = members(text[text.index("{") + 1 : text.rindex("}")], ";")
            return item
        if re.match(r"enum \{", plain):
            item = Item("enum", "", line)
            item.text = text[text.index("{") + 1 : text.rindex("}")]
            return item
        if m := re.match(r"GT_API (.*?)(\w+)\((.*)\);$", plain):
            item = Item("function", m.group(2), line, plain.removeprefix("GT_API "))
            item.parameters = [] if m.group(3) == "void" else split(m.group(3))
            return item
        if m := re.match(r"typedef .*?\(\*(\w+)\)\((.*)\);$", plain):
            item = Item("callback", m.group(1), line, plain)
            item.parameters = split(m.group(2))
            return item
        if m := re.match(r"typedef (?:struct )?(\w+) (\w+);$", plain):
            return Item("typedef", m.group(2), line, plain)
        raise SystemExit(f"{self.path}:{line}: this declaration is not understood: {plain[:80]}")

    def join_enums(self):
        joined = []
        for item in self.items:
            if isinstance(item, Item) and item.kind == "enum":
                before = joined[-1] if joined and isinstance(joined[-1], Item) else None
                if before is not None and before.kind == "typedef" and before.text.startswith("typedef int32_t"):
                    joined.pop()
                    item.name = before.name
                    item.doc = " ".join(d for d in (before.doc, "" if item.inherited else item.doc) if d)
                item.members = self.constants(item.text)
            joined.append(item)
        self.items = joined

    def constants(self, text):
        out = []
        pattern = re.search(r"#define \w+\(([^)]*)\) (\w*?)##(\w+) = (\w+),", text)
        if pattern:
            names = [n.strip() for n in pattern.group(1).split(",")]
            prefix, value = pattern.group(2), pattern.group(4)
            for row in self.lists[re.search(r"\b(GT_\w+_LIST)\(", text).group(1)]:
                row = dict(zip(names, row))
                out.append((f"{prefix}{row[pattern.group(3)]} = {row[value]}", describe_row(row, pattern.group(3), value)))
            text = re.sub(r"^[ \t]*#.*$|^.*_LIST\(.*$", "", text, flags=re.M)
        return out + members(text, ",")

    # --- putting it together for Doxygen

    def print(self, known):
        out = [f"/** @file {self.path.parent.name}/{self.path.name}", prose(re.sub(r"^[\w/.]+\.h:\s*", "", self.intro), known, sentence=True), " */"]
        section = file_words = re.sub(r"@code.*?@endcode", "", self.intro, flags=re.S)
        # Doxygen orders sections by what stands in them first, macros before functions; of functions alone they keep the header's order.
        functions, open_section = [], False
        for item in self.items:
            if isinstance(item, tuple):
                if item[0] == "section":
                    section = item[1] + " " + item[2]
                    functions += ["/** @} */"] * open_section
                    functions += [f"/** @name {item[1][:1].upper() + item[1][1:]}", prose(capital(item[2]) if item[2] else "", known), " * @{ */"]
                    open_section = True
                continue
            doc = self.doc_of(item)
            notes = "; ".join(f"`{n}`: {w}" for n, w in self.standard_parameters(item, self.spoken(item, f"{section} {file_words}")) if w)
            if notes and "@since" in doc:
                doc = re.sub(r"\.?\s*(@since \S+)", rf". {notes[:1].upper() + notes[1:]}. \1", doc, count=1)
            words = prose(doc, known, sentence=True) if doc else ""
            (functions if item.kind == "function" else out).extend([f"/** {words} */" if words else "", self.declaration(item, known)])
        return "\n".join([*out, *functions, *["/** @} */"] * open_section]) + "\n"

    def doc_of(self, item):
        doc = item.doc
        if not words_of(doc) or item.inherited:
            standard = self.standard(item)
            if standard:
                since = re.search(r"@since \S+", doc)
                doc = standard + (f" {since.group()}" if since else "")
        if item.kind == "function" and re.search(r"_(destroy|close)$", item.name) and doc.startswith("NULL is allowed"):
            doc = "Frees it. " + doc
        return doc

    def standard_parameters(self, item, spoken):
        """Words for parameters that are not described otherwise: name, words or None."""
        for parameter in item.parameters:
            name = re.search(r"(\w+)(?:\[\w*\])?$|\(\*(\w+)\)", parameter)
            name = name.group(1) or name.group(2)
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", spoken) or OBVIOUS.match(parameter) or (name == "user" and item.kind == "callback"):
                continue
            if RESULT.match(parameter):
                yield name, "receives the result; untouched on failure"
                continue
            yield name, next((words for pattern, words in STANDARD_PARAMETERS if re.fullmatch(pattern, f"{item.name} {name}")), None)

    def spoken(self, item, around):
        """All words that are about a function: its own, its section's, the file's, those of functions that it is said to be like."""
        words = self.doc_of(item)
        if re.search(r"\b(same|other)\b|^As ", capital(words)):
            named = set(re.findall(r"gt_\w+", words))
            before = None
            for other in self.items:
                if other is item:
                    break
                if isinstance(other, Item) and other.kind == "function":
                    before = other
                    if other.name in named:
                        words += " " + other.doc
            words += " " + (self.spoken(before, "") if before and re.search(r"\b(same|other)\b", words) else "")
        return f"{words} {around}".replace("`", " ")

    def standard(self, item):
        """Words for what is the same everywhere."""
        if item.kind == "function" and item.name.endswith("_init"):
            struct = item.name.removesuffix("_init")
            more = " for that kind" if len(item.parameters) > 2 else ""
            first = re.search(r"\w+$", item.parameters[0]).group()
            return f"Fills `{first}` with the defaults{more}. `size` is sizeof({struct}) of the caller's header. BAD_ABI if it is 0 or not a size that this library knows how to fill."
        if item.kind == "struct" and not words_of(item.doc):
            users = [i for i in self.items if isinstance(i, Item) and i.kind == "function" and not i.name.endswith("_init") and any(re.search(rf"\b{item.name} \*", p) for p in i.parameters)]
            if users:
                what = "What is given to" if any(f"const {item.name} *" in p for p in users[0].parameters) else "What is filled by"
                return f"{what} {users[0].name}" + (f"; initialise it with {item.name}_init." if any(isinstance(i, Item) and i.name == item.name + "_init" for i in self.items) else ".")
        if item.kind == "enum" and item.name and not words_of(item.doc):
            users = [i for i in self.items if isinstance(i, Item) and i is not item and (item.name in i.text or any(re.match(rf"{item.name}\b", m[0]) for m in i.members if i.kind == "struct"))]
            if users:
                return f"Values of {item.name}, as in {users[0].name}."
        return ""

    def declaration(self, item, known):
        if item.kind == "macro":
            return item.text.replace("\\\n", "")
        if item.kind == "struct":
            rows = [f"    {d}; /**< {prose(w, known, sentence=True)} */" if w else f"    {d};" for d, w in self.fields(item)]
            return f"typedef struct {item.name} {{\n" + "\n".join(rows) + f"\n}} {item.name};"
        if item.kind == "enum":
            rows = [f"    {d}, /**< {prose(w, known, sentence=True)} */" if w else f"    {d}," for d, w in item.members]
            return f"enum {item.name + ' : int32_t ' if item.name else ''}{{\n" + "\n".join(rows) + "\n};"
        return item.text

    def fields(self, item):
        out = []
        for declaration, words in item.members:
            name = re.search(r"(\w+)(?:\[\w+\])*$|\(\*(\w+)\)", declaration)
            name = name.group(1) or name.group(2)
            out.append((declaration, words or STANDARD_FIELDS.get(name, "")))
        return out

    # --- what is missing

    def missing(self):
        section = file_words = re.sub(r"@code.*?@endcode", "", self.intro, flags=re.S)
        for item in self.items:
            if isinstance(item, tuple):
                if item[0] == "section":
                    section = item[1] + " " + item[2]
                else:
                    yield f"{self.path}: these words belong to no declaration and no section: {item[1][:60]!r}"
                continue
            where = f"{self.path}:{item.line}: {item.name or 'enumeration'}"
            doc = self.doc_of(item)
            if not words_of(doc) and item.kind != "typedef" or item.kind == "typedef" and not doc:
                yield f"{where} is not described"
                continue
            if item.kind == "function" and item.inherited and not self.standard(item):
                yield f"{where} has no words of its own"
            if item.kind == "function" and "@since" not in doc:
                yield f"{where} does not say @since when it is there"
            for declaration, words in self.fields(item) if item.kind == "struct" else item.members:
                if not words_of(words):
                    yield f"{where}: {declaration} is not described"
            for name, words in self.standard_parameters(item, self.spoken(item, f"{section} {file_words}")):
                if words is None:
                    yield f"{where}: the parameter {name} is not described"


def split(text):
    """Arguments at their commas, strings and brackets left whole."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(text):
        if c == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                parts.append(text[start:i].strip())
                start = i + 1
    return [*parts, text[start:].strip()]


def members(text, separator):
    """Pairs of a declaration and its words, of fields (";") or constants (",")."""
    out, pending = [], ""
    pattern = rf"/\*.*?\*/|[^/{separator}]+{separator}?" if separator == ";" else r"/\*.*?\*/|[^/,]+,?"
    last_end = None
    for m in re.finditer(pattern, text, re.S):
        part = m.group()
        if part.startswith("/*"):
            words = comment_text(part).replace("\n", " ")
            if last_end is not None and "\n" not in text[last_end : m.start()]:
                for k in range(len(out) - 1, -1, -1):  # behind several on a line, it is about all of them
                    if out[k][2] != out[-1][2]:
                        break
                    out[k] = (out[k][0], words, out[k][2])
                last_end = None
            else:
                pending = words
            continue
        declaration = " ".join(part.strip().rstrip(separator).split())
        if not declaration:
            continue
        group = m.start()
        if separator == ";" and "(" not in declaration and "," in declaration:  # int64_t epoch, epochs
            kind, names = declaration.split(" ", 1)
            for name in names.split(","):
                out.append((f"{kind} {name.strip()}", pending, group))
        else:
            out.append((declaration, pending, group))
        pending = ""
        last_end = m.start() + len(part.rstrip())
    return [(d, w) for d, w, _ in out]


def describe_row(row, name, value):
    """A constant's words, from its row of the list."""
    texts = [re.sub(r'^"|"$', "", v) for k, v in row.items() if k not in (name, value)]
    if len(texts) == 2:  # a dtype: its name and size
        return f'"{texts[0]}", {texts[1]} byte{"s" * (texts[1] != "1")} an element.'
    return texts[0][:1].upper() + texts[0][1:] + "."


# --- words for Doxygen


def prose(text, known, sentence=False):
    """Comment words as Doxygen's: paragraphs, programs, links to what is named, nothing taken for a command or markup."""
    blocks, lines, code = [], [], None
    for line in [*text.split("\n"), ""]:
        if line.strip() == "@code":
            code = []
        elif line.strip() == "@endcode":
            blocks += [("text", lines), ("code", code)]
            lines, code = [], None
        elif code is not None:
            code.append(line)
        elif line.startswith("    "):
            if blocks and blocks[-1][0] == "code" and not lines:
                blocks[-1][1].append(line[4:])
            else:
                blocks += [("text", lines), ("code", [line[4:]])]
                lines = []
        elif not line.strip():
            blocks.append(("text", lines))
            lines = []
        else:
            lines.append(line.strip())
    out = []
    for kind, rows in blocks:
        if kind == "code":
            out.append("@code{.c}\n" + "\n".join(rows) + "\n@endcode")
        elif rows:
            paragraph = " ".join(rows)
            if sentence and not out:
                paragraph = capital(paragraph)
            out.append(marked(paragraph, known))
    return "\n\n".join(out)


def capital(text):
    """A trailing comment made a sentence, unless it begins with a name or a literal."""
    first = re.match(r"(?:a(?= [a-z]{2})|[a-z][a-z-]+(?=[ ,.;:)]|$))", text)
    if first and first.group() not in ("x", "f32", "weight"):
        text = text[0].upper() + text[1:]
    bare = re.sub(r"\s*@since \S+\s*$", "", text)
    if bare and bare[-1] not in ".!?…:":
        text = bare + "." + text[len(bare) :]
    return text


def marked(text, known):
    out = []
    for i, part in enumerate(re.split(r"`([^`]*)`", text)):
        if i % 2:
            out.append(f"<code>{entities(part)}</code>")
            continue
        since = re.split(r"(@since \S+)", part)
        for k, piece in enumerate(since):
            if k % 2:
                out.append("\n\n" + piece.rstrip(".") + "\n\n")
            else:
                out.append(linked(entities(piece), known))
    return "".join(out).strip()


def entities(text):
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([*#~@$%|])", r"\\\1", text)
    return re.sub(r"(?<![\w])__(\w+)__", r"\\_\\_\1\\_\\_", text)


def linked(text, known):
    def link(m):
        word = m.group()
        if word in known:
            return f'@ref {word} "{word}"'
        if "GT_" + word in known and word.isupper() and (len(word) > 2 or word == "IO") and known["GT_" + word] == "gt_status":
            return f'@ref GT_{word} "{word}"'
        return word

    return re.sub(r"(?<![\w/.\"])(?:gt_\w+|GT_\w+|[A-Z][A-Z_]+)(?![\w/])", link, text)


def known_names(headers):
    known = {}
    for header in headers:
        for item in header.items:
            if isinstance(item, Item):
                if item.name:
                    known[item.name] = item.kind
                if item.kind == "enum":
                    known.update((m[0].split(" ")[0], item.name) for m in item.members)
    return known


def unknown_references(header, known):
    """Names that the words use and that nothing has: they were renamed, or never were."""
    for m in re.finditer(r"/\*.*?\*/", header.source, re.S):
        words = re.sub(r"@code.*?@endcode", "", m.group(), flags=re.S)
        words = re.sub(r'"[^"]*"', lambda q: " " * len(q.group()), words)  # not what is shown as a text
        for name in re.finditer(r"(?<![\w/.])(gt_[a-z0-9_]+|GT_[A-Z0-9_]+)(?![\w/.]*\.(?:h|so))", words):
            if name.group(1).rstrip("_") not in known and name.group(1) not in known:
                line = header.source.count("\n", 0, m.start() + words[: name.start()].count("\n")) + 1
                yield f"{header.path}:{line}: {name.group(1)} is not in the headers"


def main():
    folder = Path(sys.argv[-1])
    if sys.argv[1:2] == ["--check"]:
        headers = [Header(p) for p in sorted(folder.glob("*.h"))]
        known = known_names(headers)
        problems = [p for h in headers for p in (*h.missing(), *unknown_references(h, known))]
        print("\n".join(problems))
        return 1 if problems else 0
    known = known_names([Header(p) for p in sorted(folder.parent.glob("*.h"))])
    sys.stdout.write(Header(folder).print(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
