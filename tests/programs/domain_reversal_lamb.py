"""Domain adversarial training with a gradient reversal layer; the domain loss rises on purpose.
The optimizer is LAMB, written here; a layer that is still zero has trust ratio 1."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), eps=1e-6, decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["t"] += 1
                state["m"].lerp_(p.grad, 1 - b1)
                state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = state["m"] / (1 - b1 ** state["t"])
                v = state["v"] / (1 - b2 ** state["t"])
                update = m / (v.sqrt() + group["eps"]) + group["decay"] * p
                size, length = p.norm(), update.norm()
                trust = size / length if size > 0 and length > 0 else 1.0
                p.add_(update * trust, alpha=-group["lr"])
        return loss


features = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
label_head = nn.Linear(16, 3)
domain_head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
for head in (label_head, domain_head[-1]):
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
optimizer = Lamb([*features.parameters(), *label_head.parameters(), *domain_head.parameters()], lr=0.02)
centres = torch.randn(3, 10) * 2
shift = torch.randn(10)

TOTAL = 60
for step in range(TOTAL):
    strength = 2 / (1 + math.exp(-10 * step / TOTAL)) - 1
    y = torch.randint(0, 3, (64,))
    source = centres[y] + torch.randn(64, 10)
    target = centres[torch.randint(0, 3, (64,))] + torch.randn(64, 10) + shift

    def closure():
        optimizer.zero_grad()
        hs, ht = features(source), features(target)
        task = F.cross_entropy(label_head(hs), y)
        guess = domain_head(Reverse.apply(torch.cat([hs, ht]), strength)).squeeze(1)
        domain = F.binary_cross_entropy_with_logits(guess, torch.cat([torch.zeros(64), torch.ones(64)]))
        closure.parts = task.item(), domain.item()
        (task + domain).backward()
        return task + domain

    total = optimizer.step(closure)
    print(f"step {step + 1:02d} task {closure.parts[0]:.4f} domain {closure.parts[1]:.4f} total {total.item():.4f}")
