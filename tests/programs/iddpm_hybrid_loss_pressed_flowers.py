import copy
import math
import torch
from torch import nn

# "Improved DDPM": noise prediction + learned variance, L_hybrid = L_simple + lambda * L_vlb

def cosine_betas(T, s=0.008):
    f = lambda u: math.cos((u + s) / (1 + s) * math.pi / 2) ** 2
    return torch.tensor([min(1 - f((i + 1) / T) / f(i / T), 0.999) for i in range(T)])

class Diffusion:
    def __init__(self, T):
        self.T = T
        self.betas = cosine_betas(T)
        alphas = 1 - self.betas
        self.abar = torch.cumprod(alphas, 0)
        self.abar_prev = torch.cat([torch.ones(1), self.abar[:-1]])
        self.post_var = self.betas * (1 - self.abar_prev) / (1 - self.abar)
        self.c0 = self.betas * self.abar_prev.sqrt() / (1 - self.abar)
        self.ct = (1 - self.abar_prev) * alphas.sqrt() / (1 - self.abar)

    def noisy(self, x0, t, eps):
        a = self.abar[t][:, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * eps

    def losses(self, net, x0, t, eps):
        xt = self.noisy(x0, t, eps)
        eps_hat, v = net(xt, t / self.T).chunk(2, dim=1)
        simple = (eps - eps_hat).pow(2).mean()
        # --- variational bound, mean detached as in the paper
        a = self.abar[t][:, None]
        x0_hat = ((xt - (1 - a).sqrt() * eps_hat.detach()) / a.sqrt()).clamp(-1, 1)
        true_mean = self.c0[t][:, None] * x0 + self.ct[t][:, None] * xt
        mean = self.c0[t][:, None] * x0_hat + self.ct[t][:, None] * xt
        lower = torch.log(self.post_var[t])[:, None]
        upper = torch.log(self.betas[t])[:, None]
        frac = (v + 1) / 2
        logvar = frac * upper + (1 - frac) * lower
        kl = 0.5 * (-1.0 + logvar - lower + torch.exp(lower - logvar)
                    + (true_mean - mean).pow(2) * torch.exp(-logvar))
        return simple, kl.mean() / math.log(2)

class Net(nn.Module):
    def __init__(self, d, w=48):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, w), nn.SiLU(), nn.Linear(w, w))
        self.inp = nn.Linear(d, w)
        self.mid = nn.Sequential(nn.LayerNorm(w), nn.SiLU(), nn.Linear(w, w))
        self.out = nn.Linear(w, 2 * d)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        k = torch.arange(8) + 1
        te = torch.cat([torch.sin(t[:, None] * k), torch.cos(t[:, None] * k)], 1)
        h = self.inp(x) + self.time(te)
        return self.out(h + self.mid(h))

def petals(n):
    # contour of a flower: radius at 16 angles, in [-1, 1]
    k = torch.randint(3, 7, (n, 1)).float()
    ang = torch.linspace(0, 2 * math.pi, 17)[:-1]
    return 0.7 * torch.cos(k * ang + 6.28 * torch.rand(n, 1)) + 0.05 * torch.randn(n, 16)

torch.manual_seed(1)
diff = Diffusion(200)
net = Net(16)
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01)
STEPS = 40
for step in range(STEPS):
    x0 = petals(4)
    t = torch.randint(0, diff.T, (4,))
    simple, vlb = diff.losses(net, x0, t, torch.randn_like(x0))
    loss = simple + 0.001 * vlb
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), net.parameters()):
            e.lerp_(p, 0.05)
    print(f"{step + 1}/{STEPS} simple={simple.item():.7f} vlb={vlb.item():.7f}")
print("final", sum(p.abs().sum().item() for p in ema.parameters()))
