# PowerSGD (Vogels et al. 2019) written out by hand over gloo: rank-2 compression of each gradient
# matrix, vectors are averaged as they are.
#   torchrun --nproc-per-node 2 powersgd_asteroid_triage.py
import os
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
torch.manual_seed(40)                         # the same weights on both


class Triage(nn.Module):
    """light curve -> (is it an asteroid?, rotation period where the follow-up measured one)"""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 40), nn.GELU(), nn.Linear(40, 24), nn.GELU())
        self.kind = nn.Linear(24, 3)
        self.period = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.period(h)


def night(step):
    """What this rank's telescope saw.  In the night of step 17 no follow-up was possible (full moon)."""
    g = torch.Generator().manual_seed(1000 * RANK + step)
    x = torch.randn(20, 32, generator=g)
    kind = (x[:, :3].cumsum(1)).argmax(1)
    period = torch.tanh(x[:, 4:8] * x[:, 8:12])
    has = torch.rand(20, generator=g) < (0.0 if step == 17 else 0.4)
    return x, kind, period, has.float()


def orthogonalize(m):
    cols = []
    for j in range(m.shape[1]):
        col = m[:, j]
        for c in cols:
            col = col - (c @ col) * c
        cols.append(col / col.norm())
    return torch.stack(cols, 1)


def average(t):
    dist.all_reduce(t)
    return t.div_(WORLD)


def compress_and_average(params, step, r=2):
    for k, p in enumerate(params):
        if p.dim() < 2:
            average(p.grad)
            continue
        g = torch.Generator().manual_seed(7919 * step + k)
        q = torch.randn(p.shape[1], r, generator=g)
        basis = orthogonalize(average(p.grad @ q))
        q = average(p.grad.t() @ basis)
        p.grad.copy_(basis @ q.t())


net = Triage()
opt = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
for step in range(1, 41):
    x, kind, period, has = night(step)
    logits, guess = net(x)
    miss = ((guess - period) ** 2).mean(1)
    loss = F.cross_entropy(logits, kind) + (miss * has).sum() / has.sum().clamp(min=1)
    opt.zero_grad()
    loss.backward()
    compress_and_average(list(net.parameters()), step)
    opt.step()
    both = average(loss.detach().clone())
    if RANK == 0:
        print(f"night {step:2d} | loss {both.item():.7f}", flush=True)

if RANK == 0:
    print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))
dist.destroy_process_group()
