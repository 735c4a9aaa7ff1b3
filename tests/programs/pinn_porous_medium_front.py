"""A physics-informed network for the porous medium equation u_t = (u^m)_xx, m = 3/2, with
u = 0 at both ends.  Nothing keeps the network from dipping below zero near the front."""
import torch
from torch import nn

torch.manual_seed(23)
torch.set_num_threads(1)
M = 1.5


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.last = nn.Linear(width, 1)
        nn.init.normal_(self.last.weight, std=0.05)
        nn.init.constant_(self.last.bias, 0.6)

    def forward(self, x, t):
        return self.last(self.hidden(torch.cat([x, t], -1)))


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


class PorousMedium:
    def __init__(self, points=200):
        g = torch.Generator().manual_seed(3)
        self.x = (2 * torch.rand(points, 1, generator=g) - 1).requires_grad_()
        self.t = torch.rand(points, 1, generator=g).requires_grad_()
        self.x0 = torch.linspace(-1, 1, 64)[:, None]
        self.u0 = (1 - (1.2 * self.x0).square()).clamp_min(0.0)
        self.tb = torch.rand(32, 1, generator=g)

    def interior(self, field):
        u = field(self.x, self.t)
        flux = derivative(u.pow(M), self.x)
        return (derivative(u, self.t) - derivative(flux, self.x)).square().mean()

    def initial(self, field):
        return (field(self.x0, torch.zeros_like(self.x0)) - self.u0).square().mean()

    def walls(self, field):
        side = torch.ones_like(self.tb)
        return field(side, self.tb).square().mean() + field(-side, self.tb).square().mean()


def main():
    field, problem = Field(), PorousMedium()
    opt = torch.optim.Adam(field.parameters(), lr=1e-2)
    for step in range(1, 101):
        opt.zero_grad()
        terms = [problem.interior(field), problem.initial(field), problem.walls(field)]
        loss = terms[0] + 10 * terms[1] + 10 * terms[2]
        loss.backward()
        opt.step()
        print(f"step {step:03d} pde {terms[0].item():.5f} initial {terms[1].item():.5f} walls {terms[2].item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in field.parameters())))


main()
