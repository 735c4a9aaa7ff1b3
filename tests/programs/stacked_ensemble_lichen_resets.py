"""Growth of lichen on gravestones: eight networks as one stack, for the spread of their answers.

The weights of all members lie in one set of stacked parameters and are trained by a single optimizer.  Every twelve steps
the worst member is drawn anew (its loss jumps then, which is wanted: it keeps the ensemble diverse).
"""
import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

torch.set_num_threads(1)
torch.manual_seed(2020)
MEMBERS, STEPS = 8, 60


def member():
    return nn.Sequential(nn.Linear(4, 20), nn.Softplus(), nn.Linear(20, 2))


class Stack:
    def __init__(self, n):
        nets = [member() for _ in range(n)]
        self.params, self.buffers = stack_module_state(nets)
        self.skeleton = copy.deepcopy(nets[0]).to("meta")
        self.run = vmap(self._one, in_dims=(0, 0, 0))

    def _one(self, p, b, x):
        return functional_call(self.skeleton, (p, b), (x,))

    def __call__(self, x):
        return self.run(self.params, self.buffers, x)

    @torch.no_grad()
    def redraw(self, i, opt):
        fresh = member()
        for name, p in fresh.named_parameters():
            self.params[name][i].copy_(p)
            s = opt.state[self.params[name]]
            s["exp_avg"][i].zero_()
            s["exp_avg_sq"][i].zero_()


def gravestones(g, n):
    """Age, slope, shade, distance to the road -> diameter in metres (so small numbers)."""
    x = torch.rand(MEMBERS, n, 4, generator=g)          # each member sees its own bootstrap
    d = 0.04 * x[..., 0] * (1 + 0.5 * x[..., 2]) - 0.01 * x[..., 3] * x[..., 0]
    return x, d + 0.0008 * torch.randn(d.shape, generator=g)


def nll(out, d):
    mu, s = out[..., 0], out[..., 1]
    logvar = -6.0 + 4.0 * torch.tanh(s)                  # sigma between 7 mm and 0.3 m, in the log
    return (0.5 * (d - mu * 0.05) ** 2 * torch.exp(-logvar) + 0.5 * logvar).mean(-1)


stack = Stack(MEMBERS)
opt = torch.optim.Adam(list(stack.params.values()), lr=0.02)
g = torch.Generator().manual_seed(1)
best = torch.full((MEMBERS,), float("inf"))              # nothing seen yet
for step in range(1, STEPS + 1):
    x, d = gravestones(g, 24)
    out = stack(x)
    each = nll(out, d)
    opt.zero_grad()
    each.sum().backward()          # members do not touch each other: the sum is eight separate losses
    opt.step()
    best = torch.minimum(best, each.detach())
    note = ""
    if step % 12 == 0 and step < STEPS:
        worst = int(each.argmax())
        stack.redraw(worst, opt)
        best[worst] = float("inf")
        note = f" redrawn {worst}"
    spread = out[..., 0].detach().std(0).mean() * 0.05
    print(f"{step:2d} sum nll {each.sum().item():+.5f} spread {spread.item():.6f} m best {best.max().item():+.3f}{note}")

print(f"stack {sum(p.sum().item() for p in stack.params.values()):.6f}")
