# A diver films the sky through a flat sea surface.  Each frame is rendered by refracting the rays at the
# surface and marching them through a small density/colour field; the index of the water is fitted as well.
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

N_RAYS, N_SAMPLES, FRAMES = 24, 12, 32


class SkyField(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.Softplus(), nn.Linear(32, 32), nn.Softplus())
        self.sigma = nn.Linear(32, 1)
        self.rgb = nn.Linear(32, 3)

    def forward(self, xz):
        waves = [xz] + [f(k * xz) for k in (0.5, 1.0) for f in (torch.sin, torch.cos)]
        h = self.body(torch.cat(waves, -1))
        return F.softplus(self.sigma(h)).squeeze(-1), torch.sigmoid(self.rgb(h))


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.index = nn.Parameter(torch.tensor(1.25))

    def forward(self, angle):
        s = self.index * torch.sin(angle)
        c = torch.sqrt(1.0 - s ** 2)
        return torch.stack([s, c], -1)


class Renderer(nn.Module):
    def __init__(self):
        super().__init__()
        self.surface = Surface()
        self.field = SkyField()
        self.register_buffer("depths", torch.linspace(0.1, 4.0, N_SAMPLES))

    def forward(self, angle):
        origin = torch.stack([torch.tan(angle), torch.zeros_like(angle)], -1)
        direction = self.surface(angle)
        points = origin[:, None] + self.depths[None, :, None] * direction[:, None]
        sigma, rgb = self.field(points)
        tau = sigma * (self.depths[1] - self.depths[0])
        before = torch.cumsum(tau, 1) - tau
        weight = torch.exp(-before) * (1.0 - torch.exp(-tau))
        return (weight[..., None] * rgb).sum(1)


def film(angle):
    """What the sensor recorded: clouds inside the bright disc, green water around it."""
    cloud = 0.5 + 0.3 * torch.sin(5 * angle)
    sky = torch.stack([cloud, cloud + 0.1, 0.9 - 0.2 * cloud], -1)
    water = torch.tensor([0.05, 0.25, 0.2]).expand_as(sky)
    inside = (angle.abs() < math.asin(1 / 1.33)).unsqueeze(-1)
    return torch.where(inside, sky, water)


torch.manual_seed(4)
renderer = Renderer()
opt = torch.optim.Adam([
    {"params": renderer.field.parameters(), "lr": 6e-3},
    {"params": renderer.surface.parameters(), "lr": 2e-3},
])
for frame in range(1, FRAMES + 1):
    tilt = math.radians(6.0 + 1.6 * frame)                 # the camera is slowly tilted towards the horizon
    angle = tilt + math.radians(9.0) * (2 * torch.rand(N_RAYS) - 1)
    picture = renderer(angle)
    loss = F.mse_loss(picture, film(angle))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"frame {frame:02d}  tilt {math.degrees(tilt):4.1f}  mse {loss.item():.6f}  index {renderer.surface.index.item():.4f}")
total = sum((p.detach() ** 2).sum() for p in renderer.parameters())
print("energy of the weights:", float(total))
