"""Humidity quantiles in a fish smokehouse, six hours ahead.

Slow and fast weights around AdamW, and an average of the last third of the run."""
import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


class SlowFast:
    """k quick steps of the inner optimizer, then one slow step towards them."""

    def __init__(self, inner, k=6, alpha=0.5):
        self.inner, self.k, self.alpha = inner, k, alpha
        self.count = 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        self.inner.zero_grad(set_to_none=False)

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.k:
            return False
        for group, saved in zip(self.inner.param_groups, self.slow):
            for p, s in zip(group["params"], saved):
                s.lerp_(p, self.alpha)
                p.copy_(s)
        for state in self.inner.state.values():
            state["exp_avg"].zero_()
        return True


def readings(n, gen):
    hour = torch.rand(n, generator=gen) * 24
    load = torch.rand(n, generator=gen)
    vent = torch.rand(n, generator=gen)
    rh = 60 + 18 * load - 22 * vent + 6 * torch.sin(hour * math.pi / 12)
    rh = rh + (2 + 6 * vent) * torch.randn(n, generator=gen)
    # the probe is taken out for cleaning: no target
    rh[torch.rand(n, generator=gen) < 0.2] = float("nan")
    x = torch.stack([torch.sin(hour * math.pi / 12), torch.cos(hour * math.pi / 12), load, vent], 1)
    return x, rh


def pinball(pred, target, taus):
    known = target.isfinite()
    target = torch.where(known, target, torch.zeros_like(target))
    err = (target[:, None] - pred) / 10
    each = torch.maximum(taus * err, (taus - 1) * err)
    return torch.where(known[:, None], each, 0.0).sum() / (known.sum().clamp(min=1) * len(taus))


class Quantiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.low = nn.Linear(32, 1)
        self.gaps = nn.Linear(32, 2)
        nn.init.constant_(self.low.bias, 50.0)

    def forward(self, x):
        h = self.body(x)
        rise = nn.functional.softplus(self.gaps(h)).cumsum(1)
        base = self.low(h)
        return torch.cat([base, base + rise], 1)


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(8)
    net = Quantiles()
    taus = torch.tensor([0.1, 0.5, 0.9])
    opt = SlowFast(torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=1e-3))
    mean_net = AveragedModel(net)
    for it in range(1, 43):
        # on maintenance days the probe is out all day
        x, y = readings(48, gen)
        if it % 14 == 0:
            y = torch.full_like(y, float("nan"))
        opt.zero_grad()
        loss = pinball(net(x), y, taus)
        loss.backward()
        synced = opt.step()
        if it > 28:
            mean_net.update_parameters(net)
        print(f"step {it:2d} pinball {loss.item():.5f}{' slow' if synced else ''}")
    net.load_state_dict(mean_net.module.state_dict())
    print("absolute weights", sum(p.abs().sum().item() for p in net.parameters()))


main()
