import torch
import torch.nn as nn
import torch.nn.functional as F


class EvidentialCounts(nn.Module):
    """Predicts a gamma distribution over the rate of germination: shape and inverse scale."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_in, n_hidden), nn.SiLU(), nn.Linear(n_hidden, n_hidden), nn.SiLU())
        self.shape_head = nn.Linear(n_hidden, 1)
        self.scale_head = nn.Linear(n_hidden, 1)
        nn.init.constant_(self.shape_head.bias, 1.5)

    def forward(self, x):
        z = self.trunk(x)
        evidence = F.relu(self.shape_head(z)).squeeze(1)
        inverse_scale = F.softplus(self.scale_head(z)).squeeze(1) + 0.05
        return evidence, inverse_scale


class GammaPoissonLoss(nn.Module):
    def forward(self, a, b, y):
        gain = torch.lgamma(a) - torch.lgamma(a + y)
        nll = gain + torch.lgamma(y + 1) - a * torch.log(b / (b + 1)) + y * torch.log(b + 1)
        # doubt costs nothing, wrong certainty does
        surplus = (a / b - y).abs() * (a + b)
        return nll.mean() + 0.002 * surplus.mean()


def make_flasks(n):
    g = torch.Generator().manual_seed(19)
    sugar = torch.rand(n, generator=g)
    light = torch.rand(n, generator=g)
    bleach = torch.rand(n, generator=g)
    rate = 9 * sugar * (1 - light) * (bleach < 0.7).float()
    counts = torch.poisson(rate, generator=g)
    return torch.stack([sugar, light, bleach], 1) * 2 - 1, counts


def main():
    torch.manual_seed(23)
    x, y = make_flasks(160)
    model = EvidentialCounts(3, 24)
    criterion = GammaPoissonLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    history = []
    for epoch in range(40):
        a, b = model(x)
        loss = criterion(a, b, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        print("epoch {:>2}  loss {:.4f}  mean evidence {:.3f}".format(epoch + 1, history[-1], a.mean().item()))
    norm = torch.cat([p.detach().flatten() for p in model.parameters()]).square().sum().item()
    print("squared weights", norm)


if __name__ == "__main__":
    main()
