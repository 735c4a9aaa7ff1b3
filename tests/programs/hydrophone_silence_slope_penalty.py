# Energy-based detector for boat noise with a one-sided slope penalty (as in WGAN-GP, but on the data itself).
#   E(x) = w^T tanh(B x^2)        score of a frame, x = band amplitudes
#   L    = hinge(E) + lambda * relu(|dE/dx| - 1)^2
# dE/dx comes from autograd.grad(create_graph=True). Recorder 4 writes digital silence when its card is full.
import torch
from torch import nn

torch.manual_seed(404)
g = torch.Generator().manual_seed(40)

BANDS, BATCH, STEPS = 10, 16, 40
LAMBDA = 0.5


class Squares(nn.Module):
    def __init__(self, n, h):
        super().__init__()
        self.mix = nn.Linear(n, h)
        nn.init.uniform_(self.mix.weight, 0, 0.4)

    def forward(self, x):
        return torch.tanh(self.mix(x * x))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = Squares(BANDS, 14)
        self.top = nn.Linear(14, 1)

    def forward(self, x):
        return self.top(self.feat(x)).squeeze(-1)


def slope(net, x):
    x = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(net(x).sum(), x, create_graph=True, retain_graph=True)
    return dx.pow(2).sum(1).sqrt()


def frames(step):
    x = torch.rand(BATCH, BANDS, generator=g)
    boat = torch.rand(BATCH, generator=g) < 0.5
    x[boat] += torch.linspace(0.8, 0.0, BANDS)
    if step == 23:
        # card of recorder 4 full; the rest of the file is zeros
        x[11] = 0.0
        boat[11] = False
    return x, boat.float() * 2 - 1


def train():
    net = Detector()
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    ema = {n: p.detach().clone() for n, p in net.named_parameters()}
    for step in range(1, STEPS + 1):
        x, side = frames(step)
        hinge = torch.relu(1 - side * net(x)).mean()
        s = slope(net, x)
        penalty = torch.relu(s - 1).pow(2).mean()
        opt.zero_grad()
        # two backwards into the same buffers, the penalty's first: its graph is the larger and is freed earlier
        (LAMBDA * penalty).backward()
        hinge.backward()
        opt.step()
        if step < 20:
            for n, p in net.named_parameters():
                ema[n].lerp_(p.detach(), 0.1)
        print(f"step {step} hinge {hinge.item():.6f} steepest {s.max().item():.6f}")
    drift = sum((p.detach() - ema[n]).abs().sum() for n, p in net.named_parameters())
    print(f"drift from early average {drift.item():.5f}")
    print(f"weights {sum(p.detach().sum() for p in net.parameters()).item():.5f}")


train()
