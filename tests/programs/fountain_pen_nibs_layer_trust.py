"""Sorting fountain pen nibs by their ink traces, with a residual 1-D network and layer-wise trust ratios (LAMB-like).

Residual branches start at zero (the last convolution of a block, and its gain), so the norm of some weights is 0 at
the start; the front end is frozen. Blocks are checkpointed, four micro-batches make a step.
"""
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

CLASSES = ["fine", "medium", "broad", "stub", "flex"]
LENGTH, MICRO, ACCUM, STEPS = 64, 12, 4, 30


class LayerTrust(Optimizer):
    def __init__(self, params, lr=2e-2, betas=(0.9, 0.98), eps=1e-8, decay=0.01, cap=10.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, decay=decay, cap=cap))

    @torch.no_grad()
    def step(self, closure=None):
        ratios = []
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["n"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["n"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = s["m"] / (1 - b1 ** s["n"])
                v = s["v"] / (1 - b2 ** s["n"])
                u = m / (v.sqrt() + group["eps"]) + group["decay"] * p
                size, move = p.norm(), u.norm()
                trust = torch.where((size > 0) & (move > 0), size / move, 1.0)      # 0/0 and x/0 are not taken
                trust = trust.clamp(0.3, group["cap"])             # a weight near 0 would stay there
                ratios.append((size / move).item())
                p.add_(u * trust, alpha=-group["lr"])
        return ratios


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.first = nn.Conv1d(width, width, 5, padding=2)
        self.last = nn.Conv1d(width, width, 5, padding=2)
        self.gain = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return x + self.gain * self.last(torch.relu(self.first(self.norm(x))))


class Nibs(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.front = nn.Conv1d(1, width, 7, padding=3)
        self.front.requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, len(CLASSES))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        x = self.front(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.abs().mean(-1))


def traces(gen, n):
    y = torch.randint(len(CLASSES), (n,), generator=gen)
    t = torch.linspace(0, 1, LENGTH)
    width = torch.tensor([0.3, 0.6, 1.0, 0.8, 0.7])[y][:, None]
    ripple = torch.tensor([0.0, 0.0, 0.1, 0.5, 0.9])[y][:, None]
    phase = 6.28 * torch.rand(n, 1, generator=gen)
    x = width * (1 + ripple * torch.sin(25 * t + phase)) + 0.1 * torch.randn(n, LENGTH, generator=gen)
    return x[:, None], y


def main():
    torch.manual_seed(10)
    gen = torch.Generator().manual_seed(27)
    net = Nibs()
    opt = LayerTrust(net.parameters())
    for step in range(STEPS):
        total, right = 0.0, 0
        for _ in range(ACCUM):
            x, y = traces(gen, MICRO)
            out = net(x)
            loss = nn.functional.cross_entropy(out, y) / ACCUM
            loss.backward()
            total += loss.item()
            right += (out.argmax(1) == y).sum().item()
        ratios = opt.step()
        opt.zero_grad()
        print(f"step {step + 1}/{STEPS} loss {total:.6f} right {right}/{MICRO * ACCUM} "
              f"smallest ratio {min(ratios):.5f} raw of first gain {ratios[0]:.5f}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
