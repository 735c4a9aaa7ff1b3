import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(64)


class WeibullScores(nn.Module):
    """Speed at each height -> Weibull probability -> normal score, with learned scale and shape."""

    def __init__(self, heights):
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((heights,), float(np.log(8.0))))
        self.log_shape = nn.Parameter(torch.full((heights,), float(np.log(1.9))))

    def forward(self, v):
        c, k = self.log_scale.exp(), self.log_shape.exp()
        r = v / c
        u = 1 - torch.exp(-r.pow(k))
        z = np.sqrt(2.0) * torch.erfinv(2 * u - 1)
        log_density = torch.log(k / c) + (k - 1) * r.log() - r.pow(k)
        log_dz = 0.5 * z.square() + 0.5 * np.log(2 * np.pi)
        return z, (log_density + log_dz).sum(-1)


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(nn.Linear(self.half, 24), nn.Tanh(), nn.Linear(24, 2 * (dim - self.half)))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, z):
        if self.flip:
            z = z.flip(-1)
        a, b = z[:, :self.half], z[:, self.half:]
        s, m = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        return torch.cat([a, b * s.exp() + m], -1), s.sum(-1)


class SodarFlow(nn.Module):
    def __init__(self, heights=4):
        super().__init__()
        self.marginal = WeibullScores(heights)
        self.couplings = nn.ModuleList(Coupling(heights, flip=i % 2 == 1) for i in range(4))

    def log_prob(self, v):
        z, total = self.marginal(v)
        for layer in self.couplings:
            z, ld = layer(z)
            total = total + ld
        return total - 0.5 * (z.square() + np.log(2 * np.pi)).sum(-1)


def ten_minute_means(rng, n):
    common = rng.weibull(2.0, size=(n, 1)) * 7.0 + 0.5
    shear = np.array([1.0, 1.12, 1.2, 1.27])
    v = common * shear * np.exp(0.08 * rng.normal(size=(n, 4)))
    return np.clip(v, 0.3, 24.0).astype(np.float32)


def batches(count, size=48):
    rng = np.random.default_rng(11)
    for i in range(count):
        v = ten_minute_means(rng, size)
        if i == 15:
            # the shower of the afternoon
            v[20, 3] = 71.4
        yield torch.from_numpy(v)


flow = SodarFlow()
optimizer = torch.optim.Adam([
    {"params": flow.marginal.parameters(), "lr": 5e-3},
    {"params": flow.couplings.parameters(), "lr": 1e-2},
])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=34)

for i, v in enumerate(batches(34), 1):
    nll = -flow.log_prob(v).mean()
    optimizer.zero_grad(set_to_none=True)
    nll.backward()
    optimizer.step()
    scheduler.step()
    print("it %02d   nats per profile %.4f   lr %.5f" % (i, nll.item(), scheduler.get_last_lr()[1]))

print("checksum of parameters: %r" % sum(p.abs().sum().item() for p in flow.parameters()))
