"""Cool-down of a copper strap between a cryocooler and a plate at room temperature (PINN).

Units: length of the strap 1, room temperature 1, time in units of the diffusion time.
    c dT/dt = d/dx ( T^1.2 dT/dx ),   T(x, 0) = 1,   T(0, t) = cold,   dT/dx(1, t) = 0
"""
import torch
from torch import nn

torch.manual_seed(3)
COLD = 0.015
HEAT_CAPACITY = 0.8


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 1)])
        nn.init.ones_(self.layers[-1].bias)
        nn.init.normal_(self.layers[-1].weight, std=0.01)

    def forward(self, xt):
        h = torch.tanh(self.layers[0](xt))
        h = torch.tanh(self.layers[1](h))
        return self.layers[2](h)


def slope(y, xt):
    return torch.autograd.grad(y.sum(), xt, create_graph=True)[0]


def conduction(field, xt):
    xt = xt.clone().requires_grad_(True)
    temperature = field(xt)
    first = slope(temperature, xt)
    conductivity = temperature ** 1.2
    flux = conductivity * first[:, :1]
    return HEAT_CAPACITY * first[:, 1:] - slope(flux, xt)[:, :1]


def points(n):
    side = torch.linspace(0, 1, n)
    inside = torch.cartesian_prod((side[:-1] + side[1:]) / 2, (side[:-1] + side[1:]) / 2)
    start = torch.stack([side, torch.zeros(n)], 1)
    cold_end = torch.stack([torch.zeros(n), side], 1)
    warm_end = torch.stack([torch.ones(n), side], 1)
    return inside, start, cold_end, warm_end


def main(steps=40):
    field = Field()
    inside, start, cold_end, warm_end = points(15)
    adam = torch.optim.Adam(field.parameters(), lr=6e-3, betas=(0.9, 0.99))
    decay = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.995)
    for step in range(1, steps + 1):
        adam.zero_grad()
        pde = conduction(field, inside).square().mean()
        initial = (field(start) - 1).square().mean()
        cold = (field(cold_end) - COLD).square().mean()
        edge = warm_end.clone().requires_grad_(True)
        insulated = slope(field(edge), edge)[:, :1].square().mean()
        loss = pde + initial + 5 * cold + 0.5 * insulated
        loss.backward()
        adam.step()
        decay.step()
        print(f"{step:3d}  total {loss.item():.6f}  pde {pde.item():.6f}  start {initial.item():.6f}  cold {cold.item():.6f}")
    print("weight norm squared", sum((w.detach() ** 2).sum().item() for w in field.parameters()))


main()
