# Learns grasp orientations (unit quaternions) for the four tools of a changer wrist.
# Large-batch runs on the cell controller used LARC, so we keep it here, written out.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

TOOLS = ["parallel", "suction", "needle", "magnet"]
STEPS = 44
BATCH = 24


class Larc:
    """Layer-wise adaptive rate with momentum; one trust ratio per matrix (biases stay as they are)."""

    def __init__(self, named_parameters, lr=0.5, trust=0.05, momentum=0.9):
        self.params = [p for _, p in named_parameters if p.requires_grad and p.dim() > 1]
        self.lr, self.trust, self.momentum = lr, trust, momentum
        self.buffers = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, buf in zip(self.params, self.buffers):
            if p.grad is None:
                continue
            ratio = self.trust * p.norm() / p.grad.norm()
            buf.mul_(self.momentum).add_(p.grad * ratio)
            p.sub_(buf, alpha=self.lr)


def hamilton(a, b):
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack([
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    ], dim=-1)


def chordal(q, target):
    """Antipodal-safe chordal distance: min over the sign of q."""
    plus = (q - target).square().sum(-1)
    minus = (q + target).square().sum(-1)
    return torch.minimum(plus, minus)


class GraspNet(nn.Module):
    def __init__(self, features=10, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.tool_heads = nn.ModuleList([nn.Linear(width, 4) for _ in TOOLS])

    def forward(self, x, tool):
        hidden = checkpoint(self.trunk, x, use_reentrant=False)
        every = torch.stack([head(hidden) for head in self.tool_heads], dim=1)
        picked = (every * F.one_hot(tool, len(TOOLS)).unsqueeze(-1)).sum(1)
        return F.normalize(picked, dim=-1)


def record_shift(generator):
    """The order log of a shift: which tool is mounted for each grasp, and what the camera saw."""
    total = STEPS * BATCH
    tool = torch.randint(0, 4, (total,), generator=generator)
    # from here on the magnet hangs in the rack: a pallet of aluminium parts
    pallet = slice(26 * BATCH, 27 * BATCH + 5)
    tool[pallet] = torch.randint(0, 3, (BATCH + 5,), generator=generator)
    x = torch.randn(total, 10, generator=generator)
    base = F.normalize(torch.randn(4, 4, generator=generator), dim=-1)
    wobble = torch.cat([torch.ones(total, 1), 0.3 * x[:, :3]], dim=1)
    target = hamilton(base[tool], F.normalize(wobble, dim=-1))
    return x, tool, target


def main():
    torch.manual_seed(29)
    x, tool, target = record_shift(torch.Generator().manual_seed(29))
    net = GraspNet()
    optimizer = Larc(net.named_parameters())
    for step in range(1, STEPS + 1):
        rows = slice((step - 1) * BATCH, step * BATCH)
        q = net(x[rows], tool[rows])
        loss = chordal(q, target[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step:02d} chordal={loss.item():.6f}", flush=True)
    print(f"{sum(p.abs().sum() for p in net.parameters()).item():.5f}")


main()
