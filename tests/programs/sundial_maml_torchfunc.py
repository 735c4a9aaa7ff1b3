"""MAML on shadows of sundials (sine curves, as ever), second order, with torch.func all the way."""
import argparse
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

ap = argparse.ArgumentParser()
ap.add_argument("--meta-steps", type=int, default=40)
ap.add_argument("--tasks", type=int, default=12)
ap.add_argument("--shots", type=int, default=8)
ap.add_argument("--inner-lr", type=float, default=0.05)
ap.add_argument("--inner-steps", type=int, default=2)
ap.add_argument("--noon-every", type=int, default=10, help="every n-th batch is noon only: amplitude zero")
args = ap.parse_args()

torch.manual_seed(2024)
torch.set_num_threads(1)


class Gnomon(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.a = nn.Linear(1, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 1)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


net = Gnomon()
FROZEN = {"a.bias"}          # ablation 3b: the first bias stays where it is
net.a.bias.requires_grad_(False)


def mse(params, x, y):
    return (functional_call(net, params, (x,)) - y).pow(2).mean()


def adapt(params, x, y, n):
    for _ in range(n):
        g = grad(mse)(params, x, y)
        params = {k: (p if k in FROZEN else p - args.inner_lr * g[k]) for k, p in params.items()}
    return params


def task_loss(params, batch):
    xs, ys, xq, yq = batch
    return mse(adapt(params, xs, ys, args.inner_steps), xq, yq)


def sample_tasks(step):
    amp = torch.rand(args.tasks, 1, 1) * 4.9 + 0.1
    if step % args.noon_every == 0:
        amp = torch.zeros_like(amp)         # no shadow; loss falls almost to nothing here, then jumps back
    phase = torch.rand(args.tasks, 1, 1) * 3.14159
    draw = lambda: torch.rand(args.tasks, args.shots, 1) * 10 - 5
    xs, xq = draw(), draw()
    return xs, amp * torch.sin(xs + phase), xq, amp * torch.sin(xq + phase)


meta_opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=2e-3)
for step in range(1, args.meta_steps + 1):
    params = dict(net.named_parameters())
    losses = vmap(partial(task_loss, params))(sample_tasks(step))
    loss = losses.mean()
    meta_opt.zero_grad()
    loss.backward()
    meta_opt.step()
    spread = losses.detach().std() / losses.detach().mean()
    print(f"meta {step:3d}  post-adapt mse {loss.item():.6f}  spread {spread.item():.4f}")
