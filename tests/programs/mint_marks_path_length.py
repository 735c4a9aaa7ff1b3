# A tiny style-based generator of mint marks (8x8 dies), with lazy path length and gradient penalties.
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

Z, W, C = 8, 16, 12


class Mapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(Z, W), nn.Linear(W, W)

    def forward(self, z):
        z = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
        return F.leaky_relu(self.b(F.leaky_relu(self.a(z), 0.2)), 0.2)


class StyledConv(nn.Module):
    def __init__(self, cin, cout, demod=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin, 3, 3) / math.sqrt(9 * cin))
        self.style = nn.Linear(W, cin)
        nn.init.ones_(self.style.bias)
        self.strength = nn.Parameter(torch.zeros(()))
        self.demod = demod

    def forward(self, x, w):
        n, cin, h, wd = x.shape
        k = self.weight[None] * self.style(w)[:, None, :, None, None]
        if self.demod:
            k = k * (k.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        y = F.conv2d(x.reshape(1, n * cin, h, wd), k.flatten(0, 1), padding=1, groups=n).view(n, -1, h, wd)
        return y + self.strength * torch.randn(n, 1, h, wd) if self.demod else y


class Synthesis(nn.Module):
    def __init__(self):
        super().__init__()
        self.const = nn.Parameter(torch.randn(1, C, 4, 4))
        self.c1, self.c2, self.rgb = StyledConv(C, C), StyledConv(C, C), StyledConv(C, 1, demod=False)

    def forward(self, w):
        x = F.leaky_relu(self.c1(self.const.expand(len(w), -1, -1, -1), w), 0.2)
        x = F.leaky_relu(self.c2(F.interpolate(x, scale_factor=2), w), 0.2)
        return self.rgb(x, w)


def dies(n):
    yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    c = 2.5 + 2 * torch.rand(n, 2, 1, 1)
    r = ((yy - c[:, 0]).square() + (xx - c[:, 1]).square()).sqrt()
    return torch.exp(-(r - 2).square()).unsqueeze(1) * 2 - 1


torch.manual_seed(1)
mapping, synth = Mapping(), Synthesis()
critic = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, 2, 1), nn.LeakyReLU(0.2),
                       nn.Flatten(), nn.Linear(64, 1))
ema = copy.deepcopy(synth).requires_grad_(False)
g_opt = torch.optim.Adam([*mapping.parameters(), *synth.parameters()], lr=2e-3, betas=(0.0, 0.99))
d_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))
path_mean = torch.zeros(())

for it in range(1, 41):
    critic.requires_grad_(True)
    real = dies(16).requires_grad_(it % 8 == 1)
    fake = synth(mapping(torch.randn(16, Z))).detach()
    score = critic(real)
    d_loss = F.softplus(-score).mean() + F.softplus(critic(fake)).mean()
    if real.requires_grad:
        grad, = torch.autograd.grad(score.sum(), real, create_graph=True)
        d_loss = d_loss + 4 * grad.square().sum((1, 2, 3)).mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()

    critic.requires_grad_(False)
    w = mapping(torch.randn(16, Z))
    img = synth(w)
    g_loss = -critic(img).mean()
    penalty = torch.zeros(())
    if it % 4 == 0:
        noise = torch.randn_like(img) / 8
        jac, = torch.autograd.grad((img * noise).sum(), w, create_graph=True)
        length = jac.square().sum(1).sqrt()
        path_mean = path_mean.lerp(length.mean().detach(), 0.1)
        penalty = 8 * (length - path_mean).square().mean()
    g_opt.zero_grad()
    (g_loss + penalty).backward()
    g_opt.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), synth.parameters()):
            e.lerp_(p, 0.1)
    print(f"{it:3d} critic {d_loss.item():.4f} generator {g_loss.item():+.4f} path {penalty.item():.4f}")

print("weights^2 of all networks:", round(sum(p.detach().square().sum().item() for m in (mapping, synth, critic, ema)
                                              for p in m.parameters()), 3))
