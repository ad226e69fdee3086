#!/usr/bin/env python3
"""A Markdown page for Doxygen (its filter): links between the pages are kept, links to other files of the checkout become plain text."""

import re
import sys
from pathlib import Path

path = Path(sys.argv[1]).resolve()
root = Path(__file__).resolve().parents[2]


def is_page(place):
    return place.suffix == ".md" and place.exists() and (place == root / "README.md" or place.parent in (root / "docs", root / "docs/guide"))


def link(m):
    picture, words, target = m.groups()
    words = " ".join(words.split())  # a link that goes over two lines is none for Doxygen
    if re.match(r"\w+:", target):
        return f"{picture}[{words}]({target})"
    place = (path.parent / target.partition("#")[0]).resolve()
    if picture:
        return f"![{words}]({place.name})"
    return f"[{words}]({place})" if is_page(place) else words


parts = re.split(r"(^```.*?^```)", path.read_text(), flags=re.S | re.M)
for i, part in enumerate(parts):
    if i % 2:
        parts[i] = re.sub(r"^```(\w+)[^\n]*", r"```\1", part)  # the language alone
        continue
    part = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, part)
    part = re.sub(r"^#+ .*$", lambda m: m.group().replace("`", ""), part, flags=re.M)  # Doxygen's headings have no code
    # Nothing is a command, but on the page that was written for Doxygen.
    parts[i] = part if path.name == "mainpage.md" else re.sub(r"(?<![`\w])([@\\])(?=\w)", r"\\\1", part)
sys.stdout.write("".join(parts))
