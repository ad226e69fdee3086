"""Can this machine train on its GPUs, and if not, why not and what mends it: `python -m gtrain.doctor [--json]`, or doctor.examine()."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from . import _api
from ._errors import check
from ._library import lib, options

_VERDICTS = {_api.GT_DOCTOR_READY: "ready", _api.GT_DOCTOR_CPU_ONLY: "cpu only", _api.GT_DOCTOR_BROKEN: "broken"}
_SEVERITIES = {_api.GT_DOCTOR_ERROR: "error", _api.GT_DOCTOR_WARNING: "warning", _api.GT_DOCTOR_NOTE: "note"}


@dataclass(frozen=True)
class Fault:
    """`kind` is a name ("LIBRARY_MISSING"), `command` what mends it, or ""."""

    kind: str
    severity: str
    what: str
    remedy: str
    command: str


class Examination:
    """verdict ("ready", "cpu only", "broken"), faults, the one to mend first in front, text, and `data`, the whole as in the library's JSON."""

    verdict: str
    exit_code: int
    faults: Tuple[Fault, ...]
    text: str
    json: str
    data: Any

    def __init__(self, report: Any) -> None:
        self.exit_code = lib.gt_doctor_report_verdict(report)
        self.verdict = _VERDICTS[self.exit_code]
        self.text = lib.gt_doctor_report_text(report).decode(errors="replace")
        self.json = lib.gt_doctor_report_json(report).decode(errors="replace")
        self.data = json.loads(self.json)
        self.faults = tuple(_fault(lib.gt_doctor_report_fault(report, i).contents) for i in range(lib.gt_doctor_report_faults(report)))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<gtrain.doctor: {self.verdict}, {len(self.faults)} faults>"


def _fault(f: Any) -> Fault:
    texts = [(t or b"").decode(errors="replace") for t in (f.what, f.remedy, f.command)]
    return Fault(lib.gt_doctor_fault_name(f.kind).decode(), _SEVERITIES[f.severity], *texts)


def examine(*, own_process: bool = False, module: Optional[str] = None, library_path: Optional[str] = None, root: Optional[str] = None) -> Examination:
    """Examines the machine and this process. own_process: nothing else happens in it, so that the driver may be started and cuDNN opened."""
    o = options("gt_doctor_options")
    o.own_process = bool(own_process)
    o.module, o.library_path, o.root = (None if t is None else t.encode() for t in (module, library_path, root))
    report = ctypes.c_void_p()
    check(lib.gt_doctor(ctypes.byref(o), ctypes.byref(report)))
    try:
        return Examination(report)
    finally:
        lib.gt_doctor_report_destroy(report)


def main(arguments: Optional[List[str]] = None) -> int:
    """The program `python -m gtrain.doctor`: prints the text, or with --json the data. Returns the exit code: 0 ready, 1 CPU only, 2 broken."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if [a for a in arguments if a != "--json"]:
        print("usage: python -m gtrain.doctor [--json]", file=sys.stderr)
        return 2
    found = examine(own_process=True)
    print(found.json if "--json" in arguments else found.text.rstrip("\n"))
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
