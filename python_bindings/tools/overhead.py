#!/usr/bin/env python3
"""What a call from Python costs, in microseconds, on tensors so small that the arithmetic is nothing. bench/host_cost measures the same calls from C."""

import time

import gtrain as gt
import gtrain.nn.functional as F
from gtrain import nn


class Nothing(nn.Module):
    def forward(self, x):
        return x


def cost(call, calls=2000, repeats=100):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def main():
    gt.set_device("cpu")
    x, y, m, w = gt.ones(4), gt.ones(4), gt.ones(4, 4), gt.ones(4, 4)
    layer, nothing = nn.Linear(4, 4), Nothing()
    step = gt.Step(lambda x: (x * scale).sum(), gt.optim.SGD([scale := nn.Parameter(gt.ones(4))], lr=0.0))
    for name, call in {
        "x + y": lambda: x + y,
        "x * 2": lambda: x * 2,
        "relu": lambda: F.relu(x),
        "sum": lambda: x.sum(),
        "reshape": lambda: m.reshape(2, 8),
        "m[0]": lambda: m[0],
        "linear": lambda: F.linear(m, w),
        "nn.Linear": lambda: layer(m),
        "Step": lambda: step(x),
        "module in Python": lambda: nothing(m),
        "an empty Python call": lambda: None,
    }.items():
        print(f"{name:<22} {cost(call):6.2f}")


if __name__ == "__main__":
    main()
