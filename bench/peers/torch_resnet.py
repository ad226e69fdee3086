"""The training step of bench/resnet.c in PyTorch eager: ResNet-50, channels-last, autocast, GradScaler, SGD with momentum.

usage: torch_resnet.py [--batch n] [--precision f32|f16|bf16] [--checkpoint 0|1] [--steps n] [--image n] [--half-input] [--json]
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet50(nn.Module):
    def __init__(self, classes=1000, segments=False):
        super().__init__()
        self.segments = segments
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for i, count in enumerate((3, 4, 6, 3)):
            width, blocks = 64 << i, []
            for k in range(count):
                blocks.append(Bottleneck(channels, width, 2 if i > 0 and k == 0 else 1))
                channels = 4 * width
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                x = checkpoint(block, x, use_reentrant=False) if self.segments else block(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def device_used_mib():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=("f32", "f16", "bf16"), default="f16")
    parser.add_argument("--checkpoint", type=int, default=0)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--half-input", action="store_true")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[o.precision]
    cuda = o.device == "cuda"
    net = ResNet50(segments=o.checkpoint != 0).to(o.device, memory_format=torch.channels_last)
    assert sum(p.numel() for p in net.parameters()) == 25557032
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(o.device, enabled=o.precision == "f16")
    x = torch.randn(o.batch, 3, o.image, o.image, device=o.device).to(memory_format=torch.channels_last)
    if o.half_input:
        x = x.to(dtype)
    y = torch.arange(o.batch, device=o.device) * 7919 % 1000

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(o.device, dtype=dtype, enabled=o.precision != "f32"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    def wait():
        if cuda:
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    rounds, each = [], max(1, o.steps // 5)
    for _ in range(5):
        begin = time.time()
        for _ in range(each):
            step()
        wait()
        rounds.append((time.time() - begin) / each * 1e3)
    rounds.sort()
    result = dict(cfg="torch:resnet50", device=torch.cuda.get_device_name() if cuda else "CPU", torch=torch.__version__, batch=o.batch,
                  precision=o.precision, checkpoint=o.checkpoint, ms=round(rounds[2], 3), min_ms=round(rounds[0], 3), max_ms=round(rounds[4], 3),
                  samples_s=round(o.batch / rounds[2] * 1e3, 1), loss=round(step().item(), 4))
    if cuda:
        result.update(peak_mib=round(torch.cuda.max_memory_allocated() / 2**20, 1),
                      peak_reserved_mib=round(torch.cuda.max_memory_reserved() / 2**20, 1), device_used_mib=round(device_used_mib(), 1))
    if o.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:20} {value}")


main()
