#!/usr/bin/env python
# Which scribe wrote it?  Patches of medieval charters -> hand.  Warm restarts for the rate AND for the age of the
# moments, since after a restart the rate is large again and the corrections should be, too.
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class RestartedMoments(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-3, period=16, beta1=0.9, beta2=0.98, eps=1e-8):
        super().__init__(params, dict(lr=lr, beta1=beta1, beta2=beta2, eps=eps))
        self.period = period

    @torch.no_grad()
    def step(self, iteration, closure=None):
        age = iteration % self.period
        for g in self.param_groups:
            rate = g["lr"] * (0.55 + 0.45 * math.cos(math.pi * age / self.period))
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["mean"], s["power"] = torch.zeros_like(p), torch.zeros_like(p)
                s["mean"].lerp_(p.grad, 1 - g["beta1"])
                s["power"].lerp_(p.grad.square(), 1 - g["beta2"])
                mean = s["mean"] / (1 - g["beta1"] ** age)
                power = s["power"] / (1 - g["beta2"] ** age)
                p -= rate * mean / (power.sqrt() + g["eps"])


def patches(n, gen, hands=5):
    hand = torch.randint(hands, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.arange(12.), torch.arange(12.), indexing="ij")
    slant = (hand.float() - 2)[:, None, None] * 0.35
    ink = torch.sin(0.9 * (xx + slant * yy) + 6.28 * torch.rand(n, 1, 1, generator=gen))
    stain = torch.rand(n, 1, 1, generator=gen)
    return (ink * (0.6 + 0.4 * stain) + 0.35 * torch.randn(n, 12, 12, generator=gen))[:, None], hand


net = None


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.GELU(),
        nn.Conv2d(8, 12, 3), nn.GELU(),
        nn.Flatten(), nn.Linear(48, 5),
    )


def train(iterations=40):
    global net
    torch.manual_seed(1204)
    gen = torch.Generator().manual_seed(1205)
    net = build()
    opt = RestartedMoments(net.parameters(), lr=1.5e-2)
    right = seen = 0
    for it in range(1, iterations + 1):
        x, hand = patches(24, gen)
        for p in net.parameters():
            p.grad = None
        logits = net(x)
        loss = F.cross_entropy(logits, hand)
        loss.backward()
        opt.step(it)
        right += (logits.argmax(1) == hand).sum().item()
        seen += len(hand)
        print("it", it, "ce", format(loss.item(), ".4f"), "right so far", format(right / seen, ".3f"))


train()
print("weights squared:", format(sum(p.detach().square().sum().item() for p in net.parameters()), ".5f"))
