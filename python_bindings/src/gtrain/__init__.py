"""gtrain: training of neural networks on NVIDIA GPUs and CPUs, by the C library libgtrain.

    import gtrain as gt
    from gtrain import nn

Names and defaults are PyTorch's where PyTorch has the thing. See README.md for a program, `help(gt.Tensor)` and the other classes for the rest.
"""

from . import (  # noqa: F401
    _library,  # noqa: F401 - first: without the library there is nothing
    amp,
    autograd,
    data,
    io,
    memory,
    nn,
    optim,
)
from ._context import (
    Context,
    cuda_is_available,
    default_context,
    manual_seed,
    set_default_context,
    set_device,
    synchronize,
)
from ._creation import (
    arange,
    as_tensor,
    cat,
    empty,
    empty_like,
    from_numpy,
    full,
    full_like,
    one_hot,
    ones,
    ones_like,
    rand,
    rand_like,
    randn,
    randn_like,
    stack,
    tensor,
    zeros,
    zeros_like,
)
from ._dlpack import from_dlpack
from ._dtypes import bfloat16, double, dtype, float, float16, float32, float64, half, int, int32, int64, long, uint8  # noqa: A004
from ._errors import (
    AbiError,
    ArgumentError,
    BatchError,
    CallbackError,
    DeviceError,
    DtypeError,
    Error,
    FileError,
    FileSystemError,
    ForkedError,
    InternalError,
    LabelError,
    LibraryError,
    NoDeviceError,
    NoGradientsError,
    NotDeterministicError,
    NotFoundError,
    NotSupportedError,
    OutOfHostMemoryError,
    OutOfMemoryError,
    SavedModifiedError,
    ShapeError,
    StateError,
    StoppedError,
    TimeoutError,  # noqa: A004
    VersionMismatchError,
    WorkerError,
)
from ._tensor import Parameter, Tensor, matmul
from .autograd import CustomOp, checkpoint, inference_mode, is_grad_enabled, no_grad, offload
from .data import Loader
from .nn.functional import gelu, log_softmax, maximum, minimum, relu, sigmoid, softmax, tanh
from .optim import Schedule
from .step import Step
from .train import FitResult, Metrics, Progress, Trainer
from .window import Window, accumulate

__version__ = _library.lib.gt_version_string().decode()


def _method(name):
    def call(input, *arguments, **named):
        return getattr(input, name)(*arguments, **named)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = getattr(Tensor, name).__doc__ or f"As Tensor.{name}."
    return call


for _name in (
    "abs add amax amin argmax chunk clamp clone div eq exp flatten log max mean min mul neg permute pow reshape rsqrt split sqrt square squeeze std sub sum "
    "transpose unsqueeze var"
).split():
    globals()[_name] = _method(_name)

__all__ = [n for n in dict(globals()) if not n.startswith("_") and n not in ("float", "int", "abs", "max", "min", "sum", "pow", "TimeoutError")]
