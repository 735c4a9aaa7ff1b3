"""WGAN-GP on glaze swatches (L, a, b of fired test tiles, plus gloss).

Two time scales: the critic learns four times as fast as the generator, and
takes two updates for each of the generator's.  The critic loss is a Wasserstein
estimate, so it is negative most of the time; that's what we want to see.
"""

import argparse
import itertools

import torch
from torch import autograd, nn

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--critic-updates", type=int, default=2)
parser.add_argument("--lambda-gp", type=float, default=10.0)
parser.add_argument("--lr-g", type=float, default=1e-3)
parser.add_argument("--lr-d", type=float, default=4e-3)
parser.add_argument("--batch", type=int, default=48)
parser.add_argument("--seed", type=int, default=31)
opt = parser.parse_args()

torch.manual_seed(opt.seed)
torch.set_num_threads(1)

KILNS = {
    "celadon": (68.0, -9.0, 4.0, 0.80),
    "tenmoku": (22.0, 6.0, 5.0, 0.65),
    "shino": (81.0, 4.0, 12.0, 0.30),
    "copper red": (38.0, 41.0, 19.0, 0.85),
}


def swatches(n=1600):
    centres = torch.tensor(list(KILNS.values()))
    which = torch.randint(len(KILNS), (n,))
    spread = torch.tensor([4.0, 2.5, 2.5, 0.05])
    return centres[which] + spread * torch.randn(n, 4)


class Generator(nn.Module):
    def __init__(self, z=8, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(z, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2))
        self.colour = nn.Linear(width, 3)
        self.gloss = nn.Linear(width, 1)

    def forward(self, z):
        h = self.body(z)
        return torch.cat([self.colour(h), self.gloss(h)], dim=1)


class Critic(nn.Sequential):
    def __init__(self, width=64):
        super().__init__(
            nn.Linear(4, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 1, bias=False),
        )


def gradient_penalty(critic, real, fake):
    t = torch.rand(real.shape[0], 1)
    mixed = (t * real + (1 - t) * fake).requires_grad_(True)
    (g,) = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (g.norm(2, dim=1) - 1).pow(2).mean()


def endless(x, batch):
    while True:
        for chunk in x[torch.randperm(len(x))].split(batch):
            if len(chunk) == batch:
                yield chunk


raw = swatches()
x = (raw - raw.mean(0)) / raw.std(0)
stream = endless(x, opt.batch)
G, D = Generator(), Critic()
opt_g = torch.optim.Adam(G.parameters(), lr=opt.lr_g, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=opt.lr_d, betas=(0.0, 0.9))

for r in range(1, opt.rounds + 1):
    for real in itertools.islice(stream, opt.critic_updates):
        with torch.no_grad():
            fake = G(torch.randn(opt.batch, 8))
        wass = D(fake).mean() - D(real).mean()
        gp = gradient_penalty(D, real, fake)
        loss_d = wass + opt.lambda_gp * gp
        opt_d.zero_grad(set_to_none=True)
        loss_d.backward()
        opt_d.step()

    D.requires_grad_(False)  # saves the useless half of the generator's backward
    loss_g = -D(G(torch.randn(opt.batch, 8))).mean()
    opt_g.zero_grad(set_to_none=True)
    loss_g.backward()
    opt_g.step()
    D.requires_grad_(True)
    print(f"round {r:3d}  D {loss_d.item():+.5f}  W {-wass.item():+.5f}  gp {gp.item():.5f}  G {loss_g.item():+.5f}")

with torch.no_grad():
    lab = G(torch.randn(256, 8)) * raw.std(0) + raw.mean(0)
print("mean of the invented glazes (L a b gloss):", " ".join(f"{v:.3f}" for v in lab.mean(0).tolist()))
print(f"weights {sum(p.double().sum().item() for m in (G, D) for p in m.parameters()):.6f}")
