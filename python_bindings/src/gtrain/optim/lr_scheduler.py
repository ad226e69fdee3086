"""Learning-rate schedules driven from Python: call step() after each optimizer step or epoch, as in torch.optim.lr_scheduler."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional

from .._errors import ArgumentError


class LRScheduler:
    """Base: subclasses give the factor on each group's first learning rate after `self.last_epoch` steps. optimizer: whose groups' rates are set, at once and by
    each step()."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._apply()

    def factor(self, step: Any, group: Any) -> float:
        """What the group's first learning rate is multiplied by after `step` steps; subclasses define it. `group`: its number."""
        raise NotImplementedError

    def get_last_lr(self) -> List[float]:
        """The learning rate of each group as it is now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        """Counts one more step, and sets the groups' learning rates."""
        self.last_epoch += 1
        self._apply()

    def _apply(self):
        for i, (group, base) in enumerate(zip(self.optimizer.param_groups, self.base_lrs)):
            group["lr"] = base * self.factor(self.last_epoch, i)

    def state_dict(self) -> Dict[str, Any]:
        """What load_state_dict needs: last_epoch, the steps so far, and base_lrs, the first learning rates. Functions and the constructor's numbers are
        not part of it."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Any) -> None:
        """Goes on from there, and sets the groups' learning rates."""
        self.last_epoch, self.base_lrs = state["last_epoch"], list(state["base_lrs"])
        self._apply()


class LambdaLR(LRScheduler):
    """The first rate times lr_lambda(step); a function, or one for each group."""

    def __init__(self, optimizer: Any, lr_lambda: Any) -> None:
        self._lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * len(optimizer.param_groups)
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        return self._lambdas[group](step)


class StepLR(LRScheduler):
    """Times `gamma` every step_size steps."""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        return self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """Times `gamma` at each step in `milestones`."""

    def __init__(self, optimizer: Any, milestones: Any, gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        return self.gamma ** sum(step >= m for m in self.milestones)


class ExponentialLR(LRScheduler):
    """Times `gamma` at every step."""

    def __init__(self, optimizer: Any, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        return self.gamma**step


class LinearLR(LRScheduler):
    """From start_factor to end_factor in a straight line over total_iters steps; then it stays."""

    def __init__(self, optimizer: Any, start_factor: Any = 1 / 3, end_factor: Any = 1.0, total_iters: Any = 5) -> None:
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        return self.start_factor + (self.end_factor - self.start_factor) * min(step / self.total_iters, 1.0)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate down to eta_min over T_max steps, and up again after them."""

    def __init__(self, optimizer: Any, T_max: Any, eta_min: Any = 0.0) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        base = self.base_lrs[group]
        return (self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2) / base


class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to max_lr over the part pct_start of all steps, and down to 1 / final_div_factor of where it began; cosine form, the momentum
    is not cycled. Steps: total_steps, or epochs times steps_per_epoch."""

    def __init__(
        self,
        optimizer: Any,
        max_lr: Any,
        total_steps: Any = None,
        epochs: Optional[int] = None,
        steps_per_epoch: Any = None,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        self.total_steps, self.pct_start, self.div_factor, self.final_div_factor = total_steps, pct_start, div_factor, final_div_factor
        peaks = list(max_lr) if isinstance(max_lr, (list, tuple)) else [max_lr] * len(optimizer.param_groups)
        for group, peak in zip(optimizer.param_groups, peaks):
            group["initial_lr"] = peak
        super().__init__(optimizer)

    def factor(self, step: Any, group: Any) -> Any:
        """See LRScheduler.factor."""
        if step >= self.total_steps:
            raise ArgumentError(f"OneCycleLR: step {step} is beyond the {self.total_steps} that it was made for")
        top = self.pct_start * self.total_steps - 1
        start, end = 1 / self.div_factor, 1 / self.div_factor / self.final_div_factor
        if step <= top:
            return _cosine(start, 1.0, step / top)
        return _cosine(1.0, end, (step - top) / (self.total_steps - 1 - top))


def _cosine(start, end, part):
    return end + (start - end) / 2 * (1 + math.cos(math.pi * part))
