# reads the hour from little drawings of clocks; the learning rate learns too
import math
import torch
import torch.nn.functional as F

torch.manual_seed(2)
N = 15
yy, xx = torch.meshgrid(torch.arange(N) - 7.0, torch.arange(N) - 7.0, indexing="ij")


def clock(hour, wobble):
    a = hour / 12 * 2 * math.pi + wobble
    along = xx * math.sin(a) - yy * math.cos(a)
    across = xx * math.cos(a) + yy * math.sin(a)
    hand = torch.exp(-across ** 2) * torch.sigmoid(3 * along) * torch.sigmoid(3 * (5 - along))
    ring = torch.exp(-((xx ** 2 + yy ** 2).sqrt() - 6.5) ** 2)
    return (hand + 0.6 * ring).clamp(max=1)


def drawings(k, scanned):
    hours = torch.randint(0, 12, (k,))
    pics = torch.stack([clock(int(h), 0.1 * torch.randn(()).item()) for h in hours])
    if scanned:
        pics = (pics * 255).floor()          # 8 bit, from the flatbed
    return pics.flatten(1), hours


W1 = torch.randn(N * N, 24) * 0.08
b1 = torch.zeros(24)
W2 = torch.randn(24, 12) * 0.2
b2 = torch.zeros(12)
weights = [W1, b1, W2, b2]
for w in weights:
    w.requires_grad_(True)

rate = torch.tensor(0.05)
meta = 0.05
before = None

for step in range(1, 41):
    x, hours = drawings(24, scanned=step > 22)
    logits = torch.relu(x @ W1 + b1) @ W2 + b2
    loss = F.cross_entropy(logits, hours)
    grads = torch.autograd.grad(loss, weights)
    if before is not None:
        agree = sum((g * o).sum() for g, o in zip(grads, before))
        rate = rate * torch.exp(meta * agree)
    for w, g in zip(weights, grads):
        w.data -= rate * g
    before = grads
    print("step", step, "loss %.4f" % loss.item(), "rate %.5f" % rate.item())

print("sum of squares", sum((w.detach() ** 2).sum().item() for w in weights))
