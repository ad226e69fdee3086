"""Operations as functions, with PyTorch's names, arguments and defaults."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

from .. import _api
from .._errors import ArgumentError
from .._library import lib, options
from .._tensor import Tensor, wrap
from .._tensor.elementwise import pair as _pair

if TYPE_CHECKING:
    from .._typing import IntPair, Shape

_REDUCTIONS = {"mean": _api.GT_REDUCTION_MEAN, "sum": _api.GT_REDUCTION_SUM, "none": _api.GT_REDUCTION_NONE}


def _reduction(name):
    try:
        return _REDUCTIONS[name]
    except KeyError:
        raise ArgumentError(f"reduction {name!r}: give 'mean', 'sum' or 'none'") from None


def pair(value: IntPair) -> Tuple[int, int]:
    """3 to (3, 3); (3, 5) as it is."""
    if isinstance(value, int):
        return value, value
    vertical, horizontal = value
    return int(vertical), int(horizontal)


def _h(t):
    return None if t is None else t._h


def foreign(who: str, values: Sequence[Any]) -> TypeError:
    """What to raise where one of the values should be a tensor of ours and is not."""
    kind = next((type(v) for v in values if not isinstance(v, Tensor)), Tensor)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return TypeError(f"{who}: {name} is no tensor of gtrain: gt.from_dlpack(x) takes it over without a copy, gt.tensor(x) copies it")


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`inplace` is accepted and makes no difference."""
    return wrap(input._ctx, lib.gt_relu(input._h))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x); approximate="tanh": by its tanh approximation, as in GPT-2."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate {approximate!r}: give 'none' or 'tanh'")
    return wrap(input._ctx, (lib.gt_gelu if approximate == "none" else lib.gt_gelu_tanh)(input._h))


def silu(input: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return wrap(input._ctx, lib.gt_silu(input._h))


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, element by element."""
    return wrap(input._ctx, lib.gt_tanh(input._h))


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e^-x), element by element."""
    return wrap(input._ctx, lib.gt_sigmoid(input._h))


def softmax(input: Tensor, dim: int = -1) -> Tensor:
    """e^x over its sum along axis `dim`."""
    return wrap(input._ctx, lib.gt_softmax(input._h, dim))


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of softmax along axis `dim`, without its loss of precision."""
    return wrap(input._ctx, lib.gt_log_softmax(input._h, dim))


def linear(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """input [..., in], weight [out, in], bias [out] or None: input weight^T + bias, [..., out]."""
    return wrap(input._ctx, lib.gt_linear(input._h, weight._h, _h(bias)))


def conv2d(
    input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """input [N, C, H, W], weight [out, C / groups, kh, kw], bias [out] or None: cross-correlation. stride, padding (zeros on both sides) and dilation: a
    number, or (vertical, horizontal)."""
    o = options("gt_conv2d_options")
    o.stride[:], o.padding[:], o.dilation[:], o.groups = pair(stride), pair(padding), pair(dilation), groups
    return wrap(input._ctx, lib.gt_conv2d(input._h, weight._h, _h(bias), ctypes.byref(o)))


def pool_options(kernel_size: IntPair, stride: Any, padding: Any, count_include_pad: bool = True) -> Any:
    """The library's options of a pooling."""
    o = options("gt_pool2d_options")
    o.kernel[:], o.padding[:], o.count_include_pad = pair(kernel_size), pair(padding), bool(count_include_pad)
    if stride is not None:
        o.stride[:] = pair(stride)
    return o


def max_pool2d(input: Tensor, kernel_size: IntPair, stride: Any = None, padding: Any = 0) -> Tensor:
    """The largest element of each window of input [N, C, H, W]. kernel_size, stride (None: the kernel's size) and padding: a number, or (vertical,
    horizontal). Equal ones: the gradient goes to the first."""
    return wrap(input._ctx, lib.gt_max_pool2d(input._h, ctypes.byref(pool_options(kernel_size, stride, padding))))


def avg_pool2d(input: Tensor, kernel_size: IntPair, stride: Any = None, padding: Any = 0, count_include_pad: bool = True) -> Tensor:
    """The mean of each window of input [N, C, H, W], with arguments as in max_pool2d. count_include_pad: padding counts as zeros."""
    return wrap(input._ctx, lib.gt_avg_pool2d(input._h, ctypes.byref(pool_options(kernel_size, stride, padding, count_include_pad))))


def adaptive_avg_pool2d(input: Tensor, output_size: IntPair) -> Tensor:
    """Means over windows that divide input [N, C, H, W] into output_size: a number, or (height, width)."""
    return wrap(input._ctx, lib.gt_adaptive_avg_pool2d(input._h, *pair(output_size)))


def batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """input [N, C] or [N, C, H, W], normalised for each channel: in training with the batch's mean and variance, towards which running_mean and
    running_var [C] move by `momentum`; else with these. weight and bias [C] or both None; `eps` is added to the variance. Statistics are float32 in half
    precision."""
    return wrap(input._ctx, lib.gt_batch_norm(input._h, _h(weight), _h(bias), _h(running_mean), _h(running_var), bool(training), momentum, eps))


def layer_norm(input: Tensor, normalized_shape: Shape, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """input normalised over its last axes, whose lengths are normalized_shape, as are weight's and bias's (or both None); `eps` is added to the variance."""
    axes = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if input.shape[-axes:] != shape:
        raise ArgumentError(f"layer_norm: the input {list(input.shape)} does not end in {list(shape)}")
    return wrap(input._ctx, lib.gt_layer_norm(input._h, _h(weight), _h(bias), axes, eps))


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element is 0 with probability `p`, else divided by 1 - p; the input itself where training is false."""
    return wrap(input._ctx, lib.gt_dropout(input._h, p, bool(training)))


def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` [rows, width] by integer indices of any shape: [...] to [..., width]."""
    return wrap(input._ctx, lib.gt_embedding(weight._h, input._h))


def cross_entropy(
    input: Tensor, target: Tensor, weight: Optional[Tensor] = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """input [N, classes] and integer labels [N]; or [N, classes, ...] and [N, ...]."""
    if weight is None and ignore_index == -100 and reduction == "mean" and not label_smoothing:
        o = None
    else:
        o = options("gt_cross_entropy_options")
        o.reduction, o.ignore_label, o.label_smoothing, o.class_weights = _reduction(reduction), ignore_index, label_smoothing, _h(weight)
        o = ctypes.byref(o)
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        raise foreign("cross_entropy", (input, target))
    shape = target.shape
    if len(shape) > 1:
        input = input.flatten(2).transpose(1, 2).flatten(0, 1)
        target = target.reshape(-1)
    loss = wrap(input._ctx, lib.gt_cross_entropy(input._h, target._h, o))
    return loss.reshape(shape) if reduction == "none" and len(shape) > 1 else loss


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared differences of two tensors of one shape: reduction "mean", "sum" or "none"."""
    return wrap(input._ctx, lib.gt_mse_loss(input._h, target._h, _reduction(reduction)))


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute differences of two tensors of one shape: reduction "mean", "sum" or "none"."""
    difference = (input - target).abs()
    return {"mean": difference.mean, "sum": difference.sum, "none": lambda: difference}[reduction]()


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """`pad` as in PyTorch: (before, after) of the last axis, then of the one before it, and so on. Filled with `value`."""
    if mode != "constant":
        raise ArgumentError(f"pad: mode {mode!r}: only 'constant'")
    n = input.ndim
    if len(pad) % 2 or len(pad) > 2 * n:
        raise ArgumentError(f"pad: {len(pad)} numbers for a tensor with {n} axes")
    before, after = (ctypes.c_int64 * n)(), (ctypes.c_int64 * n)()
    for i in range(len(pad) // 2):
        before[n - 1 - i], after[n - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return wrap(input._ctx, lib.gt_pad(input._h, before, after, value))


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of two elements, with broadcasting; NaN if either is NaN."""
    return _pair(lib.gt_maximum, a, b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of two elements, with broadcasting; NaN if either is NaN."""
    return _pair(lib.gt_minimum, a, b)


_HELPERS = (foreign, pair, pool_options)
__all__ = [name for name, value in globals().items() if not name.startswith("_") and getattr(value, "__module__", None) == __name__ and value not in _HELPERS]
