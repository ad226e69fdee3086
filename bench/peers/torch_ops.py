"""PyTorch's (cuDNN's) times of the ops that bench/op_time measures.

usage: torch_ops.py cpu|cuda [f32|f16]
"""
import sys, time, torch, torch.nn.functional as F
device, dtype = sys.argv[1], torch.half if sys.argv[2:] == ["f16"] else torch.float
torch.backends.cudnn.benchmark = True
n = 256 if device == "cuda" else 4
x = torch.randn(n, 64, 112, 112, device=device).to(dtype).to(memory_format=torch.channels_last).requires_grad_()
w, b, m, v = (torch.full((64,), float(i % 2 == 0), device=device) for i in range(4))
w.requires_grad_(), b.requires_grad_()
sync = torch.cuda.synchronize if device == "cuda" else lambda: None
cases = {"relu": lambda: F.relu(x), "batch_norm": lambda: F.batch_norm(x, m, v, w, b, True), "max_pool2d": lambda: F.max_pool2d(x, 3, 2, 1),
         "avg_pool2d": lambda: F.avg_pool2d(x, 3, 2, 1), "global_avg_pool": lambda: F.adaptive_avg_pool2d(x, 1)}
print(f"PyTorch {torch.__version__}, {dtype} [{n},64,112,112] channels-last, best of 30")
for name, call in cases.items():
    forward = backward = 1e9
    for _ in range(30):
        sync(); t = time.perf_counter(); y = call(); sync(); forward = min(forward, time.perf_counter() - t)
        dy = y.detach() * 0.5; sync(); t = time.perf_counter()
        torch.autograd.grad(y, (x, w, b), dy, allow_unused=True); sync(); backward = min(backward, time.perf_counter() - t)
    print(f"{name:16s} forward {forward * 1e6:8.1f} us   backward {backward * 1e6:8.1f} us")
