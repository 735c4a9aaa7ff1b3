"""Iterative magnitude pruning (lottery ticket) of a weight-normalised network for tabular credit data."""
import torch
import torch.nn as nn
import torch.nn.functional as F

ROUNDS = 4
STEPS_PER_ROUND = 12
PRUNE_FRACTION = 0.35
BATCH = 64


class WNLinear(nn.Module):
    """w = g * v / |v| per output unit (Salimans & Kingma), with a pruning mask on v."""

    def __init__(self, n_in, n_out, std):
        super().__init__()
        self.v = nn.Parameter(std * torch.randn(n_out, n_in))
        self.g = nn.Parameter(torch.ones(n_out, 1))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("mask", torch.ones(n_out, n_in))

    def forward(self, x):
        v = self.v * self.mask
        weight = self.g * v / v.norm(dim=1, keepdim=True)
        return F.linear(x, weight, self.bias)


class CreditNet(nn.Module):
    def __init__(self, n_features=16, width=24):
        super().__init__()
        self.layers = nn.ModuleList([
            WNLinear(n_features, width, std=0.25),
            WNLinear(width, width, std=0.2),
            WNLinear(width, width, std=0.2),
        ])
        self.head = WNLinear(width, 2, std=0.1)

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.head(x)

    def prunable(self):
        return [m for m in self.modules() if isinstance(m, WNLinear)]


def global_magnitude_prune(model, fraction):
    """Remove the smallest surviving weights, whichever layer they are in."""
    alive = torch.cat([m.v.detach()[m.mask.bool()].abs() for m in model.prunable()])
    threshold = alive.quantile(fraction)
    for m in model.prunable():
        m.mask *= (m.v.detach().abs() > threshold).float()


def sparsity(model):
    masks = torch.cat([m.mask.flatten() for m in model.prunable()])
    return 1 - masks.mean().item()


class CreditData:
    def __init__(self, n=1500, n_features=16, seed=37):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, n_features, generator=g)
        risk = self.x[:, 0] * self.x[:, 1] + self.x[:, 2] - 0.5 * self.x[:, 3].abs()
        self.y = (risk + 0.3 * torch.randn(n, generator=g) > 0).long()
        self.generator = g

    def batch(self, size):
        rows = torch.randint(0, len(self.x), (size,), generator=self.generator)
        return self.x[rows], self.y[rows]


def train_round(model, optimizer, data, number, first_step):
    for step in range(first_step, first_step + STEPS_PER_ROUND):
        x, y = data.batch(BATCH)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"round {number} step {step} loss {loss.item():.5f} sparsity {sparsity(model):.3f}")
    return first_step + STEPS_PER_ROUND


def main():
    torch.manual_seed(37)
    model, data = CreditNet(), CreditData()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    next_step = 1
    for number in range(ROUNDS):
        next_step = train_round(model, optimizer, data, number, next_step)
        global_magnitude_prune(model, PRUNE_FRACTION)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
