"""
We learn the update rule itself. The task: how the water of a kettle warms up, T(t) = a (1 - exp(-k t)) + b t,
each kettle with its own a, k, b. A tiny network proposes the change of every coefficient from its gradient.
"""
import torch
from torch import nn

torch.manual_seed(31)
torch.set_default_dtype(torch.float64)


class Rule(nn.Module):
    """gradient (log magnitude and sign) and two moving averages in, step out"""

    def __init__(self, hidden=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        with torch.no_grad():
            self.net[-1].weight.mul_(0.1)
            self.net[-1].bias.copy_(torch.tensor([0.0, -3.0]))

    def forward(self, g, slow, fast):
        size = torch.log(g.abs() + 1e-8) / 8
        x = torch.stack([size, g / (g.abs() + 1e-8), slow.clamp(-3, 3), fast.clamp(-3, 3)], -1)
        direction, log_lr = self.net(x).unbind(-1)
        return -(torch.tanh(direction) + g / (1 + g.abs())) * log_lr.exp()


def kettle():
    a, k, b = 0.5 + torch.rand(3) * torch.tensor([1.0, 2.0, 0.3])
    t = torch.linspace(0, 2, 25)
    temp = a * (1 - torch.exp(-k * t)) + b * t + 0.01 * torch.randn(25)

    def misfit(c):
        guess = c[0] * (1 - torch.exp(-nn.functional.softplus(c[1]) * t)) + c[2] * t
        return ((guess - temp) ** 2).mean()

    return misfit


rule = Rule()
meta = torch.optim.Adam(rule.parameters(), lr=8e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(meta, T_max=36, eta_min=1e-3)


def unroll(misfit, coeff, slow, fast, length=8):
    total = 0.0
    for _ in range(length):
        value = misfit(coeff)
        g, = torch.autograd.grad(value, coeff, create_graph=True)
        slow = 0.9 * slow + 0.1 * g
        fast = 0.5 * fast + 0.5 * g
        coeff = coeff + rule(g, slow, fast)
        total = total + torch.log(misfit(coeff) + 1e-6)
    return total / length, coeff, slow, fast


for it in range(36):
    if it % 4 == 0:
        problems = [(kettle(), torch.zeros(3), torch.zeros(3), torch.zeros(3)) for _ in range(3)]
    meta.zero_grad()
    losses, carried = [], []
    for misfit, c, s, f in problems:
        c = c.detach().requires_grad_(True)
        loss, c, s, f = unroll(misfit, c, s.detach(), f.detach())
        losses.append(loss)
        carried.append((misfit, c, s, f))
    meta_loss = torch.stack(losses).mean()
    meta_loss.backward()
    nn.utils.clip_grad_norm_(rule.parameters(), 1.0)
    meta.step()
    sched.step()
    problems = carried
    print("meta step", it + 1, "kettle set", it // 4, "mean log misfit", round(meta_loss.item(), 6))

print("weights of the rule, squared and summed", sum((w ** 2).sum().item() for w in rule.parameters()))
