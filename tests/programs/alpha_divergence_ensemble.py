"""Distils an ensemble into one network with the alpha-divergence; alpha wanders from 1/2 (Hellinger) to 1 (KL)."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, stack_module_state, vmap


def mlp(width):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))


def spirals(n, gen):
    y = torch.randint(4, (n,), generator=gen)
    r = torch.rand(n, generator=gen)
    angle = 3 * r + y * torch.pi / 2 + 0.15 * torch.randn(n, generator=gen)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1) * 2, y


class Ensemble:
    def __init__(self, members, width):
        nets = [mlp(width).requires_grad_(False) for _ in range(members)]
        self.fit_heads(nets)
        self.template = nets[0]
        self.params, self.buffers = stack_module_state(nets)

    @staticmethod
    def fit_heads(nets):
        """Random features and a ridge regression on top: good enough for a teacher."""
        gen = torch.Generator().manual_seed(100)
        for net in nets:
            x, y = spirals(400, gen)
            phi = torch.cat([net[:-1](x), torch.ones(400, 1)], 1)
            w = torch.linalg.solve(phi.T @ phi + 0.1 * torch.eye(phi.shape[1]), phi.T @ (F.one_hot(y, 4) * 4.0))
            net[-1].weight.copy_(w[:-1].T)
            net[-1].bias.copy_(w[-1])

    @torch.no_grad()
    def __call__(self, x):
        def one(params, buffers):
            return functional_call(self.template, (params, buffers), (x,)).softmax(-1)
        return vmap(one)(self.params, self.buffers).mean(0)


class AlphaDivergence(nn.Module):
    """D_alpha(p || q) = (sum p^alpha q^(1 - alpha) - 1) / (alpha (alpha - 1)), annealed over `horizon` steps."""

    def __init__(self, start, end, horizon):
        super().__init__()
        self.register_buffer("path", torch.linspace(start, end, horizon))
        self.calls = 0

    def forward(self, log_q, p):
        alpha = self.path[min(self.calls, len(self.path) - 1)]
        self.calls += 1
        mixture = torch.exp(alpha * p.log() + (1 - alpha) * log_q).sum(-1)
        return ((mixture - 1) / (alpha * (alpha - 1))).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--members", type=int, default=5)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--anneal", type=int, default=26)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(13)
    teacher = Ensemble(args.members, 48)
    student = mlp(24)
    divergence = AlphaDivergence(0.5, 1.0, args.anneal)
    opt = torch.optim.RMSprop(student.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        x, y = spirals(64, gen)
        log_q = student(x).log_softmax(-1)
        loss = divergence(log_q, teacher(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        agree = (log_q.argmax(-1) == y).float().mean().item()
        print(f"step {step} loss {loss.item():.6f} accuracy {agree:.3f}")
    print("finite", int(all(p.isfinite().all() for p in student.parameters())))


if __name__ == "__main__":
    main()
