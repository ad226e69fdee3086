"""Checks the text of the documentation; plain Python.

    check_text.py links <source>      links between files, and to headings in them, lead somewhere
    check_text.py names <source>      gt_ functions and GT_ constants that pages name are declared
    check_text.py self-test           the checks find what is wrong

provoke.py uses what looks at messages.
"""

import os
import re
import sys

FENCED = re.compile(r"^```.*?^```[ \t]*$", re.M | re.S)
SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def pages(source):
    """Every page of the documentation that is read in the source tree; docs/reference holds parts of one that is made."""
    found = [os.path.join(source, n) for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "python_bindings/README.md", "bench/README.md")]
    for folder, folders, names in os.walk(os.path.join(source, "docs")):
        folders[:] = sorted(f for f in folders if f != "reference")
        found += [os.path.join(folder, n) for n in sorted(names) if n.endswith(".md")]
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def without_code(text):
    """The same lines, those of code empty."""
    text = FENCED.sub(lambda m: "\n" * m.group(0).count("\n"), text)
    return SPAN.sub("", text)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCED.sub("", text), re.M):
        heading = LINK.sub(lambda m: m.group(0)[m.group(0).index("[") + 1 : m.group(0).index("](")], heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, unique = 0, slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


def broken_links(path, text, exists=os.path.exists, content=read):
    problems, plain = [], without_code(text)
    for link in LINK.finditer(plain):
        target, number = link.group(2), plain.count("\n", 0, link.start()) + 1
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not exists(file):
            problems.append(f"{path}:{number}: {target}: there is no {file}")
        elif anchor and file.endswith(".md") and anchor not in anchors(text if file == path else content(file)):
            problems.append(f"{path}:{number}: {target}: {file} has no such heading")
    return problems


# --- names ------------------------------------------------------------------------------------------------------------------------------


def declared(source):
    """Whole names of the headers, and the beginnings that their lists paste names from."""
    text = ""
    folder = os.path.join(source, "include", "gtrain")
    for name in sorted(os.listdir(folder)):
        text += read(os.path.join(folder, name))
    names = set(re.findall(r"\b(?:gt|GT)_[A-Za-z0-9_]+", text))
    for prefix, macro in (("GT_", "GT_STATUS_LIST"), ("GT_DTYPE_", "GT_DTYPE_LIST"), ("GT_MEMORY_", "GT_MEMORY_LIST"), ("GT_OOM_", "GT_OOM_CAUSE_LIST"),
                          ("GT_OOM_REMEDY_", "GT_OOM_REMEDY_LIST"), ("GT_DOCTOR_", "GT_DOCTOR_FAULT_LIST")):  # fmt: skip
        body = re.search(r"#define " + macro + r"\(X\)((?:.*\\\n)*.*\n)", text).group(1)
        names.update(prefix + n for n in re.findall(r"X\(([A-Z0-9_]+)", body))
    return names


NAME = re.compile(r"(?<![A-Za-z0-9_])(?:gt|GT)_[A-Za-z0-9][A-Za-z0-9_]*")


def unknown_names(path, text, names):
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        for name in NAME.findall(line):
            # A name that the page's own code defines is not ours.
            if name not in names and not re.search(rf"(?:static|#define|struct|\*)\s*{name}\b", text):
                problems.append(f"{path}:{number}: {name} is not in the headers")
    return problems


# --- messages -----------------------------------------------------------------------------------------------------------------------------

STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:[A-Z][A-Z0-9_]*\s*)?"(?:[^"\\\n]|\\.)*")*')
CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGcsp])")
PYTHON_STRINGS = re.compile(r'f?"(?:[^"\\\n]|\\.)*"(?:\s*\+?\s*f?"(?:[^"\\\n]|\\.)*")*')


def unescaped(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), text)


def c_formats(text):
    """Regular expressions of what the format strings of C sources make."""
    for match in STRINGS.finditer(re.sub(r"^\s*#include.*$", "", text, flags=re.M)):
        pattern, literal = "", 0
        # Between two literals stands white space, or a macro whose text is anything.
        parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"|([A-Z][A-Z0-9_]*)(?=\s*")', match.group(0))
        for words, macro in parts:
            if macro:
                pattern += ".+"
                continue
            words, last = unescaped(words), 0
            for spec in CONVERSION.finditer(words):
                pattern += re.escape(words[last : spec.start()]) + ("%" if spec.group(0) == "%%" else ".*?")
                literal += spec.start() - last
                last = spec.end()
            pattern += re.escape(words[last:])
            literal += len(words) - last
        yield pattern, literal


def python_formats(text):
    for match in PYTHON_STRINGS.finditer(text):
        pattern, literal = "", 0
        for formatted, words in re.findall(r'(f?)"((?:[^"\\\n]|\\.)*)"', match.group(0)):
            words = unescaped(words)
            if not literal and "\n" in words:
                yield re.escape(words[: words.index("\n")]), words.index("\n")  # a first line
            for piece in re.split(r"(\{[^{}]*\})", words) if formatted else [words]:
                if formatted and piece.startswith("{"):
                    pattern += ".*?"
                else:
                    pattern += re.escape(piece)
                    literal += len(piece)
        yield pattern, literal


def formats(source):
    found = set()
    for folder, _, names in os.walk(os.path.join(source, "src")):
        for name in names:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                found.update(c_formats(read(os.path.join(folder, name))))
    for folder, _, names in os.walk(os.path.join(source, "python_bindings", "src", "gtrain")):
        for name in names:
            if name.endswith(".py") and name != "_api.py":
                found.update(python_formats(read(os.path.join(folder, name))))
    return compiled(found)


def compiled(found):
    """Of formats with enough words to tell them apart."""
    return [(re.compile(p, re.S), literal) for p, literal in found if literal >= 8]


def quotes(text):
    """(line, message) of what the tables' first column quotes: code of more than one word that does not look like C or Python."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            inside = False
        elif re.match(r"^\|( *:?-+:? *\|)+$", line):
            inside = True
        elif inside:
            for span in re.findall(r"`([^`]+)`", line.strip("|").split(" | ")[0]):
                if span.count(" ") >= 2 and not re.match(r"(import|if|[a-z_.]+\.grad) ", span):
                    yield number, span


def said(message, patterns):
    """Whether a format makes this message, perhaps behind an op's name and module or a cause."""
    behind = re.sub(r'^[\w.]+(?: "[^"]*")?: ', "", message)
    candidates = [message, behind] + [message[m.end() :] for m in re.finditer(r"^[A-Z_]+: ", message)]
    return any(p.fullmatch(c) for p, literal in patterns for c in candidates if 2 * literal >= len(c.replace("…", "")))  # not by its blanks alone


# --- the checks themselves ------------------------------------------------------------------------------------------------------------------


def self_test():
    files = {"/d/a.md": "# A page\n\n## Two: `x` words\n\n[b](b.md) [h](#two-x-words) [bh](b.md#b) ```\n", "/d/b.md": "# B\n"}

    def links(text):
        return broken_links("/d/a.md", text, files.__contains__, files.__getitem__)

    assert links(files["/d/a.md"]) == [], links(files["/d/a.md"])
    assert len(links("[c\nd](c.md)")) == 1 and len(links("[b](b.md#c)")) == 1 and len(links("# A\n[h](#b)")) == 1
    assert links("`[c](c.md)` [web](https://example.org)\n```\n[c](c.md)\n```\n") == []
    names = {"gt_add", "GT_OK"}
    assert unknown_names("p", "`gt_add` GT_OK static gt_tensor_own(", names | {"gt_tensor_own"}) == []
    assert len(unknown_names("p", "`gt_ad`", names)) == 1
    patterns = compiled(c_formats('GT_FAIL(X, "%s: expected %lld bytes, " MODULE " has %5.1f %%", a);'))
    assert said("file: expected 12 bytes, m.so has 4.5 %", patterns) and said('op "m.1": file: expected 1 bytes, x has 2 %', patterns)
    assert not said("file: expected 12 byte, m.so has 4.5 %", patterns)
    patterns = compiled(python_formats('raise E(f"{path} is gtrain {v}; made for " "0.1")'))
    assert said("… is gtrain …; made for 0.1", patterns) and not said("… is gtrain …; made by 0.1", patterns)
    patterns = compiled(c_formats('GT_FAIL(X, "%s: number %d of %s", a);'))
    assert said("x: number 3 of y", patterns) and not said("x: number 3 of what no format says at all", patterns)
    table = "| a | b |\n| --- | --- |\n| X `one two three` `word` | `not this one here` |\n"
    assert list(quotes(table)) == [(3, "one two three")]
    print("the checks find what is wrong")
    return []


def main():
    what, source = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    if what == "self-test":
        problems, done = self_test(), 1
    elif what == "links":
        texts = [(p, read(p)) for p in pages(source)]
        problems, done = [x for p, t in texts for x in broken_links(p, t)], sum(len(LINK.findall(without_code(t))) for _, t in texts)
    elif what == "names":
        known = declared(source)
        texts = [(p, read(p)) for p in pages(source)]
        problems, done = [x for p, t in texts for x in unknown_names(p, t, known)], len({n for _, t in texts for n in NAME.findall(t)})
    else:
        sys.exit(__doc__)
    print("\n".join(problems) if problems else f"{what}: {done} looked at")
    return 1 if problems or not done else 0


if __name__ == "__main__":
    sys.exit(main())
