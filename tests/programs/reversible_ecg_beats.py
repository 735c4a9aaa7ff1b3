"""Arrhythmia classes from single beats with a reversible residual network: activations are not kept, the
backward pass rebuilds the inputs of every block from its outputs."""
import math

import torch
from torch import nn
import torch.nn.functional as F


class ReversibleStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, *params):
        ctx.blocks = blocks
        a, b = x.chunk(2, 1)
        with torch.no_grad():
            for blk in blocks:
                a = a + blk.f(b)
                b = b + blk.g(a)
        ctx.out = (a.detach(), b.detach())
        return torch.cat([a, b], 1)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.out
        del ctx.out
        da, db = (t.contiguous() for t in grad.chunk(2, 1))
        for blk in reversed(ctx.blocks):
            with torch.enable_grad():
                a.requires_grad_(True)
                ga = blk.g(a)
                ga.backward(db)
            with torch.no_grad():
                b = b - ga
                da = da + a.grad
                a.grad = None
            with torch.enable_grad():
                b.requires_grad_(True)
                fb = blk.f(b)
                fb.backward(da)
            with torch.no_grad():
                a = a.detach() - fb
                db = db + b.grad
                b.grad = None
                b = b.detach()
        return (torch.cat([da, db], 1), None) + (None,) * len(list(ctx.blocks.parameters()))


class Coupling(nn.Module):
    def __init__(self, half):
        super().__init__()
        make = lambda: nn.Sequential(nn.GroupNorm(1, half), nn.SiLU(), nn.Conv1d(half, half, 5, padding=2))
        self.f, self.g = make(), make()


class RevNet(nn.Module):
    def __init__(self, channels=16, depth=5, classes=4):
        super().__init__()
        self.stem = nn.Conv1d(1, channels, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(Coupling(channels // 2) for _ in range(depth))
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        h = self.stem(x)
        h = ReversibleStack.apply(h, self.blocks, *self.blocks.parameters())
        return self.head(h.mean(-1))


def beats(n, gen):
    t = torch.linspace(0, 1, 96)
    y = torch.randint(4, (n,), generator=gen)
    width = torch.tensor([0.02, 0.06, 0.02, 0.02])[y][:, None]
    centre = torch.tensor([0.5, 0.5, 0.38, 0.5])[y][:, None]
    sign = torch.tensor([1.0, 1.0, 1.0, -1.0])[y][:, None]
    qrs = sign * torch.exp(-0.5 * ((t - centre) / width) ** 2)
    wander = 0.3 * torch.sin(2 * math.pi * (t + torch.rand(n, 1, generator=gen)))
    return (qrs + wander + 0.1 * torch.randn(n, 96, generator=gen))[:, None], y


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(31)
    net = RevNet()
    opt = torch.optim.RAdam(net.parameters(), lr=6e-3)
    micro, steps = 2, 36
    for step in range(1, steps + 1):
        opt.zero_grad()
        total = 0.0
        for _ in range(micro):
            x, y = beats(16, gen)
            loss = F.cross_entropy(net(x), y) / micro
            loss.backward()
            total += loss.item()
        opt.step()
        print(f"step {step} loss {total:.5f}", flush=True)
    print(f"checksum {sum(p.detach().double().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
