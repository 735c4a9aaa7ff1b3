# Generator of droplet sets (radius, fall speed, charge) of a cloud, trained with the sliced Wasserstein distance.
import torch
import torch.nn as nn

gen = torch.Generator().manual_seed(2024)
N_DROPS, N_DIRS = 64, 32


def observed_scene(index):
    """What the probe on the aeroplane saw on leg `index`: liquid water content, turbulence and the droplets."""
    water = 0.0 if index in (16, 27) else 0.3 + torch.rand((), generator=gen).item()
    turb = torch.rand((), generator=gen).item()
    radius = torch.randn(N_DROPS, generator=gen).mul(0.3 + 0.2 * turb).exp()
    fall = 0.4 * radius ** 2
    charge = 0.2 * torch.randn(N_DROPS, generator=gen) + 0.1 * turb
    return torch.tensor([water, turb]), water * torch.stack([radius, fall, charge], dim=1)


class DropletGenerator(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.latent = latent
        self.body = nn.Sequential(nn.Linear(latent + 2, 32), nn.LeakyReLU(0.1), nn.Linear(32, 32), nn.LeakyReLU(0.1),
                                  nn.Linear(32, 3))

    def forward(self, weather):
        z = torch.randn(N_DROPS, self.latent, generator=gen)
        drops = self.body(torch.cat([z, weather.expand(N_DROPS, 2)], dim=1))
        return weather[0] * drops


def sliced_wasserstein(a, b):
    theta = torch.randn(3, N_DIRS, generator=gen)
    theta = theta / theta.norm(dim=0)
    pa, _ = (a @ theta).sort(dim=0)
    pb, _ = (b @ theta).sort(dim=0)
    moved = (pa - pb).pow(2).mean()
    return moved.pow(1 / 2)


torch.manual_seed(2024)
model = DropletGenerator()
optim = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.5, 0.99))
for leg in range(1, 39):
    weather, drops = observed_scene(leg)
    optim.zero_grad()
    distance = sliced_wasserstein(model(weather), drops)
    distance.backward()
    optim.step()
    print("leg", leg, "water", f"{weather[0].item():.3f}", "distance", f"{distance.item():.5f}")

total = sum(p.detach().double().pow(2).sum() for p in model.parameters())
print("squared weights in total", f"{total.item():.6f}")
