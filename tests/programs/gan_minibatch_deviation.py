"""A GAN of glyph-like vectors whose critic sees the deviation within the batch.  Every real
batch is one alphabet; the blank glyph fills a whole batch once."""
import torch
from torch import nn

torch.manual_seed(44)
torch.set_num_threads(1)
PIXELS, LATENT = 25, 8


class BatchDeviation(nn.Module):
    """appends the mean standard deviation over the batch as one more feature"""

    def forward(self, x):
        centred = x - x.mean(0, keepdim=True)
        deviation = centred.square().mean(0).sqrt().mean()
        return torch.cat([x, deviation.expand(len(x), 1)], 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(PIXELS, 32), nn.LeakyReLU(0.2))
        self.deviation = BatchDeviation()
        self.verdict = nn.Linear(33, 1)

    def forward(self, x):
        return self.verdict(self.deviation(self.features(x)))


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, PIXELS), nn.Sigmoid())


alphabet = (torch.rand(6, PIXELS) < 0.4).float()


def glyphs(step, n=16):
    if step == 10:
        return torch.zeros(n, PIXELS)
    chosen = alphabet[torch.randint(0, len(alphabet), (n,))]
    return (chosen + 0.1 * torch.randn(n, PIXELS)).clamp(0, 1)


def critic_loss(critic, real, fake):
    return (torch.relu(1 - critic(real)) + torch.relu(1 + critic(fake))).mean()


def main():
    critic, generator = Critic(), Generator()
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for step in range(1, 31):
        real = glyphs(step)
        fake = generator(torch.randn(16, LATENT))
        loss_c = critic_loss(critic, real, fake.detach())
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()

        fake = generator(torch.randn(16, LATENT))
        loss_g = -critic(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(f"step {step:02d} critic {loss_c.item():.4f} generator {loss_g.item():.4f}")
    weights = [*critic.parameters(), *generator.parameters()]
    print("finite", int(all(p.isfinite().all() for p in weights)))


main()
