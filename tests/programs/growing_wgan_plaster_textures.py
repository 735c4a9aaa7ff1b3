# Wasserstein GAN for plaster and stucco textures.  The generator starts at 8x8 and grows to 16x16.
import copy
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2024)
ITERATIONS, N_CRITIC, CLIP = 34, 3, 0.08
GROW_AT, FADE = 16, 8


def plaster(n):
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    angle = torch.rand(n, 1, 1) * 3.14159
    freq = 0.4 + torch.rand(n, 1, 1)
    waves = torch.sin(freq * (xx * angle.cos() + yy * angle.sin()))
    return (0.6 * waves + 0.2 * torch.randn(n, 16, 16)).clamp(-1, 1).unsqueeze(1)


class Generator(nn.Module):
    def __init__(self, z=12, c=10):
        super().__init__()
        self.seed = nn.Linear(z, c * 16)
        self.low = nn.ConvTranspose2d(c, c, 4, 2, 1)
        self.low_grey = nn.Conv2d(c, 1, 1)
        self.high = nn.ModuleDict()
        self.alpha = 0.0
        self.c = c

    def grow(self):
        self.high["up"] = nn.ConvTranspose2d(self.c, self.c, 4, 2, 1)
        self.high["grey"] = nn.Conv2d(self.c, 1, 3, padding=1)
        return list(self.high.parameters())

    def forward(self, z):
        h = F.leaky_relu(self.seed(z), 0.2).view(len(z), self.c, 4, 4)
        h = F.leaky_relu(self.low(h), 0.2)
        coarse = F.interpolate(self.low_grey(h), scale_factor=2, mode="bilinear")
        if not self.high:
            return coarse.tanh()
        fine = self.high["grey"](F.leaky_relu(self.high["up"](h), 0.2))
        return torch.lerp(coarse, fine, self.alpha).tanh()


critic = nn.Sequential(
    nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Conv2d(8, 16, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Flatten(), nn.Linear(256, 1, bias=False),
)
gen = Generator()
shown = copy.deepcopy(gen)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3, alpha=0.9, eps=0.0)
opt_g = torch.optim.RMSprop(gen.parameters(), lr=1e-3, alpha=0.9, eps=0.0)

for it in range(1, ITERATIONS + 1):
    if it == GROW_AT:
        opt_g.add_param_group({"params": gen.grow()})
        shown = copy.deepcopy(gen)
    if it >= GROW_AT:
        gen.alpha = min(1.0, (it - GROW_AT) / FADE)
        shown.alpha = gen.alpha

    for _ in range(N_CRITIC):
        real = plaster(16)
        with torch.no_grad():
            fake = gen(torch.randn(16, 12))
        loss_c = critic(fake).mean() - critic(real).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        with torch.no_grad():
            for w in critic.parameters():
                w.clamp_(-CLIP, CLIP)

    loss_g = -critic(gen(torch.randn(16, 12))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    with torch.no_grad():
        for a, b in zip(shown.parameters(), gen.parameters()):
            a.lerp_(b, 0.1)
    print(f"iter {it:3d} | critic {loss_c.item():+.5f} | generator {loss_g.item():+.5f} | fade {gen.alpha:.3f}")

everything = list(gen.parameters()) + list(critic.parameters())
print("weights squared and summed:", sum(float((w.detach() ** 2).sum()) for w in everything))
