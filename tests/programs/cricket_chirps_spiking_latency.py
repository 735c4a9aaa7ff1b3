"""Spiking network that tells cricket species apart by their chirps; surrogate gradients, a latency report.

A neuron that never fires has the first-spike time inf; the report shows the mean of it. The loss turns negative on purpose
(a bonus for margin), and the rate penalty is switched on after a third of the run.
"""
import argparse

import torch
import torch.nn as nn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        v, = ctx.saved_tensors
        return g / (1 + 8 * v.abs()) ** 2


class LIF(nn.Module):
    def __init__(self, n_in, n_out, leak=0.85):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.leak = leak

    def forward(self, x):                            # (time, batch, n_in)
        v = torch.zeros(x.shape[1], self.fc.out_features)
        out = []
        for current in self.fc(x):
            v = self.leak * v + current
            s = Spike.apply(v - 1.0)
            v = v * (1 - s.detach())
            out.append(s)
        return torch.stack(out)


class CricketNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = LIF(12, 40)
        self.second = LIF(40, 24)
        self.read = nn.Linear(24, 3)

    def forward(self, x):
        a = self.hidden(x)
        b = self.second(a)
        return self.read(b).mean(0), a, b


def chirps(n, gen, frames=30):
    species = torch.randint(3, (n,), generator=gen)
    period = torch.tensor([4.0, 6.0, 9.0])[species]
    t = torch.arange(frames)[:, None, None]
    band = torch.arange(12)[None, None]
    rate = torch.exp(-0.3 * (band - 3 - 3 * species[None, :, None]) ** 2) * (torch.cos(6.28 * t / period[None, :, None]) > 0)
    return (torch.rand(rate.shape, generator=gen) < 0.8 * rate + 0.03).float() * 2, species


def first_spike(s):
    t = torch.arange(len(s), dtype=s.dtype)[:, None, None]
    return torch.where(s > 0, t, torch.tensor(float("inf"))).amin(0)     # inf: silent


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=45)
    p.add_argument("--bonus", type=float, default=0.5)
    args = p.parse_args()
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    net = CricketNet()
    for q in net.read.parameters():
        q.requires_grad_(True)
    net.hidden.fc.bias.requires_grad_(False)         # frozen: membrane offsets are fixed in the chip
    opt = torch.optim.Adamax([q for q in net.parameters() if q.requires_grad], lr=1e-2)
    for step in range(1, args.steps + 1):
        x, y = chirps(32, gen)
        logits, a, b = net(x)
        margin = logits.gather(1, y[:, None]).squeeze(1) - logits.mean(1)
        loss = nn.functional.cross_entropy(logits, y) - args.bonus * margin.clamp(max=4).mean()
        if step > args.steps // 3:
            loss = loss + 2.0 * (a.mean() - 0.05).pow(2) + 0.5 * b.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            first = first_spike(b)
            spread = first.mean(1) - first.mean()    # inf - inf
            mean_fired = first[torch.isfinite(first)].mean()
        print(f"{step:3d} loss {loss.item():+.6f} latency {first.mean().item():.2f} fired {mean_fired.item():.3f} "
              f"spread {spread[0].item():.2f}", flush=True)
    print(sum(q.detach().abs().sum().item() for q in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
