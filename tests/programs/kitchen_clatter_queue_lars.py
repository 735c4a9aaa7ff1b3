"""Contrastive pre-training on half-second clips of kitchen sounds: momentum encoder, queue of keys, LARS.

Tried after reading two papers on the train. The queue starts out empty.
"""
import copy
import math
import torch
import torch.nn.functional as F
from torch import nn


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4, trust=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                d = w.grad
                if w.ndim > 1:
                    d = d + group["weight_decay"] * w
                    w_norm, d_norm = w.norm(), d.norm()
                    ratio = group["trust"] * w_norm / d_norm
                    d = d * torch.where((w_norm > 0) & (d_norm > 0), ratio, torch.ones_like(ratio))
                buf = self.state[w].setdefault("velocity", torch.zeros_like(w))
                buf.mul_(group["momentum"]).add_(d)
                w.sub_(group["lr"] * buf)


class KeyQueue:
    def __init__(self, size, dim):
        self.keys = torch.full((size, dim), float("nan"))
        self.head = 0

    def filled(self):
        return self.keys[~self.keys.isnan().any(dim=1)]

    def push(self, batch):
        slots = (self.head + torch.arange(len(batch))) % len(self.keys)
        self.keys[slots] = batch
        self.head = int(slots[-1] + 1) % len(self.keys)


class SoundEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 16, 5, stride=2)
        self.gain = nn.Parameter(torch.zeros(16, 1))  # residual branch opens by itself
        self.mix = nn.Conv1d(16, 16, 3, padding=1)
        self.proj = nn.Linear(16, 12, bias=False)

    def forward(self, x):
        h = F.gelu(self.conv(x))
        h = h + self.gain * F.gelu(self.mix(h))
        return F.normalize(self.proj(h.amax(-1)), dim=-1)


def clips(gen, n):
    pitch = torch.rand(n, 1, 1, generator=gen) * 2 + 0.5
    band = torch.arange(8).view(1, 8, 1)
    time = torch.linspace(0, 4, 40).view(1, 1, 40)
    return torch.sin(pitch * (1 + band) * time) * torch.exp(-time * torch.rand(n, 1, 1, generator=gen))


def augment(x, gen):
    loud = 0.7 + 0.6 * torch.rand(len(x), 1, 1, generator=gen)
    return loud * x + 0.1 * torch.randn(x.shape, generator=gen)


def warmup_cosine(step, warm=4, total=40):
    return step / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def train(steps=40, tau=0.2):
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(33)
    query_net = SoundEncoder()
    key_net = copy.deepcopy(query_net).requires_grad_(False)
    queue = KeyQueue(128, 12)
    opt = LARS(query_net.parameters(), lr=0.3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup_cosine)
    for step in range(1, steps + 1):
        x = clips(gen, 16)
        q = query_net(augment(x, gen))
        k = key_net(augment(x, gen))
        positive = (q * k).sum(-1, keepdim=True)
        negative = q @ queue.filled().T
        loss = F.cross_entropy(torch.cat([positive, negative], 1) / tau, torch.zeros(16, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            for slow, fast in zip(key_net.parameters(), query_net.parameters()):
                slow.lerp_(fast, 0.05)
        queue.push(k)
        print(f"{step:>3} loss={loss.item():.4f} negatives={negative.shape[1]} lr={sched.get_last_lr()[0]:.3f}")
    return query_net


if __name__ == "__main__":
    net = train()
    print("sum of squares:", sum((p.detach() ** 2).sum().item() for p in net.parameters()))
