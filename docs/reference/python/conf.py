"""Sphinx for the Python package: signatures and docstrings, read from the package itself."""

import os
import re

project = "gtrain"
author = "the gtrain authors"
version = release = os.environ.get("GTRAIN_DOCS_VERSION", "")
extensions = ["sphinx.ext.autodoc"]
exclude_patterns = []
html_theme = "alabaster"
html_theme_options = {"page_width": "auto", "fixed_sidebar": True, "show_powered_by": False, "description": "Python API"}
html_static_path = ["../style.css"]
html_css_files = ["style.css"]
html_sidebars = {"**": ["about.html", "searchbox.html", "navigation.html"]}
html_show_sourcelink = False
html_copy_source = False
html_title = f"gtrain {version} · Python"
default_role = "code"
smartquotes = False
pygments_style = "friendly"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": "dict,RuntimeError,ValueError,TypeError,tuple,str,object"}
autodoc_preserve_defaults = True
toc_object_entries = False


def plain(app, what, name, obj, options, lines):
    """Docstrings are plain text: indented lines are programs, `names` are code, and nothing else is markup."""
    out, inside = [], False
    for i, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not inside and (i == 0 or not lines[i - 1].strip()):
            out += [".. code-block:: python", ""]
            inside = True
        elif line.strip() and not indented:
            inside = False
        if not inside:
            parts = re.split(r"(`[^`]+`)", line)
            for k, part in enumerate(parts):
                parts[k] = f"`{part}`" if k % 2 else re.sub(r"([*|\\])|(?<=\w)_(?!\w)|(?<!\w)_(?=_?\w)", lambda m: "\\" + m.group(), part)
            line = "".join(parts)
        out.append(line)
    lines[:] = out


def signature(app, what, name, obj, options, arguments, returns):
    """Without what does not help a reader."""
    if arguments:
        arguments = re.sub(r"\b(gtrain\._?\w+\.|typing\.|builtins\.|numpy\.)", "", arguments)
        arguments = re.sub(r": Any\b", "", arguments)
    if returns:
        returns = re.sub(r"\b(gtrain\._?\w+\.|typing\.|builtins\.|numpy\.)", "", returns)
        returns = None if returns == "Any" else returns
    return arguments, returns


def setup(app):
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-process-signature", signature)
