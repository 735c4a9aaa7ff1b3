# Age of cod from otolith rings (ordinal regression with a hinge per threshold).
#
# Each fish gets the same say: gradients are taken per fish, brought to unit length, and weighted by the
# landing tonnage that the fish stands for. So .grad is filled by hand, from torch.autograd.grad.
import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--hauls", type=int, default=36)
ap.add_argument("--fish", type=int, default=10)
ap.add_argument("--ages", type=int, default=6)
ap.add_argument("--lr", type=float, default=0.06)
ap.add_argument("--seed", type=int, default=5)
cfg = ap.parse_args()

torch.manual_seed(cfg.seed)
gen = torch.Generator().manual_seed(cfg.seed + 1)


class OtolithNet(nn.Module):
    def __init__(self, rings=12, ages=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(rings, 24), nn.Tanh(), nn.Linear(24, 1))
        self.cuts = nn.Parameter(torch.linspace(-1.0, 1.0, ages - 1))

    def forward(self, x):
        return self.body(x) - self.cuts  # one margin for each threshold


def hinge(margins, age):
    k = torch.arange(margins.numel())
    sign = torch.where(age > k, 1.0, -1.0)
    return torch.relu(0.25 - sign * margins).sum()


def haul(i):
    age = torch.randint(cfg.ages, (cfg.fish,), generator=gen)
    if i < 14:
        # the survey of the first weeks took only the middle ages
        age = age.clamp(2, 3)
    t = torch.arange(12.0)
    width = torch.exp(-t / (2.0 + age[:, None])) + 0.15 * torch.randn(cfg.fish, 12, generator=gen)
    tonnage = torch.rand(cfg.fish, generator=gen) + 0.2
    return width, age, tonnage


def per_fish_gradients(net, params, width, age):
    rows, losses = [], []
    for w, a in zip(width, age):
        loss = hinge(net(w), a)
        grads = torch.autograd.grad(loss, params)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
        losses.append(loss.detach())
    return torch.stack(rows), torch.stack(losses)


def scatter_into_grad(params, flat):
    at = 0
    for p in params:
        n = p.numel()
        p.grad = flat[at:at + n].view_as(p).clone()
        at += n
    assert at == flat.numel()


def main():
    net = OtolithNet(ages=cfg.ages)
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=cfg.lr, momentum=0.5)
    running = None
    print(f"# {sum(p.numel() for p in params)} weights, {cfg.hauls} hauls")
    for i in range(cfg.hauls):
        width, age, tonnage = haul(i)
        per_fish, losses = per_fish_gradients(net, params, width, age)
        say = tonnage / tonnage.sum()
        factor = say / per_fish.norm(dim=1)
        scatter_into_grad(params, (factor[:, None] * per_fish).sum(0))
        opt.step()
        mean = (say * losses).sum().item()
        running = mean if running is None else 0.9 * running + 0.1 * mean
        print(f"haul {i + 1:2d}  loss {mean:.6f}  running {running:.6f}  easiest {losses.min().item():.5f}")
    print("sum of weights", round(sum(p.detach().sum().item() for p in params), 5))


main()
