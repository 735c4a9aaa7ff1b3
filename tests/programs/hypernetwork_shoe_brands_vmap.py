# A hypernetwork writes, for every shoe brand, the weights of a tiny net that turns foot measures into a size.
# The customers did not answer for every brand; brands join the catalogue while the training goes on.
import torch
from torch import nn
from torch.func import functional_call, vmap

FEET = 3          # length, width, instep
NOT_TRIED = float("nan")


def customers(count, brands, g):
    feet = torch.randn(count, FEET, generator=g)
    taste = torch.stack([torch.tensor([1.5, 0.2 + 0.1 * b, -0.15 * b]) for b in range(brands)])
    fitted = feet @ taste.T + 0.1 * torch.randn(count, brands, generator=g)
    tried = torch.rand(count, brands, generator=g) < 0.4
    return feet, torch.where(tried, fitted, NOT_TRIED)


def fitting_net():
    net = nn.Sequential(nn.Linear(FEET, 6), nn.Softsign(), nn.Linear(6, 2))
    return net.requires_grad_(False)


class Shoemaker(nn.Module):
    def __init__(self, brands, template):
        super().__init__()
        self.brand = nn.Embedding(brands, 4)
        self.shapes = {k: p.shape for k, p in template.named_parameters()}
        total = sum(s.numel() for s in self.shapes.values())
        self.write = nn.Sequential(nn.Linear(4, 16), nn.Mish(), nn.Linear(16, total))

    def grow(self, brands):
        old = self.brand.weight.detach()
        self.brand = nn.Embedding(brands, 4)
        with torch.no_grad():
            self.brand.weight[: len(old)] = old
            self.brand.weight[len(old):] = old.mean(0)

    def forward(self, ids):
        flat = self.write(self.brand(ids))
        parts = flat.split([s.numel() for s in self.shapes.values()], dim=-1)
        return {k: part.view(len(ids), *s) for (k, s), part in zip(self.shapes.items(), parts)}


def likelihood(prediction, size):
    known = ~size.isnan()
    size = torch.where(known, size, 0.0)
    mean, log_scale = prediction[..., 0], prediction[..., 1].clamp(-3, 3)
    each = 0.5 * ((size - mean) * torch.exp(-log_scale)).square() + log_scale
    return (each * known).sum() / known.sum().clamp(min=1)


def fit(steps=40):
    g = torch.Generator().manual_seed(12)
    torch.manual_seed(12)
    template = fitting_net()
    maker = Shoemaker(3, template)
    optimizer = torch.optim.Adam(maker.parameters(), lr=0.02)
    wear = vmap(lambda weights, feet: functional_call(template, weights, (feet,)), in_dims=(0, None))
    brands = 3
    for step in range(1, steps + 1):
        if step == 16:
            brands = 5
            maker.grow(brands)
            optimizer = torch.optim.Adam(maker.parameters(), lr=0.015)
        feet, size = customers(24, brands, g)
        if step % 9 == 0:
            size[:] = NOT_TRIED       # shop closed, questionnaire came back empty
        predicted = wear(maker(torch.arange(brands)), feet)
        loss = likelihood(predicted, size.T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}, {brands} brands, {int((~size.isnan()).sum())} answers, nll {loss.item():.5f}")
    return maker


maker = fit()
print("sum of squares of the shoemaker", sum(p.detach().square().sum().item() for p in maker.parameters()))
