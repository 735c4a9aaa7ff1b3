"""A small GAN over spectra whose loss uses a softplus with a backward of its own."""
import torch
from torch import nn

torch.manual_seed(14)
torch.set_num_threads(1)
BINS, NOISE = 10, 4


class Softplus(torch.autograd.Function):
    """log(1 + exp(x)) that stays exact for large x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return grad * (e / (1 + e))


softplus = Softplus.apply


def spectra(count, generator, gain=1.0):
    centre = torch.rand(count, 1, generator=generator) * 4 + 3
    bins = torch.arange(BINS).float()
    return gain * torch.exp(-0.5 * (bins - centre) ** 2) + 0.02 * torch.rand(count, BINS, generator=generator)


class Game:
    def __init__(self):
        self.generator_net = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, BINS))
        self.critic_net = nn.Sequential(nn.Linear(BINS, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.opt_g = torch.optim.Adam(self.generator_net.parameters(), lr=2e-3, betas=(0.5, 0.99))
        self.opt_c = torch.optim.Adam(self.critic_net.parameters(), lr=2e-3, betas=(0.5, 0.99))
        self.rng = torch.Generator().manual_seed(90)

    def critic_step(self, real):
        fake = self.generator_net(torch.randn(len(real), NOISE, generator=self.rng)).detach()
        loss = softplus(-self.critic_net(real)).mean() + softplus(self.critic_net(fake)).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.item()

    def generator_step(self, count):
        fake = self.generator_net(torch.randn(count, NOISE, generator=self.rng))
        loss = softplus(-self.critic_net(fake)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()


game = Game()
for step in range(1, 41):
    real = spectra(32, game.rng)
    if step == 18:
        real[7] = spectra(1, game.rng, gain=-4000.0)[0]      # lamp and dark current exchanged
    critic_loss = game.critic_step(real)
    generator_loss = game.generator_step(32)
    print(f"{step} critic {critic_loss:.4f} generator {generator_loss:.4f}")

nets = list(game.generator_net.parameters()) + list(game.critic_net.parameters())
print("finite", int(all(bool(torch.isfinite(p).all()) for p in nets)))
