"""A small recurrent world model of a marble run: the camera gives positions, the model dreams on.

ELBO with a KL weight that is annealed from 0 to 1 over the whole training.
"""
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, Dataset

BATCH = 8
EPOCHS = 6
SEED = 8


class Runs(Dataset):
    """Marbles that roll through a wavy channel and bounce at its ends."""

    def __init__(self, count, length=20):
        gen = torch.Generator().manual_seed(SEED)
        self.frames = torch.zeros(count, length, 3)
        x = torch.rand(count, generator=gen)
        v = 0.1 + 0.1 * torch.rand(count, generator=gen)
        for t in range(length):
            v = v - 0.05 * torch.cos(9.0 * x)
            x = x + v
            hit = (x < 0) | (x > 1)
            x, v = x.clamp(0, 1), torch.where(hit, -0.8 * v, v)
            self.frames[:, t] = torch.stack([x, v, torch.sin(9.0 * x)], 1)
        self.frames += 0.02 * torch.randn(self.frames.shape, generator=gen)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i]


class WorldModel(nn.Module):
    def __init__(self, latent=6, hidden=32):
        super().__init__()
        self.latent = latent
        self.encode = nn.Sequential(nn.Linear(3, hidden), nn.ELU())
        self.memory = nn.GRUCell(latent, hidden)
        self.prior_head = nn.Linear(hidden, 2 * latent)
        self.posterior_head = nn.Linear(2 * hidden, 2 * latent)
        self.decode = nn.Sequential(nn.Linear(hidden + latent, hidden), nn.ELU(), nn.Linear(hidden, 3))

    @staticmethod
    def gaussian(parameters):
        mean, raw = parameters.chunk(2, dim=-1)
        return Normal(mean, nn.functional.softplus(raw) + 0.05)

    def forward(self, frames):
        b, length, _ = frames.shape
        h = frames.new_zeros(b, self.memory.hidden_size)
        z = frames.new_zeros(b, self.latent)
        fit, kl = 0.0, 0.0
        for t in range(length):
            h = self.memory(z, h)
            prior = self.gaussian(self.prior_head(h))
            seen = self.encode(frames[:, t])
            posterior = self.gaussian(self.posterior_head(torch.cat([h, seen], -1)))
            z = posterior.rsample()
            fit = fit + (self.decode(torch.cat([h, z], -1)) - frames[:, t]).pow(2).sum(-1).mean() / 0.02
            kl = kl + kl_divergence(posterior, prior).sum(-1).mean()
        return fit / length, kl / length


def annealing(total, warm=0.6):
    ramp = torch.linspace(0.0, 1.0, int(total * warm))
    return torch.cat([ramp, torch.ones(total - len(ramp))])


def train():
    torch.manual_seed(SEED)
    data = Runs(52)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(SEED))
    model = WorldModel()
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
    betas = annealing(len(data) // BATCH * EPOCHS)
    step = 0
    for epoch in range(EPOCHS):
        for frames in loader:
            beta = float(betas[step])
            fit, kl = model(frames)
            loss = fit + beta * kl
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            step += 1
            print(f"epoch {epoch} step {step} beta {beta:.4f} fit {fit.item():.6f} kl {kl.item():.6f}", flush=True)
    return model


if __name__ == "__main__":
    model = train()
    print(sum(p.abs().sum().item() for p in model.parameters()), flush=True)
