"""Modules: layers of the library, and your own by subclassing Module, as in PyTorch.

Every module has a counterpart in the library, so that errors and memory reports name its path and the trainer, windows and checkpointing know
it. A tree of modules has one owner there, its root; here the Python objects of one tree share the object that destroys the root.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .. import _api
from .._context import Callback, context_for, finish
from .._dtypes import as_dtype
from .._errors import ArgumentError, NotFoundError, NotSupportedError, ShapeError, StateError, carry, check, failure
from .._library import lib, options
from .._signals import callbacks
from .._tensor import Parameter, Tensor, borrow, handles, wrap
from .functional import foreign

if TYPE_CHECKING:
    from .._typing import DeviceLike, DtypeLike

_get_ident = threading.get_ident
_modules: Any = weakref.WeakValueDictionary()  # by number: modules whose forward is Python's
_numbers = itertools.count(1)


class IncompatibleKeys(NamedTuple):
    """What load_state_dict left as it was, and what it had no place for."""

    missing_keys: List[str]
    unexpected_keys: List[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class _Tree:
    """Owns the root of a tree in the library."""

    __slots__ = ("ctx", "root", "kept")

    def __init__(self, ctx, root):
        self.ctx, self.root, self.kept = ctx, root, False

    def __del__(self, _destroy=lib.gt_module_destroy, _get_ident=_get_ident, _getpid=os.getpid):
        try:
            if self.root is None:
                return
            if self.kept:
                # A record of a checkpointed forward may run it again: it stays until the context goes.
                self.ctx._own(self.root, _destroy)
            elif self.ctx._thread == _get_ident():
                _destroy(self.root)
            else:
                self.ctx._garbage.append((_destroy, self.root))
        except Exception:  # the interpreter is going
            pass


class _Call:
    """A Python module that is being called from Python: its arguments as they are, and what it returned."""

    __slots__ = ("arguments", "named", "result")
    arguments: Any
    named: Any
    result: Any


@_api.gt_nn_forward_fn
def _forward(number, handle, inputs, count):
    try:
        module = _modules.get(number)
        if module is None:
            raise StateError("the Python object of this module is gone; keep it, or its root, while the module is used")
        ctx = module._ctx
        call, module._call = module._call, None
        result = None
        with Callback(ctx):
            if call is not None:
                call.result = result = module.forward(*call.arguments, **call.named)
            else:
                result = module.forward(*[borrow(ctx, inputs[i]) for i in range(count)])
            first = result if isinstance(result, Tensor) else _first_tensor(result)
            if first is None:
                raise TypeError(f"{type(module).__name__}.forward returned {type(result).__name__}, which has no tensor")
            if call is None and not isinstance(result, Tensor):
                raise TypeError(f"{type(module).__name__}.forward returned {type(result).__name__}; inside a layer of the library it must return one tensor")
            result = first
        if not isinstance(result, Tensor):
            return None
        # Held by the library's scope, which outlives the Python object.
        check(lib.gt_scope_begin(ctx._h))
        return lib.gt_scope_return(ctx._h, result._h)
    except BaseException as error:
        carry(error)
        return None


def _first_tensor(value):
    if isinstance(value, Tensor):
        return value
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((found for found in map(_first_tensor, values) if found is not None), None)


class Module:
    """Base of all modules. Subclass it, make layers and parameters attributes in __init__ after super().__init__(), and compute in forward."""

    _h: Any = None
    _tree: Any = None
    _call: Any = None
    _is_python = True

    def __init__(self, *, device: DeviceLike = None) -> None:
        ctx = context_for(device)
        o = options("gt_nn_custom_options")
        number = next(_numbers)
        o.n_inputs, o.kind, o.user, o.forward = 0, type(self).__name__.encode(), number, _forward
        _modules[number] = self
        self._set(ctx, lib.gt_nn_custom(ctx._live(), ctypes.byref(o)))

    def _set(self, ctx, handle, tree=None):
        """Binds this object to a module of the library."""
        if handle is None:
            raise failure(ctx)
        d = self.__dict__
        d["_ctx"], d["_h"] = ctx, handle
        d["_tree"] = _Tree(ctx, handle) if tree is None else tree
        d["_children"] = {}
        d["_own"] = {}  # parameters and buffers given here, and those that are None

    # --- running

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self._h is None:
            raise StateError(f"{type(self).__name__}.__init__ did not call super().__init__()")
        ctx = self._ctx
        if not self._is_python:
            if named:
                return self.forward(*inputs, **named)
            try:
                h = lib.gt_module_forward(self._h, inputs[0]._h) if len(inputs) == 1 else lib.gt_module_forward_many(self._h, handles(inputs), len(inputs))
            except AttributeError:
                raise foreign(type(self).__name__, inputs) from None
            if h is None:
                raise failure(ctx)
            return wrap(ctx, h)
        tensors = [a for a in inputs if isinstance(a, Tensor)]
        if not tensors:
            return self.forward(*inputs, **named)
        checkpointed = self._tree.kept and self.checkpointing
        if checkpointed and (named or len(tensors) != len(inputs)):
            raise ArgumentError(f"{type(self).__name__} is checkpointed: its forward takes tensors alone; wrap the call in gt.checkpoint instead")
        call = None
        if not checkpointed:
            call = _Call()
            call.arguments, call.named, call.result = inputs, named, None
            self.__dict__["_call"] = call
        depth, thread = ctx._depth, ctx._thread
        try:
            h = lib.gt_module_forward_many(self._h, handles(tensors), len(tensors))
        finally:
            # Ctrl-C may have come between two steps of the callback's entry.
            ctx._depth, ctx._thread = depth, thread
            self.__dict__["_call"] = None
        if h is None:
            raise failure(ctx)
        if call is None:
            return wrap(ctx, h)
        if isinstance(call.result, Tensor) and call.result._h != h:
            return wrap(ctx, h)
        if not ctx._depth:
            lib.gt_tensor_release(h)  # the result in `call` is ours already
        return call.result

    def forward(self, *inputs: Any) -> Any:
        """Computes the module's result from its inputs; subclasses define it. Call the module itself, not this."""
        if self._is_python:
            raise NotSupportedError(f"{type(self).__name__} has no forward")
        return self(*inputs)

    # --- registration

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") and name in _PRIVATE:
            self.__dict__[name] = value
            return
        if isinstance(value, Module):
            self._require_made()
            if name in self._own:
                self._remove_own(name)
            self.add_module(name, value)
        elif isinstance(value, Parameter):
            self._require_made()
            self.register_parameter(name, value)
            self.__dict__.pop(name, None)
        elif self._h is not None and name in self._children:
            if value is not None:
                raise TypeError(f"{name!r} is a module; it can be replaced by a module or None, not by {type(value).__name__}")
            self.add_module(name, None)
        elif self._h is not None and name in self._own:
            if value is None:
                self._remove_own(name)
                self._own[name] = None
            elif isinstance(value, Tensor) and self._own[name] is not None and not isinstance(self._own[name], Parameter):
                self._own[name].copy_(value)  # a buffer keeps its handle
            else:
                raise TypeError(f"{name!r} is a parameter or buffer: write into it with copy_, or assign None")
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # Only for what the object itself does not have.
        if self._h is not None and not name.startswith("__"):
            own = self.__dict__["_own"]
            if name in own:
                return own[name]
            child = self._child(name)
            if child is not None:
                return child
            found = self._tensor(name)
            if found is not None:
                return found
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if self._h is not None and name not in _PRIVATE and self._child(name) is not None:
            self._replace(name, None)
        else:
            object.__delattr__(self, name)

    def __dir__(self) -> Any:
        return [*object.__dir__(self), *self._own, *(n for n, _ in self.named_children())]

    def _require_made(self):
        if self._h is None:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before giving it modules or parameters")

    def add_module(self, name: str, module: Optional[Module]) -> None:
        """Registers a child; one of that name is replaced."""
        if module is None:
            if self._child(name) is not None:
                self._replace(name, None)
            self.__dict__[name] = None
            return
        if module._tree.root != module._h:
            raise StateError(f"{type(self).__name__}: the module {name!r} has an owner already: a module has one place in one tree")
        if self._child(name) is not None:
            self._replace(name, module)
            return
        self._attach(name, module)

    register_module = add_module

    def _attach(self, name, module):
        if module._tree is self._tree:
            raise StateError(f"{type(self).__name__}: {name!r} cannot be inside itself")
        status = self._library_add(name, module)
        if status:
            module._set_dead()  # the library has destroyed it
            raise failure(self._ctx, status)
        self._adopt_child(name, module)

    def _library_add(self, name, module):
        # The library destroys a child that it cannot take, and the container refuses to run from then on: so what can be wrong is asked before.
        if not name or "." in name:
            raise ArgumentError(f"{type(self).__name__}: the name {name!r} is empty or has a dot")
        if module._ctx is not self._ctx:
            from .._errors import DeviceError

            raise DeviceError(f"{type(self).__name__}: the module {name!r} belongs to another context")
        if not self._is_python:
            raise StateError(f"{type(self).__name__} takes no children")
        if self._tensor(name) is not None:
            raise ArgumentError(f"{type(self).__name__} has a tensor named {name!r} already")
        return lib.gt_module_add_child(self._h, name.encode(), module._h)

    def _adopt_child(self, name, module):
        old = module._tree
        self._children[name] = module
        if self._is_python:
            self.__dict__[name] = module  # found at once
        self._tree.kept |= old.kept
        module._set_tree(self._tree)
        old.root = None

    def _set_tree(self, tree):
        self.__dict__["_tree"] = tree
        for child in self._children.values():
            child._set_tree(tree)

    def _set_dead(self):
        self._tree.root = None
        self.__dict__["_h"] = None
        for child in self._children.values():
            child._set_dead()

    def _replace(self, name, module):
        if module is not None and (module._tree.root != module._h or module._tree is self._tree):
            raise StateError(f"{type(self).__name__}: the module {name!r} has an owner already: a module has one place in one tree")
        removed = ctypes.c_void_p()
        check(lib.gt_module_replace_child(self._h, name.encode(), None if module is None else module._h, ctypes.byref(removed)), self._ctx)
        tree = _Tree(self._ctx, removed.value)
        tree.kept = self._tree.kept
        old = self._children.pop(name, None)
        self.__dict__.pop(name, None)
        if old is not None:
            old._set_tree(tree)
        if module is not None:
            self._adopt_child(name, module)

    def register_parameter(self, name: str, parameter: Optional[Parameter], keep_f32: bool = False) -> None:
        """keep_f32: `.half()` leaves it float32."""
        self._require_made()
        if parameter is None:
            self._own[name] = None
            return
        if not parameter.requires_grad:
            frozen = True
        else:
            frozen = False
        if self._own.get(name) is not None:
            if self._own[name] is parameter:
                return
            raise StateError(f"{type(self).__name__} has a parameter {name!r} already; write into it with copy_")
        check(lib.gt_module_add_parameter(self._h, name.encode(), parameter._h, bool(keep_f32)), self._ctx)
        if frozen:
            parameter.requires_grad = False
        self._own[name] = parameter
        _remember(self._ctx, parameter)

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True, keep_f32: bool = False) -> None:
        """A tensor that belongs to the state but has no gradient, found as an attribute of that name. persistent=False: an attribute alone, not part of
        the state. keep_f32: `.half()` leaves it float32."""
        self._require_made()
        if tensor is None or not persistent:
            self.__dict__[name] = tensor
            return
        check(lib.gt_module_add_buffer(self._h, name.encode(), tensor._h, bool(keep_f32)), self._ctx)
        self._own[name] = tensor
        _remember(self._ctx, tensor)

    def _remove_own(self, name):
        if self._own[name] is not None:
            raise StateError(f"{type(self).__name__}: the tensor {name!r} cannot be taken out again")
        del self._own[name]

    # --- looking at it

    @property
    def context(self) -> Any:
        """The Context in which the module was made, and stays."""
        return self._ctx

    @property
    def kind(self) -> str:
        """ "Linear", or the name of the Python class."""
        return lib.gt_module_kind(self._h).decode()

    @property
    def path(self) -> str:
        """From the root: "layer1.0.conv1"; "" for the root."""
        return lib.gt_module_path(self._h).decode()

    def _child(self, name):
        """The Python object of a direct child, made if there is none yet."""
        children = self.__dict__["_children"]
        found = children.get(name)
        if found is None and not self._is_python and "." not in name:
            handle = ctypes.c_void_p()
            count = lib.gt_module_child_count(self._h)
            wanted = name.encode()
            text = ctypes.c_char_p()
            for i in range(count):
                check(lib.gt_module_child(self._h, i, ctypes.byref(text), ctypes.byref(handle)))
                if text.value == wanted:
                    found = children[name] = _wrapped(self._ctx, handle.value, self._tree)
                    break
        return found

    def named_children(self) -> Iterator[Tuple[str, Module]]:
        """Pairs of name and module, of the direct children."""
        handle = ctypes.c_void_p()
        text: Any = ctypes.c_char_p()
        names = []
        for i in range(lib.gt_module_child_count(self._h)):
            check(lib.gt_module_child(self._h, i, ctypes.byref(text), ctypes.byref(handle)))
            names.append(text.value.decode())
        for name in names:
            yield name, self._child(name)

    def children(self) -> Iterator[Module]:
        """The direct children."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[Tuple[str, Module]]:
        """Pairs of dotted name and module, of this one ("") and all below it, parents first; `prefix` stands before each name."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix and name else prefix or name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, parents first."""
        return (m for _, m in self.named_modules())

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted path below this one ("layer1.0.conv1"); "" is the module itself."""
        module = self
        for name in target.split(".") if target else ():
            child = module._child(name)
            if child is None:
                raise NotFoundError(f"{type(self).__name__} has no module {target!r}")
            module = child
        return module

    def _tensor(self, name):
        """A parameter or buffer by its dotted name, or None."""
        handle = ctypes.c_void_p()
        status = lib.gt_module_find(self._h, name.encode(), ctypes.byref(handle))
        return _known(self._ctx, handle.value) if status == 0 and handle.value else None

    def _listed(self, count, get, kind):
        handle = ctypes.c_void_p()
        text: Any = ctypes.c_char_p()
        for i in range(count(self._h)):
            check(get(self._h, i, ctypes.byref(text), ctypes.byref(handle)), self._ctx)
            yield text.value.decode(), _known(self._ctx, handle.value, kind)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: Any = True) -> Iterator[Tuple[str, Parameter]]:
        """Pairs of dotted name and Parameter, of all below, or with recurse=False of this module alone. Tied weights come once, under their first name,
        unless remove_duplicate is False. `prefix` stands before each name."""
        seen = set()
        for name, p in list(self._listed(lib.gt_module_parameter_count, lib.gt_module_parameter, Parameter)):
            if (recurse or "." not in name) and not (remove_duplicate and p._h in seen):
                seen.add(p._h)
                yield (f"{prefix}.{name}" if prefix else name), p

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of all below, tied ones once; with recurse=False of this module alone."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, recurse: bool = True) -> Iterator[Tuple[str, Tensor]]:
        """Pairs of dotted name and tensor, of the buffers below, or with recurse=False of this module alone."""
        for name, b in list(self._listed(lib.gt_module_buffer_count, lib.gt_module_buffer, None)):
            if recurse or "." not in name:
                yield name, b

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of all below; with recurse=False of this module alone."""
        return (b for _, b in self.named_buffers(recurse))

    def num_parameters(self) -> builtins.int:
        """Elements of all parameters, tied ones once."""
        elements = ctypes.c_int64()
        check(lib.gt_module_size(self._h, ctypes.byref(elements), None))
        return elements.value

    def extra_repr(self) -> str:
        """What a subclass wants shown behind its name; nothing by default."""
        return ""

    def __repr__(self) -> str:
        needed = ctypes.c_size_t()
        check(lib.gt_module_describe(self._h, None, 0, ctypes.byref(needed)), self._ctx)
        buffer = ctypes.create_string_buffer(needed.value)
        check(lib.gt_module_describe(self._h, buffer, needed.value, None), self._ctx)
        return buffer.value.decode().rstrip("\n")

    def _repr_html_(self):
        from .._html import module_html

        return module_html(self)

    # --- state

    def state_dict(self) -> Dict[str, Tensor]:
        """Name to tensor, of parameters and buffers, sharing their memory; the names are PyTorch's."""
        out = {name: p.detach() for name, p in self.named_parameters(remove_duplicate=False)}
        out.update((name, b.detach()) for name, b in self.named_buffers())
        return out

    def load_state_dict(self, state: Any, strict: bool = True) -> IncompatibleKeys:
        """Takes the values over from tensors, NumPy arrays or PyTorch's tensors by name. Nothing is changed unless all of it fits: names (with
        `strict`) and shapes. Returns (missing_keys, unexpected_keys)."""
        own: Dict[str, Tensor] = dict(self.named_parameters(remove_duplicate=False))
        own.update(self.named_buffers())
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        problems = []
        if strict and missing:
            problems.append("missing: " + ", ".join(missing))
        if strict and unexpected:
            problems.append("unexpected: " + ", ".join(unexpected))
        for name, target in own.items():
            if name in state and tuple(state[name].shape) != target.shape:
                problems.append(f"{name}: {list(target.shape)} here, {list(state[name].shape)} in the state")
        if problems:
            raise ShapeError(f"{type(self).__name__}.load_state_dict:\n  " + "\n  ".join(problems))
        values = {name: as_host_tensor(state[name], self._ctx) for name in own if name in state}
        from ..autograd import no_grad

        with no_grad(context=self._ctx):
            for name, value in values.items():
                own[name].copy_(value)
        return IncompatibleKeys(missing, unexpected)

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled: make another one, and give it this one's state_dict()")

    # --- modes

    @property
    def training(self) -> bool:
        """Whether it is in training mode, as a new module is."""
        return bool(lib.gt_module_training(self._h))

    def train(self, mode: bool = True) -> Module:
        """Training mode, or with False evaluation: batch norm uses its running statistics and dropout passes its input on. For all below. Returns the
        module."""
        check(lib.gt_module_set_training(self._h, bool(mode)))
        return self

    def eval(self) -> Module:
        """Evaluation mode, as train(False). Returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """False freezes all parameters below."""
        check(lib.gt_module_set_trainable(self._h, bool(requires_grad)))
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of all parameters below, whatever set_to_none is."""
        check(lib.gt_module_zero_grad(self._h))

    def to(self, *targets: Any, dtype: DtypeLike = None, device: DeviceLike = None) -> Module:
        """To another dtype: parameters and statistics of norms stay float32 in half precision. A module stays on its device."""
        for target in targets:
            if isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda", "gpu", "auto"):
                device = target
            elif hasattr(target, "_live"):
                device = target
            else:
                dtype = target
        if device is not None and context_for(device) is not self._ctx:
            raise NotSupportedError(f"a module stays on its device ({self._ctx.device}); make it under gt.set_device({str(device)!r}) or `with context:`")
        if dtype is not None:
            check(lib.gt_module_to_dtype(self._h, as_dtype(dtype).code), self._ctx)
        return self

    def half(self) -> Module:
        """To float16; parameters and statistics of norms stay float32. Returns the module."""
        return self.to("float16")

    def bfloat16(self) -> Module:
        """To bfloat16; parameters and statistics of norms stay float32. Returns the module."""
        return self.to("bfloat16")

    def float(self) -> Module:
        """To float32. Returns the module."""
        return self.to("float32")

    def double(self) -> Module:
        """To float64. Returns the module."""
        return self.to("float64")

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Calls function(module) on all below, then on this one."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    @property
    def checkpointing(self) -> bool:
        """Whether backward computes this module's forward again instead of keeping its activations."""
        return bool(lib.gt_module_checkpointing(self._h))

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        self.checkpoint_(on)

    def checkpoint_(self, on: bool = True) -> Module:
        """Backward computes this module's forward again. Keep the module until then."""
        if on:
            self._tree.kept = callbacks.used = True
        check(lib.gt_module_set_checkpointing(self._h, bool(on)))
        return self


_PRIVATE = frozenset(("_h", "_tree", "_call", "_ctx", "_children", "_own"))


def as_host_tensor(value: Any, ctx: Any) -> Any:
    """A tensor on ctx from ours, NumPy's or PyTorch's."""
    from .._creation import tensor

    if isinstance(value, Tensor):
        return value.detach().to(device=ctx)
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return tensor(value.float().numpy(), dtype="bfloat16", device=ctx)
        value = value.numpy()
    return tensor(value, device=ctx)


# --- the Python objects of handles that belong to modules: one a handle, as long as somebody holds it


def _remember(ctx, tensor):
    if ctx._parameters is None:
        ctx._parameters = weakref.WeakValueDictionary()
    ctx._parameters[tensor._h] = tensor


def _known(ctx, handle, kind=None):
    if ctx._parameters is None:
        ctx._parameters = weakref.WeakValueDictionary()
    found = ctx._parameters.get(handle)
    if found is None:
        if kind is None and lib.gt_tensor_requires_grad(handle):
            kind = Parameter
        found = ctx._parameters[handle] = borrow(ctx, handle, kind)
    return found


def _wrapped(ctx, handle, tree):
    """The Python object of a module that the library made."""
    from . import layers

    kind = lib.gt_module_kind(handle).decode()
    cls = layers.BY_KIND.get(kind, layers.LibraryModule)
    module = cls.__new__(cls)
    module._set(ctx, handle, tree)
    return module


__all__ = ["Module", "Parameter", "finish"]
