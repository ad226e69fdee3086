"""Writes pytorch_values.h, the numbers that tests/nn compares with. Needs PyTorch; run it again only to add numbers.

    python3 pytorch_values.py > pytorch_values.h

Parameter number k of a network is 0.5 sin(0.7 i + k) at element i, plus 1 for the weights of norms; inputs are sin(0.7 i + 0.25).
"""
import math

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


def pattern(shape, phase, scale=0.5):
    count = math.prod(shape)
    return torch.tensor([scale * math.sin(0.7 * i + phase) for i in range(count)]).reshape(shape)


def fill(net):
    norms = [m.weight for m in net.modules() if isinstance(m, (nn.BatchNorm2d, nn.LayerNorm))]
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(pattern(p.shape, float(k)))
            if any(p is w for w in norms):
                p.add_(1)


def show(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach().flatten().tolist()
    text, line = "", "   "
    for v in values:
        item = f" {v:.10g},"
        if len(line) + len(item) > 118:
            text, line = text + line + "\n", "   "
        line += item
    print(f"static const double {name}[{len(values)}] = {{\n{text}{line}\n}};")


def show_gradients(prefix, net):
    for name, p in net.named_parameters():
        show(prefix + "_grad_" + name.replace(".", "_"), p.grad)


def cnn():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    fill(net)
    x = pattern((2, 2, 4, 4), 0.25, 1.0)
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, torch.tensor([1, 3]))
    loss.backward()
    show("cnn_logits", logits)
    show("cnn_loss", loss)
    show_gradients("cnn", net)
    show("cnn_running_mean", net[1].running_mean)
    show("cnn_running_var", net[1].running_var)
    net.eval()
    show("cnn_eval_logits", net(x))


def text():
    net = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))
    fill(net)
    y = net(torch.tensor([[0, 3], [3, 1]]))
    y.pow(2).mean().backward()
    show("text_y", y)
    show_gradients("text", net)


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


def block():
    net = BasicBlock(2, 3, 2)
    fill(net)
    y = net(pattern((1, 2, 4, 4), 0.25, 1.0))
    y.pow(2).sum().backward()
    show("block_y", y)
    show("block_grad_conv1", net.conv1.weight.grad)
    show("block_grad_downsample", net.downsample[0].weight.grad)


def optimizers():
    """Six steps down 0.5 sum(a w^2)."""
    a = torch.tensor([1.0, -0.5, 2.0, 0.25])
    rules = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "sgd_dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1),
        "adam_decay": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    }
    for name, make in rules.items():
        w = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.125]))
        optimizer = make([w])
        for _ in range(6):
            optimizer.zero_grad()
            (0.5 * (a * w * w).sum()).backward()
            optimizer.step()
        show("steps_" + name, w)


def rates(name, make, count):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    schedule = make(optimizer)
    values = []
    for i in range(count):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if i + 1 < count:
            schedule.step()
    show("rates_" + name, values)


print("/* Written by pytorch_values.py, which says how; PyTorch", torch.__version__.split("+")[0], "in double precision. */")
cnn()
text()
block()
optimizers()
rates("step", lambda o: schedules.StepLR(o, 3, 0.5), 8)
rates("cosine", lambda o: schedules.CosineAnnealingLR(o, 8, eta_min=0.04), 9)
rates("one_cycle", lambda o: schedules.OneCycleLR(o, max_lr=0.4, total_steps=10, cycle_momentum=False), 10)
rates("one_cycle_uneven", lambda o: schedules.OneCycleLR(o, max_lr=0.4, total_steps=7, pct_start=0.4, div_factor=10,
                                                         final_div_factor=100, cycle_momentum=False), 7)
rates("warmup", lambda o: schedules.LambdaLR(o, lambda s: min(1, (s + 1) / 4)), 6)
rates("warmup_cosine", lambda o: schedules.LambdaLR(o, lambda s: (s + 1) / 3 if s < 3 else 0.5 * (1 + math.cos(math.pi * (s - 3) / 6))), 9)
