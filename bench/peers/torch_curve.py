"""PyTorch's loss curve from the weights that bench/loss_curve wrote, and how far ours lies from it.

usage: torch_curve.py cpu|cuda DATA_FOLDER EPOCHS WEIGHTS_FILE OUR_OUTPUT
"""
import gzip, sys
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F

device, folder, epochs, weights, ours = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


def idx(name, head):
    with gzip.open(f"{folder}/{name}") as f:
        return np.frombuffer(f.read(), np.uint8, offset=head)


def load(kind):
    x = idx(f"{kind}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    y = idx(f"{kind}-labels-idx1-ubyte.gz", 8).astype(np.int64)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(),
                    nn.Linear(128, 10)).to(device)
flat = np.fromfile(weights, np.float32)
at = 0
with torch.no_grad():
    for p in net.parameters():
        p.copy_(torch.from_numpy(flat[at:at + p.numel()].reshape(tuple(p.shape))))
        at += p.numel()
assert at == flat.size
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
(x, y), (tx, ty) = load("train"), load("t10k")
losses, accuracies = [], []
for epoch in range(epochs):
    sum_ = 0.0
    for step, i in enumerate(range(0, len(x), 64), 1):
        opt.zero_grad()
        loss = F.cross_entropy(net(x[i:i + 64]), y[i:i + 64])
        loss.backward()
        opt.step()
        sum_ += loss.item()
        if step % 100 == 0:
            losses.append(sum_ / 100)
            sum_ = 0.0
    with torch.no_grad():
        accuracies.append(float(sum((net(tx[i:i + 1000]).argmax(1) == ty[i:i + 1000]).sum() for i in range(0, len(tx), 1000))) / len(tx))
our_losses = [float(l.split()[1]) for l in open(ours) if l.startswith("loss")]
our_accuracies = [float(l.split()[1]) for l in open(ours) if l.startswith("accuracy")]
difference = np.abs(np.array(our_losses) - np.array(losses))
print(f"mean loss of 100 steps, ours beside PyTorch's: first {our_losses[0]:.4f} {losses[0]:.4f}, last {our_losses[-1]:.4f} {losses[-1]:.4f}; "
      f"difference mean {difference.mean():.5f}, largest {difference.max():.5f} over {len(losses)} points")
print("test accuracy by epoch, ours:   ", " ".join(f"{a:.4f}" for a in our_accuracies))
print("test accuracy by epoch, PyTorch:", " ".join(f"{a:.4f}" for a in accuracies))
