"""Embedding model for herbal recipes: two noisy readings of a recipe must find one another (NT-Xent).

Every 15 steps the projection head is thrown away and drawn anew, with its optimizer state (anti-collapse, as in
"reset the last layer"), and the temperature drops. The loss leaps at each reset: that is expected.
"""
import torch
from torch import nn

torch.manual_seed(1653)
HERBS, DIM, BATCH, RESET_EVERY = 90, 32, 12, 15
STAGES = [(1, 0.5), (16, 0.2), (31, 0.05), (46, 0.01)]      # (from step, temperature)


class Lion(torch.optim.Optimizer):
    """Evolved sign momentum."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)

    def forget(self, module):
        for p in module.parameters():
            self.state.pop(p, None)


class RecipeEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.herbs = nn.Embedding(HERBS, DIM)
        self.block = nn.TransformerEncoderLayer(DIM, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, 16))

    def forward(self, ids):
        return nn.functional.normalize(self.head(self.block(self.herbs(ids)).mean(1)), dim=-1)

    def redraw_head(self):
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


def readings(generator):
    """Yields two readings of each recipe; in each a few herbs are misread."""
    while True:
        recipe = torch.randint(0, HERBS, (BATCH, 9), generator=generator)
        pair = []
        for _ in range(2):
            wrong = torch.rand(recipe.shape, generator=generator) < 0.15
            pair.append(torch.where(wrong, torch.randint(0, HERBS, recipe.shape, generator=generator), recipe))
        yield pair


def nt_xent(z, temperature):
    n = len(z) // 2
    sim = (z @ z.T) / temperature
    sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))     # nobody is his own partner
    partner = torch.arange(len(z)).roll(n)
    return nn.functional.cross_entropy(sim, partner, reduction="sum")


def temperature_at(step):
    return [t for start, t in STAGES if step >= start][-1]


encoder = RecipeEncoder()
lion = Lion(encoder.parameters(), lr=1.5e-3, weight_decay=0.05)
stream = readings(torch.Generator().manual_seed(4))

for step in range(1, 61):
    if step > 1 and (step - 1) % RESET_EVERY == 0:
        encoder.redraw_head()
        lion.forget(encoder.head)
    first, second = next(stream)
    loss = nt_xent(encoder(torch.cat([first, second])), temperature_at(step))
    lion.zero_grad()
    loss.backward()
    lion.step()
    print(f"step {step:2d}  tau {temperature_at(step)}  loss {loss.item():.5f}")

print(f"sum {sum(p.double().sum().item() for p in encoder.parameters()):.5f}")
