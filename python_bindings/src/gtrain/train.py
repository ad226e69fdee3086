"""The trainer: fits a module from loaders, with mixed precision, accumulation, checkpointing and shrinking when memory runs out."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, Union

from . import _api
from ._context import Callback, Owned, finish
from ._errors import ArgumentError, carry, check
from ._library import lib, options
from ._signals import held, pending
from ._tensor import Tensor, borrow
from .amp import GradScaler

if TYPE_CHECKING:
    from .data import Loader
    from .nn.module import Module
    from .optim import Optimizer, Schedule

_PRECISIONS = {
    "f32": _api.GT_PRECISION_F32, "float32": _api.GT_PRECISION_F32, "f16": _api.GT_PRECISION_F16, "float16": _api.GT_PRECISION_F16,
    "bf16": _api.GT_PRECISION_BF16, "bfloat16": _api.GT_PRECISION_BF16,
}  # fmt: skip
_LOSSES = {"cross_entropy": _api.GT_LOSS_CROSS_ENTROPY, "mse": _api.GT_LOSS_MSE}


@dataclass(frozen=True)
class Metrics:
    """Over the samples that count; loss and accuracy are NaN where there is nothing to say."""

    samples: int
    correct: int
    loss: float
    accuracy: float


class Progress:
    """What callbacks get. `training` is of this epoch so far, as measured last (`measured`: at this very step)."""

    measured: bool
    epoch: int
    epochs: int
    step: int
    steps: int
    total_steps: int
    learning_rate: float
    samples_per_second: float
    seconds: float
    seconds_left: float
    memory_in_use: int
    memory_peak: int
    training: Metrics
    validation: Metrics
    updates: int
    skipped: int
    loss_scale: float
    micro_batch: int
    open_batches: int

    def __init__(self, struct: Any) -> None:
        # Only what is asked for is made: this is called at every step.
        self._struct = _api.gt_train_progress.from_buffer_copy(struct)

    def __getattr__(self, name: str) -> Any:
        if name not in Progress.__annotations__:
            raise AttributeError(f"'Progress' object has no attribute {name!r}")
        value = getattr(self._struct, name)
        if name in ("training", "validation"):
            value = _metrics(value)
        elif name == "measured":
            value = bool(value)
        self.__dict__[name] = value
        return value

    def __repr__(self) -> str:
        return "Progress(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in Progress.__annotations__) + ")"


@dataclass(frozen=True)
class FitResult:
    """`history` has the Progress of each epoch's end."""

    stopped: bool
    epochs: int
    steps: int
    seconds: float
    training_seconds: float
    samples_per_second: float
    training: Metrics
    validation: Metrics
    history: tuple = field(repr=False)

    def _repr_html_(self) -> str:
        from ._html import fit_html

        return fit_html(self)


def _metrics(m):
    return Metrics(m.samples, m.correct, m.loss, m.accuracy)


def _plain(cls, struct, **more):
    values = {}
    for name, field in cls.__dataclass_fields__.items():
        if name in more:
            continue
        value = getattr(struct, name)
        if isinstance(value, _api.gt_metrics):  # a copy: the struct is the library's
            value = _metrics(value)
        values[name] = bool(value) if field.type in (bool, "bool") else value
    return cls(**values, **more)


class Trainer(Owned):
    """loss: "cross_entropy" (labels are classes; accuracy is measured), "mse", or a function of (output, y) that returns the mean loss over the batch
    as a tensor. module and optimizer: what is trained, and how. clip_norm, clip_value: greatest global norm, and size of an element, of the gradients; 0: no
    limit. scaler: the GradScaler for "f16"; one is made where none is given. log_every: steps between readings of the metrics, each of which waits for the device. precision: "f32", "f16", "bf16". schedule: an optim.Schedule. accumulation: batches that make one update. checkpointing: segments that a
    Sequential is cut into. shrink_on_oom: when memory runs out, the update is done again with smaller micro-batches. offload: tensors of at least so many
    bytes that wait for backward go to the host. compile: updates and evaluation run as compiled steps with the same results (see gt.Step): Python code of the
    module and the loss runs only when a new shape is traced, and must not read values; not with offload but where there is a memory_budget. memory_budget: bytes that weights, optimizer state and
    all that updates make keep to; compiles; with offload it may have any tensor wait on the host. cross_entropy: settings of nn.functional.cross_entropy ("label_smoothing", "ignore_index", "weight").

    on_step, on_epoch: called with a Progress; a true result stops the training. What they raise is raised by fit, the steps before being done; so is
    KeyboardInterrupt, which stops between two steps and is held back until then.
    """

    def __init__(
        self, module: Module, optimizer: Optimizer, loss: Union[str, Callable[..., Tensor]] = "cross_entropy", *, schedule: Optional[Schedule] = None, precision: str = "f32", accumulation: Any = 1, checkpointing: Any = 0, shrink_on_oom: Any = False, offload: Any = 0, compile: bool = False, memory_budget: Any = 0,
        scaler: Optional[GradScaler] = None, clip_norm: float = 0.0, clip_value: float = 0.0, log_every: Any = 50, cross_entropy: Optional[Dict[str, Any]] = None, on_step: Optional[Callable[[Progress], Any]] = None, on_epoch: Optional[Callable[[Progress], Any]] = None,
    ) -> None:  # fmt: skip
        if len(optimizer._parts) != 1:
            raise ArgumentError("Trainer: an optimizer with one group of parameters; use gt.accumulate for more")
        if precision not in _PRECISIONS:
            raise ArgumentError(f"Trainer: precision {precision!r}: give 'f32', 'f16' or 'bf16'")
        o = options("gt_trainer_options")
        self._borrows = [module, optimizer, scaler, schedule]
        self.module, self.optimizer, self.on_step, self.on_epoch = module, optimizer, on_step, on_epoch
        ctx = module._ctx
        o.optimizer = optimizer._parts[0]._live()
        if callable(loss):
            self._loss = loss
            self._loss_fn = _api.gt_loss_fn(self._run_loss)  # kept as long as the library may call it
            o.loss, o.loss_fn = _api.GT_LOSS_CUSTOM, self._loss_fn
        elif loss in _LOSSES:
            o.loss = _LOSSES[loss]
        else:
            raise ArgumentError(f"Trainer: loss {loss!r}: give 'cross_entropy', 'mse' or a function")
        if cross_entropy:
            c = options("gt_cross_entropy_options")
            names = {"label_smoothing": "label_smoothing", "ignore_index": "ignore_label"}
            for name, value in cross_entropy.items():
                if name == "weight":
                    self._borrows.append(value)
                    c.class_weights = value._h
                else:
                    setattr(c, names[name], value)
            o.cross_entropy = ctypes.pointer(c)
        if schedule is not None:
            o.schedule = ctypes.pointer(schedule._struct)
        o.clip_norm, o.clip_value, o.log_every, o.precision = clip_norm or 0.0, clip_value or 0.0, log_every, _PRECISIONS[precision]
        o.accumulation, o.checkpointing, o.shrink_on_oom, o.offload = accumulation, checkpointing, bool(shrink_on_oom), offload
        if scaler is not None and scaler.is_enabled():
            o.scaler = scaler._live()
        o.compile, o.memory_budget = bool(compile), memory_budget
        if checkpointing:
            module._tree.kept = True
        self._step_fn = _api.gt_train_callback(self._run_step)
        self._epoch_fn = _api.gt_train_callback(self._run_epoch)
        # Always there, so that KeyboardInterrupt is noticed between two steps.
        o.on_step, o.on_epoch = self._step_fn, self._epoch_fn
        self._history: Any = []
        self._bars: Any = None
        handle = ctypes.c_void_p()
        check(lib.gt_trainer_create(module._h, ctypes.byref(o), ctypes.byref(handle)), ctx)
        self._hold(handle.value, ctx, lib.gt_trainer_destroy)

    def _run_step(self, user, progress):
        stop = True
        try:
            if pending():
                return 1
            call, bars = self.on_step, self._bars
            if call is None and bars is None:
                return 0
            with Callback(self._ctx):
                p = Progress(progress.contents)
                if bars is not None:
                    bars.step(p)
                stop = bool(call(p)) if call is not None else False
        except BaseException as error:
            carry(error)
        return stop

    def _run_epoch(self, user, progress):
        stop = True
        try:
            with Callback(self._ctx):
                p = Progress(progress.contents)
                self._history.append(p)
                if self._bars is not None:
                    self._bars.epoch(p)
                stop = bool(self.on_epoch(p)) if self.on_epoch is not None else False
        except BaseException as error:
            carry(error)
        return stop

    def _run_loss(self, user, output, y):
        try:
            ctx, loss = self._ctx, None
            with Callback(ctx):
                loss = self._loss(borrow(ctx, output), None if y is None else borrow(ctx, y))
                if not isinstance(loss, Tensor):
                    loss, kind = None, type(loss).__name__
                    raise TypeError(f"the loss function returned {kind}, not a tensor")
            if loss is None:
                return None
            check(lib.gt_scope_begin(ctx._h))
            return lib.gt_scope_return(ctx._h, loss._h)
        except BaseException as error:
            carry(error)
            return None

    def fit(self, training: Loader, epochs: int = 1, validation: Optional[Loader] = None, *, progress: bool = False) -> FitResult:
        """Trains for `epochs` more epochs, and evaluates after each. Returns a FitResult. progress: shows a bar for each epoch; needs tqdm."""
        result = options("gt_fit_result")
        self._history = []
        self._loaders = (training, validation)  # kept for the call
        if progress:
            from .progress import Bars

            self._bars = Bars()
        try:
            with held():
                status = lib.gt_trainer_fit(self._live(), training._live(), None if validation is None else validation._live(), epochs, ctypes.byref(result))
                training._fresh = False
                if validation is not None:
                    validation._fresh = False
        finally:
            if self._bars is not None:
                self._bars.close()
                self._bars = None
        finish(status, self._ctx)
        return _plain(FitResult, result, history=tuple(self._history))

    def evaluate(self, loader: Loader) -> Metrics:
        """Metrics over one epoch of the loader, in evaluation mode."""
        metrics = options("gt_metrics")
        with held():
            status = lib.gt_trainer_evaluate(self._live(), loader._live(), ctypes.byref(metrics))
        loader._fresh = False
        finish(status, self._ctx)
        return _metrics(metrics)

    @property
    def scaler(self) -> Optional[GradScaler]:
        """The GradScaler in use, or None."""
        handle = lib.gt_trainer_scaler(self._live())
        return None if handle is None else GradScaler._borrowed(handle, self._ctx, self)

    @property
    def state(self) -> Tuple[int, int]:
        """(number of the next epoch, updates done). Waits for the device."""
        epoch, steps = ctypes.c_int64(), ctypes.c_int64()
        check(lib.gt_trainer_state_get(self._live(), ctypes.byref(epoch), ctypes.byref(steps)), self._ctx)
        return epoch.value, steps.value

    @state.setter
    def state(self, state: Any) -> None:
        check(lib.gt_trainer_state_set(self._live(), *state), self._ctx)
