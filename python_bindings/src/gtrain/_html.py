"""What notebooks show. Plain tables that keep their sense where styles are dropped, as on GitHub. Text has the page's own colour and lines are half
transparent, so that both light and dark pages are served."""

from __future__ import annotations

import math
from html import escape
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

_BOX = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto"
_CELL = "padding:2px 12px 2px 0;border:none;border-bottom:1px solid rgba(128,128,128,.25);vertical-align:top;white-space:"
_MUTED = "opacity:.7"
_ROWS = 40  # more modules than that are folded away

# Okabe and Ito's colours, which all eyes can tell apart. In the order of memory.CATEGORIES.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")


def size(n: float) -> str:
    """1536 to "1.5 KiB"."""
    n, unit = float(n), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            break
        n, unit = n / 1024, larger
    return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:,.1f} {unit}"


class _Raw(str):
    """Is HTML already."""


def _html(value: Any) -> str:
    return value if isinstance(value, _Raw) else escape(str(value))


def _table(rows: Iterable[Sequence[Any]], header: Sequence[str], numbers: Iterable[int] = (), wrap: Iterable[int] = ()) -> str:
    """numbers: columns that stand to the right. wrap: columns of which the lines may break."""
    numbers, wrap = set(numbers), set(wrap)

    def line(tag: str, cells: Sequence[Any]) -> str:
        out = []
        for i, cell in enumerate(cells):
            style = f"{_CELL}{'normal' if i in wrap else 'nowrap'};text-align:{'right' if i in numbers else 'left'}"
            out.append(f'<{tag} style="{style}">{_html(cell)}</{tag}>')
        return '<tr style="background:none">' + "".join(out) + "</tr>"

    head = f"<thead>{line('th', header)}</thead>" if any(header) else ""
    body = "".join(line("td", row) for row in rows)
    return f'<table style="border-collapse:collapse;border:none;margin:4px 0;font-size:13px">{head}<tbody>{body}</tbody></table>'


def _box(*parts: str) -> str:
    return f'<div style="{_BOX}">' + "".join(parts) + "</div>"


def _title(bold: str, rest: str = "") -> str:
    return f"<div><b>{escape(bold)}</b> {escape(rest)}</div>"


def _text(text: str, tall: str = "24em") -> str:
    return f'<pre style="margin:4px 0;max-height:{tall};overflow:auto;white-space:pre;color:inherit;background:none;border:none;font-size:12px">{escape(text)}</pre>'


def _folded(title: str, inside: str) -> str:
    return f'<details><summary style="cursor:pointer;{_MUTED}">{escape(title)}</summary>{inside}</details>'


def _swatch(colour: str) -> _Raw:
    return _Raw(f'<span style="color:{colour}">&#9632;</span> ')


def _number(value: float, digits: int = 4) -> str:
    return "" if value != value else f"{value:.{digits}f}"


def _percent(value: float) -> str:
    return "" if value != value else f"{100 * value:.1f} %"


# --- tensors ------------------------------------------------------------------------------------------------------------------------------


def tensor_html(t: Any) -> str:
    if t._ctx.closed:
        return _box(_title("Tensor", repr(t)))
    facts = [t.dtype.name, str(list(t.shape)), size(t.nbytes), t.device]
    if t.requires_grad:
        facts.append("requires grad")
    parts = [_title("Tensor", " · ".join(facts))]
    if 1 < t.numel() <= 1 << 20 and t.is_floating_point():
        parts.append(_range(t.detach().numpy()))
    return _box(*parts, _text(repr(t)))


def _range(values: Any) -> str:
    import numpy as np

    finite = np.isfinite(values)
    known = values[finite].astype(np.float64)
    facts = []
    if known.size:
        facts.append(f"min {known.min():.4g} · mean {known.mean():.4g} · max {known.max():.4g}")
    if known.size < values.size:
        facts.append(f"{values.size - known.size:,} of {values.size:,} not finite")
    return f'<div style="{_MUTED}">{" · ".join(facts)}</div>'


# --- modules ------------------------------------------------------------------------------------------------------------------------------


def module_html(module: Any) -> str:
    total = module.num_parameters()
    nbytes = sum(p.nbytes for p in module.parameters())
    named = list(module.named_modules())
    rows = [_module_row(name, m, total) for name, m in named if name or len(named) == 1]
    header = ("", "module", "parameters", "")
    parts = [_title(module.kind, f"{total:,} parameters, {size(nbytes)}")]
    if len(rows) <= _ROWS:
        parts.append(_table(rows, header, numbers=(2,)))
    else:
        outer = [_module_row(name, m, total) for name, m in module.named_children()]
        parts += [_table(outer, header, numbers=(2,)), _folded(f"all {len(rows)} modules", _table(rows, header, numbers=(2,)))]
    return _box(*parts)


def _module_row(name: str, module: Any, total: int) -> Tuple[Any, ...]:
    depth, leaf = name.count("."), next(module.children(), None) is None
    count = module.num_parameters()
    frozen = count and not any(p.requires_grad for p in module.parameters())
    # A leaf's description is one line, and what follows # says its size again.
    what = repr(module).partition("\n")[0].partition("  #")[0] if leaf else module.kind
    share = 100 * count / total if total else 0
    bar = f'<div style="width:{max(share, 1):.0f}px;height:9px;margin-top:5px;background:{COLOURS[0]};opacity:{1 if leaf else 0.4}"></div>' if count else ""
    indented = _Raw("&nbsp;&nbsp;&nbsp;&nbsp;" * depth + escape(name.rpartition(".")[2]))
    return indented, what + (" (frozen)" if frozen else ""), f"{count:,}" if count else "", _Raw(bar)


# --- memory -------------------------------------------------------------------------------------------------------------------------------


def _bar(parts: Mapping[str, int], whole: int) -> str:
    """A line of `whole` bytes, filled by the parts."""
    cells = "".join(
        f'<div title="{escape(name)}: {size(n)}" style="width:{100 * n / whole:.3f}%;background:{colour};height:16px;float:left"></div>'
        for (name, n), colour in zip(parts.items(), COLOURS)
        if n
    )
    return f'<div style="width:100%;max-width:720px;height:16px;margin:2px 0 6px;background:rgba(128,128,128,.2);overflow:hidden">{cells}</div>'


def _categories(columns: Sequence[Mapping[str, int]], header: Sequence[str]) -> str:
    rows: List[Sequence[Any]] = []
    for name, colour in zip(columns[0], COLOURS):
        if any(c[name] for c in columns):
            rows.append((_Raw(_swatch(colour) + escape(name)), *(size(c[name]) if c[name] else "" for c in columns)))
    return _table(rows, header, numbers=range(1, len(columns) + 1)) if rows else ""


def stats_html(s: Any) -> str:
    facts = f"in use {size(s.in_use)} + cached {size(s.cached)} = reserved {size(s.reserved)}, peak {size(s.peak_in_use)}"
    if s.limit:
        facts += f", limit {size(s.limit)}"
    whole = max(s.limit, s.peak_in_use, s.in_use, 1)
    bars = "".join(f'<div style="{_MUTED}">{when}</div>{_bar(c, whole)}' for when, c in (("now", s.categories), ("at the peak", s.categories_at_peak)))
    return _box(_title("Memory", facts), bars, _categories((s.categories, s.categories_at_peak), ("", "now", "at the peak")))


def report_html(r: Any) -> str:
    whole = max(r.limit or r.device_total, r.in_use, 1)
    first, _, _ = r.text.partition("\n")
    parts = [_title(first), _cause(r.text)]
    parts += [_bar(r.categories, whole), f'<div style="{_MUTED}">{size(r.in_use)} in use of {size(whole)}</div>', _categories((r.categories,), ("", "now"))]
    if r.remedies:
        rows = [(x.subject, size(x.bytes), "yes" if x.enough else "no", x.cost, _code(x.call)) for x in r.remedies]
        parts.append(_table(rows, ("what can be done", "frees", "enough alone", "costs", "in Python"), numbers=(1,), wrap=(0, 3, 4)))
    parts.append(_folded("the whole report", _text(r.text, "60em")))
    return _box(*parts)


def _cause(text: str) -> str:
    line: Optional[str] = next((x for x in text.split("\n") if x.startswith("cause")), None)
    return f"<div>{escape(line.partition(' ')[2].strip())}</div>" if line else ""


def _code(text: str) -> _Raw:
    return _Raw(f'<code style="color:inherit;background:none;padding:0">{escape(text)}</code>' if text else "")


# --- training -----------------------------------------------------------------------------------------------------------------------------


def fit_html(r: Any) -> str:
    header = ["epoch", "loss", "accuracy", "validation loss", "accuracy", "samples/s", "skipped"]
    rows = [
        [
            p.epoch + 1, _number(p.training.loss), _percent(p.training.accuracy), _number(p.validation.loss), _percent(p.validation.accuracy),
            f"{p.samples_per_second:,.0f}", p.skipped or "",
        ]
        for p in r.history
    ]  # fmt: skip
    used = [i for i in range(len(header)) if i == 0 or any(row[i] != "" for row in rows)]
    facts = f"{r.steps:,} steps in {r.seconds:.1f} s" if math.isfinite(r.seconds) else f"{r.steps:,} steps"
    if r.stopped:
        facts += ", stopped"
    return _box(_title("Fit", facts), _table([[row[i] for i in used] for row in rows], [header[i] for i in used], numbers=range(len(used))))


def scaler_html(s: Any) -> str:
    rows = [("scale", f"{s.scale:,.0f}" if s.scale >= 1 else f"{s.scale:.3g}"), ("since it changed", f"{s.growth_count:,} updates"), ("updates", f"{s.updates:,}")]
    skipped = f"{s.skipped:,}" + (f", the last {s.skipped_in_row:,} in a row" if s.skipped_in_row > 1 else "")
    rows.append(("skipped", skipped))
    if s.parameter:
        rows.append(("last because of", f"the gradient of {s.parameter}"))
    if s.op:
        rows.append(("which began in", f"{s.op}" + (f" of {s.module}" if s.module else "") + f", in the {'backward' if s.op_backward else 'forward'}"))
    return _box(_title("GradScaler", s.status), _table(rows, ("", "")))
