"""Every public name says what it is: modules, classes, functions, methods and properties have a docstring."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import gtrain

MODULES = [
    "gtrain", *sorted(m.name for m in pkgutil.walk_packages(gtrain.__path__, "gtrain.") if not any(part.startswith("_") for part in m.name.split("."))),
]  # fmt: skip


def _public(module):
    names = getattr(module, "__all__", None)
    for name in names if names is not None else [n for n in vars(module) if not n.startswith("_")]:
        value = getattr(module, name)
        # What a module has only imported is described where it is made.
        if names is not None or getattr(value, "__module__", None) == module.__name__:
            yield name, value


def _members(cls):
    """Its own and what it inherits from classes of this package."""
    seen = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("gtrain"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if inspect.isfunction(value) or isinstance(value, property):
                yield base, name, value


def _described():
    """Pairs of a name and its docstring, each once."""
    seen = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        yield module_name, module.__doc__
        for name, value in _public(module):
            if id(value) in seen or inspect.ismodule(value) or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            seen.add(id(value))
            yield f"{module_name}.{name}", value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
            if inspect.isclass(value):
                for base, member, function in _members(value):
                    if (base, member) not in seen:
                        seen.add((base, member))
                        yield f"{base.__module__}.{base.__qualname__}.{member}", function.__doc__


def test_every_public_name_has_a_docstring():
    described = dict(_described())
    missing = [name for name, doc in described.items() if not (doc or "").strip()]
    assert len(described) > 400
    assert not missing, f"{len(missing)} without a docstring:\n" + "\n".join(missing)


def test_docstrings_are_sentences():
    wrong = []
    for name, doc in _described():
        first = (doc or "").strip().split("\n\n")[0].strip()
        if first and first[-1] not in ".:?!)" and not first.endswith("::"):
            wrong.append(f"{name}: …{first[-40:]!r}")
        if re.search(r"\b(TODO|FIXME|XXX)\b", doc or ""):
            wrong.append(f"{name}: unfinished")
    assert not wrong, "\n".join(wrong)


def test_constructors_say_what_they_take():
    """Each parameter of a constructor is named in its class's docstring, unless PyTorch's class of that name has the same, as it says."""
    wrong = []
    for module_name in ("gtrain", "gtrain.nn", "gtrain.optim", "gtrain.optim.lr_scheduler", "gtrain.amp", "gtrain.data", "gtrain.window"):
        for name, cls in _public(importlib.import_module(module_name)):
            init = vars(cls).get("__init__") if inspect.isclass(cls) else None
            doc = " ".join(c.__doc__ or "" for c in cls.__mro__[:2]) if init else ""
            if init is None or issubclass(cls, (BaseException, gtrain.dtype)) or dataclasses.is_dataclass(cls) or "As torch" in doc:
                continue
            for parameter in list(inspect.signature(init).parameters.values())[1:]:
                variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                if not variable and parameter.name not in ("device", "struct", "function", "optimizer") and not re.search(rf"\b{parameter.name}\b", doc):
                    wrong.append(f"{module_name}.{name}: {parameter.name}")
    assert not wrong, "\n".join(wrong)
