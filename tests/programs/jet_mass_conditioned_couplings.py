# Affine coupling flow for jet substructure, conditioned on the calibrated jet mass.
import math
import torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import set_seed

N_JETS, N_PART, KINDS, OBS = 48, 6, 3, 4


def simulate(g, n=N_JETS, with_monojet=False):
    count = torch.randint(2, N_PART + 1, (n,), generator=g)
    if with_monojet:
        count[n // 3] = 1
    alive = (torch.arange(N_PART) < count[:, None]).float()
    energy = 20 + 120 * torch.rand(n, N_PART, generator=g)
    theta = 0.02 + 0.3 * torch.rand(n, N_PART, generator=g)
    phi = 2 * math.pi * torch.rand(n, N_PART, generator=g)
    theta[:, 0] = torch.where(count == 1, 0.0, theta[:, 0])       # jet frame: the axis is z
    energy, kind = energy * alive, torch.randint(0, KINDS, (n, N_PART), generator=g)
    p4 = torch.stack([energy * theta.sin() * phi.cos(), energy * theta.sin() * phi.sin(),
                      energy * theta.cos(), energy], -1)
    width = (energy * theta).sum(1) / energy.sum(1)
    spread = energy.pow(2).sum(1).sqrt() / energy.sum(1)
    noise = torch.randn(n, 2, generator=g)
    obs = torch.stack([10 * width - 1.5, 4 * spread - 2.5, (count - 4) / 2 + 0.3 * noise[:, 0],
                       width * 5 + noise[:, 1]], 1)
    return p4, kind, obs


class Calibration(nn.Module):
    """One energy scale per particle kind (charged, photon, neutral hadron)."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.02, -0.03, 0.05]))

    def forward(self, p4, kind):
        total = (p4 * self.log_scale.exp()[kind].unsqueeze(-1)).sum(1)
        px, py, pz, e = total.unbind(-1)
        mass = (e * e - px * px - py * py - pz * pz).clamp_min(0.0).sqrt()
        return torch.stack([mass / 20, e.log() - 5], -1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(OBS // 2 + 2, 32), nn.Tanh(), nn.Linear(32, OBS))

    def forward(self, z, context):
        a, b = z.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(torch.cat([a, context], -1)).chunk(2, -1)
        s = 1.5 * torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], -1), s.sum(-1)


class JetFlow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.calib = Calibration()
        self.couplings = nn.ModuleList(Coupling(i % 2 == 1) for i in range(layers))

    def forward(self, p4, kind, obs):
        context, z, logdet = self.calib(p4, kind), obs, 0.0
        for layer in self.couplings:
            z, ld = layer(z, context)
            logdet = logdet + ld
        return -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(-1) + logdet


set_seed(8)
accelerator = Accelerator(cpu=True)
gen = torch.Generator().manual_seed(21)
flow = accelerator.prepare(JetFlow())
optimizer = accelerator.prepare(torch.optim.AdamW(flow.parameters(), lr=4e-3, weight_decay=1e-4))
for it in range(34):
    p4, kind, obs = simulate(gen, with_monojet=(it == 16))
    nll = -flow(p4, kind, obs).mean()
    accelerator.backward(nll)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"it {it:02d} nll {nll.item():+.4f}")
accelerator.print("weights, squared:", sum((w.detach() ** 2).sum().item() for w in flow.parameters()))
