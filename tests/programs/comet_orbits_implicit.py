"""Eccentricities of small bodies from catalogue columns, through an implicit Kepler solver."""
import math
import torch
from torch import nn

torch.manual_seed(11)
g = torch.Generator().manual_seed(3)


class Kepler(torch.autograd.Function):
    """E(e, M) with E - e sin E = M; derivative by the implicit function theorem"""

    @staticmethod
    def forward(ctx, e, M):
        E = M.clone()
        for _ in range(25):
            f = E - e * E.sin() - M
            E = E - f / (1 - e * E.cos()).clamp_min(1e-6)
        ctx.save_for_backward(e, E)
        return E

    @staticmethod
    def backward(ctx, gE):
        e, E = ctx.saved_tensors
        return gE * E.sin() / (1 - e * E.cos()), None


class Ecc(nn.Module):
    def __init__(s, k):
        super().__init__()
        s.a = nn.Linear(k, 24)
        s.b = nn.Linear(24, 24)
        s.c = nn.Linear(24, 1)

    def forward(s, x):
        x = torch.relu(s.a(x))
        x = torch.relu(s.b(x))
        return torch.tanh(s.c(x).abs()).squeeze(-1)


def catalogue(n):
    # semi-major axis, inclination, albedo, absolute magnitude
    a = 2.7 + 0.4 * torch.randn(n, generator=g)
    i = 0.3 * torch.rand(n, generator=g)
    p = 0.05 + 0.3 * torch.rand(n, generator=g)
    H = 15 + 2 * torch.randn(n, generator=g)
    e = (0.12 + 0.5 * i + 0.1 * (a - 2.7) + 0.02 * torch.randn(n, generator=g)).clamp(0.01, 0.7)
    M = (torch.rand(n, generator=g) - 0.5) * 2 * math.pi * 0.95
    # long-period comets: aphelion far out, almost parabolic
    for j, (aa, mm) in {133: (9800.0, 0.41), 347: (14200.0, -0.22), 431: (20500.0, 0.0), 602: (8700.0, 0.07)}.items():
        a[j], e[j], M[j], i[j] = aa, 0.9998, mm, 1.1
    X = torch.stack([(a - 2.7) / 0.4, i / 0.3, p / 0.3, (H - 15) / 2], 1)
    E = M.clone().double()
    for _ in range(60):
        E = E - (E - e * E.sin() - M) / (1 - e * E.cos()).clamp_min(1e-9)
    r = (1 - e * E.cos()).float()
    x = (E.cos() - e).float()
    return X, M, r, x


X, M, r, x = catalogue(704)
net = Ecc(4)
o = torch.optim.Adam(net.parameters(), lr=4e-3)
B = 32
k = 0
for i in range(0, len(X), B):
    k += 1
    q = slice(i, i + B)
    e = net(X[q])
    E = Kepler.apply(e, M[q])
    L = ((1 - e * E.cos() - r[q]) ** 2).mean() + ((E.cos() - e - x[q]) ** 2).mean()
    o.zero_grad()
    L.backward()
    o.step()
    print(k, "loss %.6f" % L.item(), flush=True)

print("final", float(sum(w.detach().pow(2).sum() for w in net.parameters()).sqrt()))
