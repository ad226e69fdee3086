"""What notebooks show."""

from html import escape

_STYLE = "font-family:monospace;font-size:13px"
_COLOURS = ("#4878a8", "#e49444", "#6a9f58", "#d1615d", "#967662", "#a87c9f", "#85b6b2", "#8c8c8c")


def _table(rows, header=None):
    head = "<tr>" + "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in header) + "</tr>" if header else ""
    body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table style='{_STYLE}'>{head}{body}</table>"


def tensor_html(t):
    note = f"{t.dtype.name} {list(t.shape)} on {t.device}" + (", requires grad" if t.requires_grad else "")
    return f"<div style='{_STYLE}'><b>Tensor</b> {escape(note)}<pre>{escape(repr(t))}</pre></div>"


def module_html(module):
    rows = [(name or "(itself)", m.kind, f"{sum(p.numel() for p in m.parameters(recurse=False)):,}") for name, m in module.named_modules()]
    total = sum(p.numel() for p in module.parameters())
    return (
        f"<details open><summary style='{_STYLE}'><b>{escape(module.kind)}</b>: {total:,} parameters</summary>"
        + _table(rows, ("module", "kind", "own parameters"))
        + "</details>"
    )


def _bar(parts, whole):
    cells = "".join(
        f"<div title='{escape(name)}: {n:,} bytes' style='width:{100 * n / whole:.2f}%;background:{colour};height:18px;float:left'></div>"
        for (name, n), colour in zip(parts.items(), _COLOURS)
        if n and whole
    )
    keys = " ".join(
        f"<span style='white-space:nowrap'><span style='color:{colour}'>&#9632;</span> {escape(name)} {_mib(n)}</span>"
        for (name, n), colour in zip(parts.items(), _COLOURS)
        if n
    )
    return f"<div style='width:100%;max-width:900px;height:18px;background:#eee'>{cells}</div><div style='{_STYLE}'>{keys}</div>"


def _mib(n):
    return f"{n / 2**20:,.1f} MiB"


def stats_html(s):
    whole = max(s.reserved, s.limit, 1)
    return f"<div style='{_STYLE}'>in use {_mib(s.in_use)}, cached {_mib(s.cached)}, peak {_mib(s.peak_in_use)}</div>" + _bar(s.categories, whole)


def report_html(r):
    rows = [(x.kind, x.subject, _mib(x.bytes), "yes" if x.enough else "", x.cost) for x in r.remedies]
    return (
        f"<div style='{_STYLE}'><b>{escape(r.cause)}</b></div>"
        + _bar(r.categories, max(r.limit or r.device_total, r.in_use, 1))
        + f"<pre style='{_STYLE}'>{escape(r.text)}</pre>"
        + (_table(rows, ("remedy", "what", "frees", "enough alone", "costs")) if rows else "")
    )
