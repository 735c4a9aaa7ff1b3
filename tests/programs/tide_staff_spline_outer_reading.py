# Density of tide-staff residuals (observed minus predicted height, two stations) by a
# coupling flow of rational-quadratic splines with learned knots. Identity outside of [-B, B].
import math

import torch
import torch.nn.functional as F

torch.manual_seed(20)
B, K = 4.0, 6
MIN_W = MIN_H = 1e-2
MIN_D = 5e-2


def knots(raw, minimum):
    frac = minimum + (1 - minimum * K) * F.softmax(raw, -1)
    edges = F.pad(frac.cumsum(-1), (1, 0)) * 2 * B - B
    return edges, edges[..., 1:] - edges[..., :-1]


def pick(table, idx):
    return table.gather(-1, idx[..., None]).squeeze(-1)


def inverse_rqs(y, raw_w, raw_h, raw_d):
    """Data -> latent. Quadratic of Durkan et al. (2019), eq. 29; returns x and log|dx/dy|."""
    inside = (y > -B) & (y < B)
    xk, w = knots(raw_w, MIN_W)
    yk, h = knots(raw_h, MIN_H)
    d = F.pad(MIN_D + F.softplus(raw_d), (1, 1), value=1.0)
    idx = (torch.searchsorted(yk.detach(), y[..., None].detach().contiguous()) - 1).clamp(0, K - 1).squeeze(-1)
    x0, w, y0, h = pick(xk, idx), pick(w, idx), pick(yk, idx), pick(h, idx)
    d0, d1 = pick(d, idx), pick(d, idx + 1)
    s = h / w
    u = y - y0
    bend = d0 + d1 - 2 * s
    a = u * bend + h * (s - d0)
    b = h * d0 - u * bend
    c = -s * u
    root = torch.sqrt(b * b - 4 * a * c)
    xi = 2 * c / (-b - root)
    x = x0 + xi * w
    q = xi * (1 - xi)
    den = s + bend * q
    slope = s * s * (d1 * xi * xi + 2 * s * q + d0 * (1 - xi) ** 2) / (den * den)
    # linear tails
    return torch.where(inside, x, y), torch.where(inside, -slope.abs().log(), torch.zeros_like(y))


class Coupling(torch.nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3 * K - 1))
        torch.nn.init.normal_(self.net[2].weight, std=0.01)
        torch.nn.init.constant_(self.net[2].bias, 0.0)

    def forward(self, v):
        keep, move = (v[:, 0], v[:, 1]) if self.first else (v[:, 1], v[:, 0])
        raw = self.net(torch.tanh(keep[:, None]))
        moved, logdet = inverse_rqs(move, raw[:, :K], raw[:, K : 2 * K], raw[:, 2 * K :])
        pair = (keep, moved) if self.first else (moved, keep)
        return torch.stack(pair, 1), logdet


def station_log(n):
    """Residuals in decimetres; skewed by surge, the two staffs are correlated."""
    g = torch.Generator().manual_seed(5)
    surge = torch.randn(n, 1, generator=g)
    z = 0.6 * surge + 0.5 * torch.randn(n, 2, generator=g)
    r = (z + 0.3 * z.pow(2) * torch.tensor([1.0, -1.0])).clamp(-3.9, 3.9)
    r[17 * 24 + 9, 1] = 31.0  # 18 March: the keeper wrote centimetres
    return r


flow = torch.nn.ModuleList([Coupling(i % 2 == 0) for i in range(4)])
opt = torch.optim.Adam(flow.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=36)
log = station_log(36 * 24)

for day, batch in enumerate(log.split(24)):
    v, total = batch, 0.0
    for layer in flow:
        v, ld = layer(v)
        total = total + ld
    base = -0.5 * v.pow(2).sum(1) - math.log(2 * math.pi)
    nll = -(base + total).mean()
    opt.zero_grad()
    nll.backward()
    opt.step()
    sched.step()
    print(f"day {day + 1:2d} nll {nll.item():.6f}")

print(f"sum of weights {sum(p.double().sum().item() for p in flow.parameters()):.6f}")
