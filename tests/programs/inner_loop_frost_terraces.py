#!/usr/bin/env python
"""Meta-learning (MAML, second order) of a frost-damage grade for vineyard terraces.

Every terrace is a task: a handful of graded vines to adapt on, others to be tested on. The loss is
balanced over the three grades, for most vines are healthy.
"""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

GRADES = 3


class Grader(nn.Module):
    def __init__(self, d=8, h=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, GRADES))

    def forward(self, x):
        return self.net(x)


def balanced(logits, y):
    rarity = 1.0 / torch.bincount(y, minlength=GRADES)
    rarity = rarity / rarity.sum()
    return nn.functional.cross_entropy(logits, y, weight=rarity)


class Terraces:
    """stream of tasks"""

    def __init__(self, seed, d=8):
        self.g = torch.Generator().manual_seed(seed)
        self.d = d
        self.common = torch.randn(d, generator=self.g)

    def vines(self, w, cut, n):
        x = torch.randn(n, self.d, generator=self.g)
        s = x @ w + 0.3 * torch.randn(n, generator=self.g)
        return x, (s > cut[0]).long() + (s > cut[1]).long()

    def task(self):
        w = self.common + 0.5 * torch.randn(self.d, generator=self.g)
        w = w / w.norm()
        cut = torch.tensor([0.0, 0.75]) + 0.15 * torch.randn(1, generator=self.g)
        return self.vines(w, cut, 24), self.vines(w, cut, 48)


def adapt(model, params, x, y, rates, inner):
    def support(p):
        return balanced(functional_call(model, p, (x,)), y)

    for _ in range(inner):
        d = grad(support)(params)
        params = {k: params[k] - rates[k].exp() * d[k] for k in params}
    return params


def run(meta_steps=44, tasks=5, inner=3):
    torch.manual_seed(0)
    stream = Terraces(seed=SEED)
    model = Grader()
    rates = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(torch.tensor(-1.5)) for k, _ in model.named_parameters()})
    opt = torch.optim.Adam([{"params": model.parameters(), "lr": 4e-3}, {"params": rates.parameters(), "lr": 1e-2}])
    for step in range(1, meta_steps + 1):
        opt.zero_grad()
        total = 0.0
        for _ in range(tasks):
            (sx, sy), (qx, qy) = stream.task()
            params = dict(model.named_parameters())
            fast = adapt(model, params, sx, sy, {k: rates[k.replace(".", "_")] for k in params}, inner)
            total = total + balanced(functional_call(model, fast, (qx,)), qy) / tasks
        total.backward()
        nn.utils.clip_grad_norm_([p for grp in opt.param_groups for p in grp["params"]], 2.0)
        opt.step()
        print(f"meta step {step}: query loss {total.item():.6f}", flush=True)
    return model, rates


SEED = 42
if __name__ == "__main__":
    m, r = run()
    print("weights:", sum(p.detach().abs().sum().item() for p in [*m.parameters(), *r.parameters()]), flush=True)
