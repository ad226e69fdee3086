"""What Optimizer.state_dict returns and Optimizer.load_state_dict takes: the layout of torch.optim.

    {"state": {id: {"step": …, "exp_avg": …}}, "param_groups": [{"lr": …, "params": [id, …]}]}

A parameter that has had no update yet has no entry in "state".
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from .._dtypes import float32
from .._errors import ArgumentError, check
from .._library import lib
from .._tensor import Tensor, borrow
from ..nn.module import as_host_tensor

if TYPE_CHECKING:
    from .optimizer import Optimizer, _Part

Key = Any  # of a parameter in a state: its number or its name

# Settings that PyTorch's groups have and ours have not: harmless at these values, or whatever they are.
_NEUTRAL: Dict[str, Any] = {"amsgrad": False, "maximize": False}
_WITHOUT_EFFECT = frozenset(("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"))
# Keys of a group that are not settings of the update rule.
_FREE = frozenset(("params", "lr", "initial_lr", "name", "param_names"))
_MOST_STEPS = (1 << 31) - 2


class _Slot(NamedTuple):
    """A parameter as one of the library's optimizers knows it."""

    part: _Part
    place: int
    parameter: Tensor
    label: str  # for messages
    needed: Tuple[str, ...]  # the names of its state tensors
    optional: Tuple[str, ...]


def _label(parameter: Tensor, number: int) -> str:
    return parameter.name or f"parameter {number}"


def _slots(optimizer: Optimizer) -> List[List[Optional[_Slot]]]:
    """By group and place in the group; None for what is not trained or was listed before."""
    number, out = 0, []
    handle = ctypes.c_void_p()
    for group, part in zip(optimizer.param_groups, optimizer._parts):
        known: Dict[Optional[int], int] = {}
        for i in range(lib.gt_optimizer_parameter_count(part._live())):
            check(lib.gt_optimizer_parameter(part._live(), i, ctypes.byref(handle)))
            known[handle.value] = i
        slots: List[Optional[_Slot]] = []
        for parameter in group["params"]:
            index = known.pop(parameter._h, None)
            half = parameter.dtype.is_floating_point and parameter.dtype.itemsize == 2
            label = _label(parameter, number)
            slots.append(None if index is None else _Slot(part, index, parameter, label, optimizer._state_names(group), ("master",) if half else ()))
            number += 1
        out.append(slots)
    return out


def _tensor(slot: _Slot, name: str) -> Tensor:
    handle = ctypes.c_void_p()
    ctx = slot.parameter._ctx
    check(lib.gt_optimizer_state_get(slot.part._live(), slot.place, name.encode(), ctypes.byref(handle)), ctx)
    return borrow(ctx, handle.value)


def _steps(part: _Part) -> Any:
    steps = (ctypes.c_int64 * lib.gt_optimizer_parameter_count(part._live()))()
    check(lib.gt_optimizer_steps_get(part._live(), steps), part._ctx)
    return steps


def _names(optimizer: Optimizer) -> List[List[str]]:
    names = [[p.name for p in group["params"]] for group in optimizer.param_groups]
    flat = [name for group in names for name in group]
    if "" in flat or len(set(flat)) != len(flat):
        unnamed = flat.count("")
        twice = sorted({name for name in flat if name and flat.count(name) > 1})
        raise ArgumentError(
            f"{type(optimizer).__name__}.state_dict: names need one of its own for each parameter; "
            + (f"{unnamed} have none" if unnamed else f"{', '.join(twice)} belong to several")
        )
    return names


def read(optimizer: Optimizer, names: bool) -> Dict[str, Any]:
    """See Optimizer.state_dict."""
    from .._creation import tensor

    keys: List[List[Key]] = []
    if names:
        keys = list(_names(optimizer))
    else:
        first = 0
        for group in optimizer.param_groups:
            keys.append(list(range(first, first + len(group["params"]))))
            first += len(group["params"])
    state: Dict[Key, Dict[str, Any]] = {}
    groups = []
    for group, part, slots, ids in zip(optimizer.param_groups, optimizer._parts, _slots(optimizer), keys):
        steps = _steps(part)
        for slot, key in zip(slots, ids):
            if slot is None or steps[slot.place] == 0 or not (slot.needed or slot.optional):
                continue
            entry = {}
            if optimizer._counts_steps:
                entry["step"] = tensor(float(steps[slot.place]), dtype=float32, device=slot.parameter._ctx)
            for name in (*slot.needed, *slot.optional):
                entry[name] = _tensor(slot, name)
            state[key] = entry
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": ids})
    return {"state": state, "param_groups": groups}


# --- loading ------------------------------------------------------------------------------------------------------------------------------


class _Plan:
    """What a state asks for, checked against the optimizer: first everything that does not fit is found, then values are made, then they are put in place."""

    def __init__(self, optimizer: Optimizer, state: Any) -> None:
        self.optimizer = optimizer
        self.problems: List[Tuple[str, str]] = []
        self.entries: List[Tuple[_Slot, int, Dict[str, Any]]] = []  # slot, steps, values by name
        if not (isinstance(state, Mapping) and isinstance(state.get("state"), Mapping) and isinstance(state.get("param_groups"), (list, tuple))):
            raise ArgumentError(f"{self.who}: a state is a dictionary with 'state' and 'param_groups', as state_dict returns it")
        self.state, self.groups = state["state"], state["param_groups"]
        self.slots = _slots(optimizer)
        own = optimizer.param_groups
        if len(own) != len(self.groups):
            self.problem("param_groups", f"{len(self.groups)} in the state, {len(own)} here")
            self.finish()
        self.used: Set[Key] = set()
        for i, (group, theirs) in enumerate(zip(own, self.groups)):
            self.check_settings(i, group, theirs)
            for slot, parameter, key in self.pairs(i, group, theirs):
                self.check_entry(slot, parameter, key)
        for key in self.state:
            if key not in self.used:
                self.problem(str(key), "is in the state, but in none of its param_groups")
        self.finish()

    @property
    def who(self) -> str:
        return f"{type(self.optimizer).__name__}.load_state_dict"

    def problem(self, name: str, text: str) -> None:
        self.problems.append((name, text))

    def finish(self) -> None:
        if self.problems:
            error = ArgumentError(f"{self.who}: nothing was loaded.\n  " + "\n  ".join(f"{name}: {text}" for name, text in self.problems))
            error.mismatches = tuple(self.problems)
            raise error

    def check_settings(self, number: int, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        where = f"param_groups[{number}]"
        rate = _number(theirs.get("lr"))
        if rate is None or not math.isfinite(rate) or rate < 0:
            self.problem(f"{where}.lr", f"{theirs.get('lr')!r} in the state; expected a finite number from 0")
        for name, value in own.items():
            if name in _FREE:
                continue
            if name not in theirs:
                self.problem(f"{where}.{name}", f"missing in the state, {value!r} here")
            elif not _same(value, theirs[name]):
                self.problem(f"{where}.{name}", f"{theirs[name]!r} in the state, {value!r} here; it is set when the optimizer is made")
        for name, value in theirs.items():
            if name in own or name in _FREE or name in _WITHOUT_EFFECT:
                continue
            if name not in _NEUTRAL or value != _NEUTRAL[name]:
                self.problem(f"{where}.{name}", f"{value!r} in the state; this rule has no such setting")

    def pairs(self, number: int, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> List[Tuple[Optional[_Slot], Tensor, Key]]:
        """Each parameter with its key: by name where the state has names and the parameters too, else by their order."""
        slots, parameters, keys = self.slots[number], own["params"], list(theirs.get("params", ()))
        self.used.update(keys)
        names = [p.name for p in parameters]
        if keys and all(isinstance(k, str) for k in keys) and all(names) and len(set(names)) == len(names):
            for name in names:
                if name not in keys:
                    self.problem(name, "missing in the state")
            for key in keys:
                if key not in names:
                    self.problem(key, f"unexpected: param_groups[{number}] here has no such parameter")
            return [(s, p, p.name) for s, p in zip(slots, parameters) if p.name in keys]
        if len(keys) != len(parameters):
            self.problem(f"param_groups[{number}].params", f"{len(keys)} parameters in the state, {len(parameters)} here")
            return []
        return list(zip(slots, parameters, keys))

    def check_entry(self, slot: Optional[_Slot], parameter: Tensor, key: Key) -> None:
        entry = {name: value for name, value in (self.state.get(key) or {}).items() if value is not None}
        if slot is None:
            if entry:
                self.problem(parameter.name or f"parameter {key}", "has state, but is not trained here")
            return
        if not entry or (set(entry) == {"step"} and not slot.needed and not slot.optional):
            self.entries.append((slot, 0, {}))
            return
        before = len(self.problems)
        counts = self.optimizer._counts_steps
        for name in (*(("step",) if counts else ()), *slot.needed):
            if name not in entry:
                self.problem(f"{slot.label}.{name}", "missing in the state")
        values = {}
        for name, value in entry.items():
            if name == "step":
                continue
            if name not in slot.needed and name not in slot.optional:
                self.problem(f"{slot.label}.{name}", "unexpected: this rule keeps none")
                continue
            shape = getattr(value, "shape", None)
            if shape is None or tuple(shape) != slot.parameter.shape:
                self.problem(f"{slot.label}.{name}", f"{'no tensor' if shape is None else list(shape)} in the state, {list(slot.parameter.shape)} here")
            elif not _is_floating(value):
                self.problem(f"{slot.label}.{name}", f"{value.dtype} in the state; expected floating point")
            values[name] = value
        steps = _number(entry["step"]) if "step" in entry else 1.0
        if steps is None or not (0 <= steps <= _MOST_STEPS and steps == int(steps)):
            self.problem(f"{slot.label}.step", f"{entry['step']!r} in the state; expected a whole number from 0 to 2^31 - 2")
        elif len(self.problems) == before:
            self.entries.append((slot, int(steps), values))

    def run(self) -> None:
        # All that may fail for want of memory comes first.
        made: List[Tuple[_Slot, Dict[str, Tensor]]] = []
        kept: Dict[int, Tuple[_Part, Any]] = {}
        for slot, steps, values in self.entries:
            own = {name: as_host_tensor(value, slot.parameter._ctx) for name, value in values.items()}
            made.append((slot, own))
            kept.setdefault(id(slot.part), (slot.part, _steps(slot.part)))[1][slot.place] = steps
        for part, counts in kept.values():
            check(lib.gt_optimizer_steps_set(part._live(), counts), part._ctx)
        for slot, own in made:
            for name in (*slot.needed, *slot.optional):
                value = own.get(name)
                handle = None if value is None else value._h
                check(lib.gt_optimizer_state_set(slot.part._live(), slot.place, name.encode(), handle), slot.parameter._ctx)
        for group, theirs in zip(self.optimizer.param_groups, self.groups):
            group["lr"] = _number(theirs["lr"])
            for name in ("initial_lr", "name"):
                if name in theirs:
                    dict.__setitem__(group, name, theirs[name])


def load(optimizer: Optimizer, state: Any) -> None:
    """See Optimizer.load_state_dict."""
    _Plan(optimizer, state).run()


def _number(value: Any) -> Optional[float]:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, (tuple, list)):
        return isinstance(theirs, (tuple, list)) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    number = _number(theirs)
    return number is not None and float(ours) == number


def _is_floating(value: Any) -> bool:
    kind = value.dtype
    own = getattr(kind, "is_floating_point", None)
    return bool(own) if own is not None else getattr(kind, "kind", "") == "f"
