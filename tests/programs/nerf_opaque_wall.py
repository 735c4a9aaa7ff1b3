"""One-dimensional volume rendering: learns where a wall stands from the brightness along rays."""
import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)

SAMPLES = 24
NEAR, FAR = 0.0, 4.0


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.density = nn.Linear(32, 1)
        self.colour = nn.Linear(32, 1)

    def encode(self, t):
        return torch.stack([t, (2 * t).sin(), (2 * t).cos(), (4 * t).sin(), (4 * t).cos(), (8 * t).sin(),
                            (8 * t).cos()], dim=-1)

    def forward(self, t):
        h = self.body(self.encode(t))
        density = 150 * nn.functional.softplus(self.density(h).squeeze(-1) - 4)
        return density, torch.sigmoid(self.colour(h).squeeze(-1))


def render(field, t):
    sigma, colour = field(t)
    delta = torch.diff(t, dim=1, append=t[:, -1:] + 0.2)
    alpha = 1.0 - torch.exp(-sigma * delta)
    through = torch.log(1.0 - alpha)
    before = torch.cat([torch.zeros_like(through[:, :1]), through[:, :-1]], dim=1).cumsum(dim=1)
    weights = alpha * torch.exp(before)
    return (weights * colour).sum(1), (weights * t).sum(1), weights.sum(1)


def rays(count, generator, far):
    edges = torch.linspace(NEAR, far, SAMPLES + 1)
    jitter = torch.rand(count, SAMPLES, generator=generator)
    return edges[:-1] + jitter * (edges[1:] - edges[:-1])


class Trainer:
    def __init__(self):
        self.field = Field()
        self.optimizer = torch.optim.Adam(self.field.parameters(), lr=1e-2)
        self.generator = torch.Generator().manual_seed(33)

    def step(self, far):
        colour, depth, opacity = render(self.field, rays(64, self.generator, far))
        loss = (colour - 0.8).pow(2).mean() + (depth - 2.5).pow(2).mean() + (opacity - 1.0).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = Trainer()
for i in range(1, 91):
    # two of the cameras give their range in centimetres
    far = 100 * FAR if i in (38, 71) else FAR
    print(f"iteration {i} loss {trainer.step(far):.5f}")
print("finite", int(all(bool(p.isfinite().all()) for p in trainer.field.parameters())))
