"""Layers and containers, with PyTorch's names, arguments and defaults."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Iterator, Optional

from .. import _api
from .._context import context_for
from .._errors import ArgumentError, StateError, check
from .._library import lib, options
from .._signals import callbacks
from . import functional as F
from .functional import pair, pool_options
from .module import Module

if TYPE_CHECKING:
    from .._tensor import Tensor
    from .._typing import DeviceLike, DtypeLike, IntPair, Shape


class LibraryModule(Module):
    """A module that the library made and runs."""

    _is_python = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise TypeError(f"{type(self).__name__} is made by the library")

    def _make(self, device, function, *arguments):
        ctx = context_for(device)
        self._set(ctx, function(ctx._live(), *arguments))


class Linear(LibraryModule):
    """input [..., in_features] to [..., out_features]: input weight^T + bias. weight [out, in] and bias [out] (None with bias=False) start as
    U(-1/sqrt(in), 1/sqrt(in)). dtype: float32 by default."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, device: DeviceLike = None, dtype: DtypeLike = None) -> None:
        o = options("gt_nn_linear_options")
        o.bias = bool(bias)
        self._make(device, lib.gt_nn_linear, in_features, out_features, ctypes.byref(o))
        self.to(dtype=dtype)

    in_features = property(lambda self: self.weight.shape[1], doc="The length of an input's last axis.")
    out_features = property(lambda self: self.weight.shape[0], doc="The length of the result's last axis.")
    bias = property(lambda self: self._tensor("bias"), doc="[out_features], or None.")


class Conv2d(LibraryModule):
    """input [N, in_channels, H, W], kernels weight [out_channels, in_channels / groups, kh, kw] and bias [out_channels] (None with bias=False).
    kernel_size, stride, padding (zeros on both sides, or "same" or "valid") and dilation: a number, or (vertical, horizontal). padding_mode: "zeros"
    alone. dtype: float32 by default."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntPair, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", *, device: DeviceLike = None,
        dtype: DtypeLike = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ArgumentError(f"Conv2d: padding_mode {padding_mode!r}: only 'zeros'")
        kernel, dilation = pair(kernel_size), pair(dilation)
        if padding == "valid":
            padding = 0
        elif padding == "same":
            if pair(stride) != (1, 1) or any(d * (k - 1) % 2 for k, d in zip(kernel, dilation)):
                raise ArgumentError("Conv2d: padding 'same' needs stride 1 and a kernel of odd extent")
            padding = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation))
        o = options("gt_nn_conv2d_options")
        o.bias, o.groups = bool(bias), groups
        o.kernel[:], o.stride[:], o.padding[:], o.dilation[:] = kernel, pair(stride), pair(padding), dilation
        self._make(device, lib.gt_nn_conv2d, in_channels, out_channels, kernel[0], ctypes.byref(o))
        self.to(dtype=dtype)

    out_channels = property(lambda self: self.weight.shape[0], doc="The channels of the result.")
    bias = property(lambda self: self._tensor("bias"), doc="[out_channels], or None.")


class _BatchNorm(LibraryModule):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True, *, device: DeviceLike = None
    ) -> None:
        o = options("gt_nn_batch_norm_options")
        o.affine, o.track_running_stats, o.epsilon, o.momentum = bool(affine), bool(track_running_stats), eps, momentum
        self._make(device, lib.gt_nn_batch_norm, num_features, ctypes.byref(o))

    weight = property(lambda self: self._tensor("weight"), doc="[num_features], 1 at first; None with affine=False.")
    bias = property(lambda self: self._tensor("bias"), doc="[num_features], 0 at first; None with affine=False.")
    running_mean = property(lambda self: self._tensor("running_mean"), doc="[num_features], 0 at first; None with track_running_stats=False.")
    running_var = property(lambda self: self._tensor("running_var"), doc="[num_features], 1 at first; None with track_running_stats=False.")

    @property
    def num_batches_tracked(self) -> Any:
        """How many batches the running statistics have seen, an int64 scalar; None without them."""
        return dict(self.named_buffers()).get("num_batches_tracked")


class BatchNorm1d(_BatchNorm):
    """Inputs [N, C], normalised for each of the C = num_features channels; see BatchNorm2d for the arguments."""


class BatchNorm2d(_BatchNorm):
    """Inputs [N, C, H, W], normalised for each of the C = num_features channels: in training with the batch's mean and variance, towards which the running ones
    move by `momentum`; in evaluation with the running ones (with track_running_stats=False always with the batch's). affine: with weight and bias. `eps` is added
    to the variance."""


class LayerNorm(LibraryModule):
    """Normalises over the last axes, whose lengths are normalized_shape (a number or several). elementwise_affine: with weight 1 and bias 0 of that
    shape. `eps` is added to the variance."""

    def __init__(self, normalized_shape: Shape, eps: float = 1e-5, elementwise_affine: bool = True, *, device: DeviceLike = None) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        o = options("gt_nn_layer_norm_options")
        o.affine, o.epsilon = bool(elementwise_affine), eps
        self._make(device, lib.gt_nn_layer_norm, len(shape), (ctypes.c_int64 * len(shape))(*shape), ctypes.byref(o))

    weight = property(lambda self: self._tensor("weight"), doc="Of normalized_shape, 1 at first; None without elementwise_affine.")
    bias = property(lambda self: self._tensor("bias"), doc="Of normalized_shape, 0 at first; None without elementwise_affine.")


class Embedding(LibraryModule):
    """Integer indices of any shape [...] to [..., embedding_dim]: rows of weight [num_embeddings, embedding_dim], which starts as N(0, 1)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_embedding, num_embeddings, embedding_dim)

    num_embeddings = property(lambda self: self.weight.shape[0], doc="Indices are below it.")
    embedding_dim = property(lambda self: self.weight.shape[1], doc="The length of a row.")


class Identity(LibraryModule):
    """Takes any arguments, so that it can stand in for another layer."""

    def __init__(self, *arguments: Any, device: DeviceLike = None, **named: Any) -> None:
        self._make(device, lib.gt_nn_identity)


class ReLU(LibraryModule):
    """`inplace` is accepted and makes no difference: a layer before it runs with it as one op."""

    def __init__(self, inplace: bool = False, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_relu)


class GELU(LibraryModule):
    """x Phi(x); approximate="tanh": by its tanh approximation, as in GPT-2."""

    def __init__(self, approximate: str = "none", *, device: DeviceLike = None) -> None:
        if approximate not in ("none", "tanh"):
            raise ArgumentError(f"GELU: approximate {approximate!r}: give 'none' or 'tanh'")
        self._make(device, lib.gt_nn_gelu, approximate == "tanh")


class SiLU(LibraryModule):
    """x sigmoid(x). `inplace` is accepted and makes no difference."""

    def __init__(self, inplace: bool = False, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_silu)


class Tanh(LibraryModule):
    """The hyperbolic tangent."""

    def __init__(self, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_tanh)


class Sigmoid(LibraryModule):
    """1 / (1 + e^-x)."""

    def __init__(self, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_sigmoid)


class MaxPool2d(LibraryModule):
    """The largest element of each window of [N, C, H, W]. kernel_size, stride (None: the kernel's size) and padding (at most half the kernel): a number,
    or (vertical, horizontal)."""

    def __init__(self, kernel_size: IntPair, stride: Any = None, padding: Any = 0, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_max_pool2d, pair(kernel_size)[0], ctypes.byref(pool_options(kernel_size, stride, padding)))


class AvgPool2d(LibraryModule):
    """The mean of each window of [N, C, H, W]. kernel_size, stride (None: the kernel's size) and padding: a number, or (vertical, horizontal).
    count_include_pad: padding counts as zeros."""

    def __init__(self, kernel_size: IntPair, stride: Any = None, padding: Any = 0, count_include_pad: bool = True, *, device: DeviceLike = None) -> None:
        o = pool_options(kernel_size, stride, padding, count_include_pad)
        self._make(device, lib.gt_nn_avg_pool2d, pair(kernel_size)[0], ctypes.byref(o))


class AdaptiveAvgPool2d(LibraryModule):
    """Means over windows that divide [N, C, H, W] into output_size: a number, or (height, width)."""

    def __init__(self, output_size: IntPair, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_adaptive_avg_pool2d, *pair(output_size))


class Dropout(LibraryModule):
    """In training each element is 0 with probability `p`, else divided by 1 - p. `inplace` is accepted and makes no difference."""

    def __init__(self, p: float = 0.5, inplace: bool = False, *, device: DeviceLike = None) -> None:
        self._make(device, lib.gt_nn_dropout, p)


class Flatten(LibraryModule):
    """The axes from start_dim on as one: [N, C, H, W] to [N, C*H*W]. end_dim must be -1."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1, *, device: DeviceLike = None) -> None:
        if end_dim != -1:
            raise ArgumentError("Flatten: end_dim must be -1; use Tensor.flatten for another")
        self._make(device, lib.gt_nn_flatten, start_dim)


class Softmax(Module):
    """e^x over its sum along axis `dim`."""

    def __init__(self, dim: int = -1, *, device: DeviceLike = None) -> None:
        super().__init__(device=device)
        self.dim = dim

    def forward(self, input: Tensor) -> Any:
        """input of any shape that has the axis; the result has the same."""
        return F.softmax(input, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of softmax along axis `dim`, without its loss of precision."""

    def forward(self, input: Tensor) -> Any:
        """input of any shape that has the axis; the result has the same."""
        return F.log_softmax(input, self.dim)


# --- losses: functions with settings, so that they are called without the ways of a module


class CrossEntropyLoss(Module):
    """Cross entropy of logits and class numbers. weight [classes]: of each class, or None; ignore_index: labels that do not count; reduction: "mean",
    "sum" or "none"; label_smoothing in [0, 1]. Half-precision logits give a float32 loss."""

    def __init__(
        self, weight: Optional[Tensor] = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, *, device: DeviceLike = None
    ) -> None:
        super().__init__(device=device)
        self.register_buffer("weight", weight, persistent=False)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """input [N, classes] and integer labels [N]; or [N, classes, ...] and [N, ...]."""
        return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)

    __call__ = forward


class MSELoss(Module):
    """Squared differences; reduction: "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean", *, device: DeviceLike = None) -> None:
        super().__init__(device=device)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """input and target of one shape."""
        return F.mse_loss(input, target, self.reduction)

    __call__ = forward


# --- containers


class Sequential(LibraryModule):
    """Runs its children in turn. A linear, conv2d or batch norm followed by ReLU runs as one op. From modules, a dictionary of them, or pairs."""

    def __init__(self, *modules: Any, device: DeviceLike = None) -> None:
        named = isinstance(modules[0], dict) if len(modules) == 1 else False
        parts = list(modules[0].items()) if named else [(str(i), m) for i, m in enumerate(modules)]
        ctx = parts[0][1]._ctx if parts and device is None else context_for(device)
        self._set(ctx, lib.gt_nn_sequential(ctx._live()))
        for name, module in parts:
            self.add_module(name, module)

    def _library_add(self, name, module):
        if not name or "." in name:
            raise ArgumentError(f"Sequential: the name {name!r} is empty or has a dot")
        return lib.gt_nn_sequential_add_named(self._h, name.encode(), module._h)

    def _names(self):
        return [name for name, _ in self.named_children()]

    def append(self, module: Module) -> Sequential:
        """Adds a child at the end, named by the next number; returns the Sequential."""
        numbers = [int(n) for n in self._names() if n.isdigit()]
        self.add_module(str(max(numbers, default=-1) + 1), module)
        return self

    def set_segments(self, segments: int) -> Sequential:
        """Cuts the children into as many segments that backward computes again; 0: none."""
        if segments:
            self._tree.kept = callbacks.used = True
        check(lib.gt_nn_sequential_set_segments(self._h, segments))
        return self

    def __len__(self) -> int:
        return lib.gt_module_child_count(self._h)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: Any) -> Any:
        children = list(self.children())
        if isinstance(index, slice):
            raise StateError("a slice of a Sequential would share its children; a module has one place in one tree")
        return children[index]

    def __setitem__(self, index: Any, module: Module) -> None:
        self._replace(self._names()[index], module)

    def __setattr__(self, name: str, value: Any) -> Any:
        if isinstance(value, Module) and self._h is not None:
            self.add_module(name, value)
        else:
            super().__setattr__(name, value)


class ModuleList(Module):
    """Modules in a list; without a forward. `modules`: any iterable of them."""

    def __init__(self, modules: Any = (), *, device: DeviceLike = None) -> None:
        modules = list(modules)
        super().__init__(device=modules[0]._ctx if modules and device is None else device)
        self.extend(modules)

    def append(self, module: Module) -> Any:
        """Adds a module at the end; returns the list."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Any) -> Any:
        """Adds several modules at the end; returns the list."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Any:
        return iter(list(self._children.values()))

    def __getitem__(self, index: Any) -> Any:
        return list(self._children.values())[index]

    def __setitem__(self, index: Any, module: Module) -> Any:
        self.add_module(str(range(len(self))[index]), module)


class ModuleDict(Module):
    """Modules by name; without a forward. `modules`: a dictionary, or pairs."""

    def __init__(self, modules: Any = (), *, device: DeviceLike = None) -> None:
        modules = dict(modules)
        super().__init__(device=next(iter(modules.values()))._ctx if modules and device is None else device)
        for name, module in modules.items():
            self.add_module(name, module)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Any:
        return iter(list(self._children))

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def __getitem__(self, name: str) -> Any:
        return self._children[name]

    def __setitem__(self, name: str, module: Module) -> Any:
        self.add_module(name, module)

    def keys(self) -> Any:
        """The names."""
        return self._children.keys()

    def values(self) -> Any:
        """The modules."""
        return self._children.values()

    def items(self) -> Any:
        """Pairs of name and module."""
        return self._children.items()


class Residual(LibraryModule):
    """activation(body(x) + shortcut(x)); activation None or "relu"."""

    def __init__(self, body: Module, shortcut: Optional[Module] = None, activation: Optional[str] = None) -> None:
        if activation not in (None, "relu"):
            raise ArgumentError(f"Residual: activation {activation!r}: give None or 'relu'")
        shortcut = Identity(device=body._ctx) if shortcut is None else shortcut
        if any(m._tree.root != m._h for m in (body, shortcut)) or body is shortcut:
            raise StateError("Residual: a module has an owner already: a module has one place in one tree")
        o = options("gt_nn_residual_options")
        o.activation = _api.GT_ACTIVATION_RELU if activation else _api.GT_ACTIVATION_NONE
        h = lib.gt_nn_residual(body._h, shortcut._h, ctypes.byref(o))
        if h is None:
            body._set_dead()
            shortcut._set_dead()
        self._set(body._ctx, h)
        self._adopt_child("body", body)
        self._adopt_child("shortcut", shortcut)


def _network(function, num_classes, device):
    net = Sequential.__new__(Sequential)
    net._make(device, function, num_classes)
    return net


def resnet18(num_classes: int = 1000, *, device: DeviceLike = None) -> Sequential:
    """For images [N, 3, H, W]; torchvision's names, so that its state dicts load."""
    return _network(lib.gt_nn_resnet18, num_classes, device)


def resnet50(num_classes: int = 1000, *, device: DeviceLike = None) -> Sequential:
    """For images [N, 3, H, W] to [N, num_classes]; torchvision's names, so that its state dicts load."""
    return _network(lib.gt_nn_resnet50, num_classes, device)


BY_KIND: Any = {c.__name__: c for c in (Linear, Conv2d, LayerNorm, Embedding, Identity, ReLU, GELU, SiLU, Tanh, Sigmoid, MaxPool2d, AvgPool2d)}
BY_KIND |= {c.__name__: c for c in (AdaptiveAvgPool2d, Dropout, Flatten, Sequential, Residual)}
BY_KIND["BatchNorm"] = _BatchNorm
