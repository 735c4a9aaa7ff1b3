"""WGAN-GP over contours of pottery shards. Critic loss is negative most of the time; n_critic = 3.
EMA generator kept for the catalogue; it is never trained itself."""
import copy

import torch
import torch.nn as nn

torch.manual_seed(9)
torch.set_num_threads(1)
CFG = dict(z=8, pts=24, n_critic=3, gp=10.0, iters=30, bs=32, lr=4e-4, ema=0.95, reset_at=18)


def shards(n):
    """Radius over angle. Real shards have a lip, some are broken right through (radius exactly zero there)."""
    th = torch.linspace(0, 6.2832, CFG["pts"])
    r = 5 + torch.randn(n, 1) + 0.6 * torch.sin(th * torch.randint(1, 4, (n, 1)))
    broken = torch.rand(n, CFG["pts"]) < 0.1
    return r.masked_fill(broken, 0.0) * 20.0         # millimetres


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CFG["z"], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CFG["pts"]))

    def forward(self, z):
        return self.body(z) * 20.0


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CFG["pts"], 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
                                  nn.Linear(64, 1))

    def forward(self, x):
        return self.body(x).squeeze(1)


def penalty(critic, real, fake):
    eps = torch.rand(len(real), 1)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    g, = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
    return ((g.pow(2).sum(1) + 1e-12).sqrt() - 1).pow(2).mean()


gen, critic = G(), D()
shadow = copy.deepcopy(gen).requires_grad_(False)
opt_g = torch.optim.Adam(gen.parameters(), lr=CFG["lr"], betas=(0.0, 0.9))
opt_d = torch.optim.Adam(critic.parameters(), lr=CFG["lr"], betas=(0.0, 0.9))


def critic_round():
    real = shards(CFG["bs"])
    with torch.no_grad():
        fake = gen(torch.randn(CFG["bs"], CFG["z"]))
    w = critic(real).mean() - critic(fake).mean()
    gp = penalty(critic, real, fake)
    loss = -w + CFG["gp"] * gp
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
    return loss.item(), w.item()


def generator_round():
    loss = -critic(gen(torch.randn(CFG["bs"], CFG["z"]))).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    with torch.no_grad():
        for s, p in zip(shadow.parameters(), gen.parameters()):
            s.lerp_(p, 1 - CFG["ema"])
    return loss.item()


for it in range(CFG["iters"]):
    if it == CFG["reset_at"]:
        # critic restart against staleness: its head is drawn anew, its Adam state dropped
        critic.body[-1].reset_parameters()
        opt_d.state.clear()
    for _ in range(CFG["n_critic"]):
        d_loss, w = critic_round()
    g_loss = generator_round()
    print(f"[{it:02d}] d_loss {d_loss:+.5f}  w {w:+.5f}  g_loss {g_loss:+.5f}")
