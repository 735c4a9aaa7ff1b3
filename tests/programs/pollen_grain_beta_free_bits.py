# VAE for pollen-grain outlines (radius over 32 angles). Gaussian decoder with a learned log sigma,
# so the loss goes well below zero. Cyclic beta, free bits per latent, KL in nats.
import math
import torch as th
from torch import nn

th.manual_seed(2112)


class BetaCycle:
    """0 -> 1 in the first half of each period, then 1. Starts at exactly 0."""
    def __init__(self, period): self.period, self.n = period, -1
    def __next__(self):
        self.n += 1
        return min(1.0, 2 * (self.n % self.period) / self.period)


class FreeBits(th.autograd.Function):
    """max(kl, lam) whose gradient is exactly zero below the floor"""
    @staticmethod
    def forward(ctx, kl, lam):
        ctx.save_for_backward(kl > lam)
        return kl.clamp(min=lam)

    @staticmethod
    def backward(ctx, g):
        above, = ctx.saved_tensors
        return g * above, None


class PollenVAE(nn.Module):
    def __init__(self, n=32, z=6, h=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, h), nn.ELU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ELU(), nn.Linear(h, n))
        self.log_sigma = nn.Parameter(th.zeros(n))
        self.unused_species_head = nn.Linear(z, 4)    # for the next paper, gets no gradient

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        logvar = logvar.clamp(-12, 6)
        z = mu + th.randn_like(mu) * (0.5 * logvar).exp()
        kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).mean(0)
        s = self.log_sigma.clamp(min=-4.0)
        nll = (0.5 * ((x - self.dec(z)) * (-s).exp()) ** 2 + s + 0.5 * math.log(2 * math.pi)).sum(1).mean()
        return nll, kl, mu


def outlines(n):
    phi = th.linspace(0, 2 * math.pi, 33)[:-1]
    lobes = th.randint(2, 5, (n, 1))
    amp = 0.1 + 0.2 * th.rand(n, 1)
    return 1 + amp * th.cos(lobes * phi + 6.28 * th.rand(n, 1)) + 0.01 * th.randn(n, 32)


def active_units(mu):
    return int((mu.var(0) > 0.01).sum())


def per_unit_snr(kl):
    # log of a KL that may be 0 in the collapsed units: -inf in the log is harmless, only printed
    return th.log((kl.detach() * 1e3).floor() / 1e3).min().item()


model = PollenVAE()
groups = [
    {"params": [p for n, p in model.named_parameters() if n != "log_sigma"], "lr": 3e-3},
    {"params": [model.log_sigma], "lr": 8e-2},
]
opt = th.optim.Adam(groups)
beta_of = BetaCycle(period=20)
for step in range(60):
    x = outlines(64)
    beta = next(beta_of)
    nll, kl, mu = model(x)
    kl_fb = FreeBits.apply(kl, 0.05).sum()
    loss = nll + beta * kl_fb
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 50.0)
    opt.step()
    print(f"{step:2d} beta {beta:.2f} loss {loss.item():+.5f} nll {nll.item():+.5f} kl {kl.sum().item():.5f} "
          f"active {active_units(mu)} lowest log-kl {per_unit_snr(kl):.3f}")
