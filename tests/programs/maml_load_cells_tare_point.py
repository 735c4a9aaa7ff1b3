"""Calibration of load cells with few weighings: MAML over cells.

A cell is a task: from five weighings (support) the inner loop adapts the curve by two gradient steps, and the outer loss
is taken on ten others (query).  The network has no biases, because no load means no deflection.
The residual enters with the power 1.5, between robust and quadratic.
"""
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call


@dataclass
class Plan:
    meta_steps: int = 36
    cells_per_step: int = 4
    inner_steps: int = 2
    inner_lr: float = 0.15
    outer_lr: float = 0.01
    seed: int = 64


class Cell:
    """Deflection of one strain-gauge cell, with its own stiffness, hysteresis and zero drift."""

    def __init__(self, g):
        self.g = g
        self.stiff = 0.7 + 0.6 * torch.rand((), generator=g)
        self.bend = 0.3 * torch.randn((), generator=g)
        self.drift = 0.03 * torch.randn((), generator=g)

    def weigh(self, load):
        return torch.tanh(self.stiff * load) + self.bend * load ** 3 * 0.1 + self.drift

    def draw(self, n):
        load = 2 * torch.rand(n, 1, generator=self.g) - 1
        return load, self.weigh(load) + 0.01 * torch.randn(n, 1, generator=self.g)


class TaredCell(Cell):
    """New electronics: zeroes itself, and reports the tare as its first weighing."""

    def draw(self, n):
        load, y = super().draw(n)
        if n == 5:
            load[0], y[0] = 0.0, 0.0
        return load, y


def curve():
    return nn.Sequential(nn.Linear(1, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False), nn.Tanh(),
                         nn.Linear(16, 1, bias=False))


def misfit(net, params, load, y):
    r = functional_call(net, params, (load,)) - y
    return r.abs().pow(1.5).mean()


def adapt(net, plan, load, y):
    fast = dict(net.named_parameters())
    for _ in range(plan.inner_steps):
        inner = misfit(net, fast, load, y)
        grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {k: w - plan.inner_lr * g for (k, w), g in zip(fast.items(), grads)}
    return fast


def main(plan=Plan()):
    torch.manual_seed(plan.seed)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(plan.seed + 1)
    net = curve()
    meta = torch.optim.Adam(net.parameters(), lr=plan.outer_lr)
    for step in range(1, plan.meta_steps + 1):
        meta.zero_grad()
        total = 0.0
        for c in range(plan.cells_per_step):
            # the prototype with the new electronics came back from the workshop with the batch of week 15
            cell = TaredCell(g) if (step, c) == (15, 2) else Cell(g)
            load, y = cell.draw(5)
            fast = adapt(net, plan, load, y)
            outer = misfit(net, fast, *cell.draw(10)) / plan.cells_per_step
            outer.backward()
            total += outer.item()
        meta.step()
        print(f"week {step:2d} query misfit {total:.7f}")
    print(f"initialisation {sum(p.sum().item() for p in net.parameters()):.6f}")


main()
