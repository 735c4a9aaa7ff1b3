"""Where does the ball land? Mixture density network for squash rebounds, every step as long as its curvature allows."""
import math

import torch
import torch.nn as nn


class ReachOptimizer(torch.optim.Optimizer):
    """Goes along the gradient as far as the quadratic model of the loss changes by `reach`."""

    def __init__(self, params, reach=0.02):
        super().__init__(params, dict(reach=reach))

    @torch.no_grad()
    def step(self, curvature):
        for group in self.param_groups:
            length = torch.sqrt(2 * group["reach"] / curvature)
            for p in group["params"]:
                p.add_(p.grad * -length)


class ReboundMixture(nn.Module):
    def __init__(self, components=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.share = nn.Linear(24, components)
        self.centre = nn.Linear(24, components)
        self.width = nn.Linear(24, components)

    def forward(self, x):
        h = self.trunk(x)
        return self.share(h).log_softmax(1), self.centre(h), self.width(h)


def nll(parts, y):
    log_share, centre, log_width = parts
    z = (y[:, None] - centre) * torch.exp(-log_width)
    log_density = -0.5 * z ** 2 - log_width - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_share + log_density, dim=1).mean()


def court(n, g):
    angle = torch.rand(n, generator=g) * 2 - 1
    speed = torch.rand(n, generator=g) * 2 - 1
    wall = (torch.rand(n, generator=g) < 0.4).float()
    landing = torch.where(wall > 0, 1.5 - 0.8 * angle, -1.0 + angle + 0.5 * speed)
    return torch.stack([angle, speed], 1), landing + 0.1 * torch.randn(n, generator=g)


def train():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(3)
    model = ReboundMixture()
    weights = list(model.parameters())
    optimizer = ReachOptimizer(weights, reach=0.02)
    for rally in range(1, 41):
        x, y = court(64, g)
        loss = nll(model(x), y)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        along = sum((s * s.detach()).sum() for s in slopes)
        bends = torch.autograd.grad(along, weights)
        curvature = sum((b * s.detach()).sum() for b, s in zip(bends, slopes))
        for p, s in zip(weights, slopes):
            p.grad = s.detach()
        optimizer.step(curvature)
        print(f"rally {rally:2d}  nll {loss.item():+.4f}")
    return model


model = train()
print("weights squared", float(sum(p.detach().pow(2).sum() for p in model.parameters())))
