"""Lab course: small oscillations of a hanging chain, (x u')' + w^2 u = 0, x from the free end.

u(0) = 1, u(1) = 0. Solution J0(2 w sqrt(x)), so the network gets sqrt(x) as its coordinate.
The frequency w is learned with the shape.
"""
import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(),
                                  nn.Linear(hidden, hidden), nn.Tanh(),
                                  nn.Linear(hidden, 1))
        self.omega = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        s = torch.sqrt(x)
        return self.body(s)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class Experiment:
    def __init__(self, seed=11, steps=38):
        torch.manual_seed(seed)
        self.chain = Chain()
        self.opt = torch.optim.Adam(self.chain.parameters(), lr=5e-3)
        self.decay = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps)
        self.steps = steps

    def collocation(self, step):
        # creep towards the free end, the stiff part last
        low = max(0.0, 0.44 - 0.02 * step)
        return torch.linspace(low, 1.0, 30)[:, None].requires_grad_()

    def residual(self, x):
        u = self.chain(x)
        u_x = derivative(u, x)
        tension = x * u_x
        return derivative(tension, x) + self.chain.omega ** 2 * u

    def step(self, number):
        self.opt.zero_grad()
        interior = self.residual(self.collocation(number)).pow(2).mean()
        ends = self.chain(torch.tensor([[0.0], [1.0]]))
        boundary = (ends[0] - 1).pow(2).sum() + ends[1].pow(2).sum()
        loss = interior + 5 * boundary
        loss.backward()
        self.opt.step()
        self.decay.step()
        return loss.item(), interior.item()

    def run(self):
        for number in range(1, self.steps + 1):
            total, interior = self.step(number)
            print(f"[{number:02d}/{self.steps}] loss={total:.5f} equation={interior:.5f} "
                  f"omega={self.chain.omega.item():.4f}")
        norm2 = sum(float(p.detach().square().sum()) for p in self.chain.parameters())
        print("squared length of all parameters", norm2)


Experiment().run()
