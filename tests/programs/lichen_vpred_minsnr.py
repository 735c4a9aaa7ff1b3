"""v-prediction diffusion on lichen patches (8x8), zero terminal SNR (Lin et al. 2023), min-SNR-gamma weights."""
import torch
from torch import nn

torch.manual_seed(11)
torch.set_num_threads(1)


class Schedule:
    def __init__(self, T=200, lo=1e-4, hi=0.04):
        betas = torch.linspace(lo, hi, T, dtype=torch.float64)
        root = torch.cumprod(1 - betas, 0).sqrt()
        # rescale so that the last step is pure noise
        first, last = root[0].clone(), root[-1].clone()
        root = (root - last) * first / (first - last)
        self.T = T
        self.alpha = root.float()
        self.sigma = (1 - root ** 2).sqrt().float()

    def add_noise(self, x, eps, t):
        a, s = self.alpha[t].view(-1, 1, 1, 1), self.sigma[t].view(-1, 1, 1, 1)
        return a * x + s * eps, a * eps - s * x

    def weight(self, t, gamma=5.0):
        snr = (self.alpha[t] / self.sigma[t]) ** 2
        # v-objective: min(snr, gamma) / (snr + 1); Karras-style variant used by the x0 ablation: min(snr, gamma) / snr
        return torch.minimum(snr, torch.full_like(snr, gamma)) / snr


class TimeEmbed(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, -5, d // 2)))
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, t):
        a = t.float()[:, None] * self.freq
        return self.mlp(torch.cat([a.sin(), a.cos()], -1))


class PatchNet(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.temb = TimeEmbed(ch)
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.mid = nn.Conv2d(ch, ch, 3, padding=1)
        self.norm = nn.GroupNorm(4, ch)
        self.out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.temb(t)[:, :, None, None]
        h = h + self.mid(torch.nn.functional.silu(self.norm(h)))
        return self.out(torch.nn.functional.silu(h))


def patches(n):
    yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    c = torch.rand(n, 2) * 8
    r = 1 + 2 * torch.rand(n)
    d2 = (yy - c[:, 0, None, None]) ** 2 + (xx - c[:, 1, None, None]) ** 2
    return (2 * torch.exp(-d2 / r[:, None, None] ** 2) - 1)[:, None]


class EMA:
    def __init__(self, net, decay):
        self.decay, self.store = decay, {k: v.detach().clone() for k, v in net.named_parameters()}

    @torch.no_grad()
    def update(self, net):
        for k, v in net.named_parameters():
            self.store[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


sch, net = Schedule(), PatchNet()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
ema = EMA(net, 0.9)
stream = torch.Generator().manual_seed(6)

for step in range(1, 41):
    x = patches(8)
    t = torch.randint(0, sch.T, (8,), generator=stream)
    noisy, v = sch.add_noise(x, torch.randn_like(x), t)
    per = (net(noisy, t) - v).pow(2).mean((1, 2, 3))
    loss = (sch.weight(t) * per).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    ema.update(net)
    print(f"step {step:02d} loss {loss.item():.6f} t_max {int(t.max())}")
print("sum of weights:", round(sum(p.detach().double().sum().item() for p in net.parameters()), 6))
