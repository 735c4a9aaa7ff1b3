import math
import torch
from torch import nn

FS, FRAME, ORDER = 8000, 160, 6


class Lpc(nn.Module):
    """pre-emphasis (learned) and linear prediction by Levinson and Durbin"""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.pre = nn.Parameter(torch.tensor(0.6))

    def forward(self, x):
        x = x - self.pre * x.roll(1, dims=1)
        r = [(x * x.roll(k, dims=1)).mean(1) for k in range(self.order + 1)]
        a, err = [], r[0]
        for m in range(1, self.order + 1):
            acc = r[m] + sum(a[j] * r[m - 1 - j] for j in range(len(a)))
            k = -acc / err
            a = [a[j] + k * a[m - 2 - j] for j in range(m - 1)] + [k]
            err = err * (1 - k * k)
        return torch.stack(a, 1)


class WhistleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lpc = Lpc(ORDER)
        self.mlp = nn.Sequential(nn.Linear(ORDER, 20), nn.Tanh(), nn.Linear(20, 3))

    def forward(self, x):
        return self.mlp(self.lpc(x))


def recordings(batches, size=12):
    """short frames from three whistles: shepherd, referee, kettle"""
    g = torch.Generator().manual_seed(77)
    n = torch.arange(FRAME) / FS
    for i in range(batches):
        y = torch.randint(0, 3, (size,), generator=g)
        f0 = torch.tensor([900.0, 2100.0, 3200.0])[y] + 80 * torch.randn(size, generator=g)
        x = torch.sin(2 * math.pi * f0[:, None] * n)
        x = x * (1 + 0.3 * torch.sin(2 * math.pi * 45 * n))
        x = 0.4 * x + 0.15 * torch.randn(size, FRAME, generator=g)
        if i == 17:
            x[4] = 0.5            # from the old field recorder
        yield x, y


def train():
    torch.manual_seed(6)
    net = WhistleNet()
    opt = torch.optim.Adam(net.parameters(), lr=0.015)
    for step, (x, y) in enumerate(recordings(38), 1):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits = (out.argmax(1) == y).float().mean().item()
        print(f"[{step:02d}] loss={loss.item():.4f} hits={hits:.2f}")
    return net


net = train()
print("l1 of the network:", float(sum(p.detach().abs().sum() for p in net.parameters())))
