"""Progress bars for the trainer, one an epoch. They are tqdm's: `pip install tqdm`."""

from __future__ import annotations

import math
import sys
from typing import Any

# Short enough for a notebook's page with what is said behind it.
_FORMAT = "{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


def _figures(metrics: Any, name: str) -> str:
    """ "loss 0.3127, 88.4 %"; empty where nothing was measured."""
    parts = []
    if not math.isnan(metrics.loss):
        parts.append(f"{name} {metrics.loss:.4f}")
    if not math.isnan(metrics.accuracy):
        parts.append(f"{100 * metrics.accuracy:.1f} %")
    return ", ".join(parts)


class Bars:
    """`bars.step(progress)` after each step and `bars.epoch(progress)` after each epoch, with what on_step and on_epoch of a Trainer get. A bar says
    how training stands, as measured last, and how validation went. `Trainer.fit(..., progress=True)` does all of this.

    file: where they are written; by default stderr, and in a notebook stdout, which is not shown as an error there.
    """

    def __init__(self, file: Any = None) -> None:
        try:
            from tqdm import tqdm
        except ImportError as error:
            raise ImportError("a progress bar needs tqdm: pip install tqdm") from error
        self._tqdm = tqdm
        self._bar: Any = None
        in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
        self._file = file if file is not None else sys.stdout if in_notebook else sys.stderr

    def _open(self, p: Any) -> Any:
        if self._bar is None:
            name = f"epoch {p.epoch + 1}/{p.epochs}"
            self._bar = self._tqdm(total=p.steps, desc=name, file=self._file, bar_format=_FORMAT, unit="batch")
        return self._bar

    def step(self, p: Any) -> None:
        """Moves the bar to where training stands; `p`: the Progress of on_step."""
        bar = self._open(p)
        if p.measured:
            self._describe(p)
        bar.update(p.step - bar.n)

    def epoch(self, p: Any) -> None:
        """Ends the epoch's bar; `p`: the Progress of on_epoch."""
        self._open(p)
        self._describe(p)
        self.close()

    def _describe(self, p: Any) -> None:
        parts = [_figures(p.training, "loss"), _figures(p.validation, "validation")]
        if p.skipped:
            parts.append(f"{p.skipped} skipped")
        self._bar.set_postfix_str("; ".join(part for part in parts if part), refresh=False)

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.refresh()
            bar.close()


__all__ = ["Bars"]
