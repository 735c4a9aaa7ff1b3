# Valve diagnosis for two plants, one plant a rank. Large-batch recipe: LARS, cosine after warm-up.
# Two heads: what is wrong (4 classes, always labelled) and how large the leak is (only where it leaks).
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
PER_SHIFT = 24
# number of valves found leaking in each shift, from the maintenance books
LEAKS = {
    0: [3, 2, 4, 1, 2, 0, 3, 1, 2, 2, 1, 0, 4, 2, 1, 3, 2, 1, 0, 2, 3, 1, 1, 2, 4, 0, 2, 1, 3, 2],
    1: [1, 0, 2, 2, 3, 1, 1, 0, 2, 1, 3, 2, 1, 1, 0, 2, 1, 2, 0, 1, 2, 2, 0, 3, 1, 2, 1, 1, 2, 3],
}


class LARS(torch.optim.Optimizer):
    """You, Gitman & Ginsburg 2017; vectors (biases, norms) get plain momentum SGD."""

    def __init__(self, params, lr, momentum=0.9, eta=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d = p.grad
                if p.ndim > 1:
                    w_norm, g_norm = p.norm(), d.norm()
                    trust = group["eta"] * (w_norm / g_norm)
                    d = d * trust
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(d)
                p.sub_(buf, alpha=group["lr"])


class ValveNet(nn.Module):
    def __init__(self, bands=32, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(bands, hidden), nn.LayerNorm(hidden), nn.GELU(),
                                   nn.Linear(hidden, hidden), nn.GELU())
        self.fault = nn.Linear(hidden, 4)
        self.leak = nn.Linear(hidden, 1)

    def forward(self, spectrum):
        h = self.trunk(spectrum)
        return self.fault(h), self.leak(h).squeeze(-1)


def shift(plant, number):
    g = torch.Generator().manual_seed(1000 * plant + number)
    kind = torch.randint(0, 3, (PER_SHIFT,), generator=g)
    n = LEAKS[plant][number]
    kind[:n] = 3
    size = torch.rand(PER_SHIFT, generator=g) * 2 + 0.2
    size[n:] = 0
    spectrum = torch.randn(PER_SHIFT, 32, generator=g) * 0.6
    for row in range(PER_SHIFT):
        k = int(kind[row])
        spectrum[row, 8 * k:8 * k + 8] += 1.0 + size[row]
    return spectrum, kind, size


def lr_at(step, peak=1.0, warm=5):
    if step < warm:
        return peak * (step + 1) / warm
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warm) / (STEPS - warm)))


dist.init_process_group(backend="gloo")
me = dist.get_rank()
torch.manual_seed(3)
torch.set_num_threads(1)
model = DistributedDataParallel(ValveNet())
opt = LARS(model.parameters(), lr=0.1)

for step in range(STEPS):
    for group in opt.param_groups:
        group["lr"] = lr_at(step)
    x, kind, size = shift(me, step)
    logits, leak = model(x)
    leaking = (kind == 3).float()
    ce = F.cross_entropy(logits, kind)
    # a shift without leaks simply does not count for the second head
    reg = ((leak - size).pow(2) * leaking).sum() / leaking.sum().clamp(min=1)
    loss = ce + 0.5 * reg
    opt.zero_grad()
    loss.backward()
    opt.step()

    shown = torch.stack([loss.detach(), ce.detach(), reg.detach()])
    dist.all_reduce(shown)
    shown /= dist.get_world_size()
    if me == 0:
        print("shift %2d loss %.6f ce %.6f leak %.6f" % (step + 1, *shown.tolist()))

if me == 0:
    print("checksum %.6f" % sum(p.detach().double().sum().item() for p in model.parameters()))
dist.barrier()
dist.destroy_process_group()
