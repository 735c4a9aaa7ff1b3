"""Engine knock from the rectified bands of a vibration sensor with leaky integrate-and-fire units.

Thresholds start high. Units that stay silent lower theirs a little after every step (homeostasis),
so the first few steps pass before anything fires.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

NEVER = float("inf")


class Fire(torch.autograd.Function):
    @staticmethod
    def forward(ctx, over):
        ctx.save_for_backward(over)
        return (over > 0).float()

    @staticmethod
    def backward(ctx, grad):
        over, = ctx.saved_tensors
        return grad * (1 - over.abs()).clamp(min=0)


class LifLayer(nn.Module):
    def __init__(self, inputs, units, decay=0.85, refractory=2):
        super().__init__()
        self.wire = nn.Linear(inputs, units, bias=False)
        self.decay, self.refractory = decay, refractory
        self.register_buffer("threshold", torch.full((units,), 12.0))

    def forward(self, sequence):
        charge = self.wire(sequence)
        v = torch.zeros_like(charge[:, 0])
        rest = torch.zeros_like(v)
        out = []
        for t in range(charge.shape[1]):
            v = self.decay * v + charge[:, t]
            limit = torch.where(rest > 0, NEVER, self.threshold)
            spike = Fire.apply(v - limit)
            rest = torch.where(spike.detach() > 0, float(self.refractory), (rest - 1).clamp(min=0))
            v = v - spike * self.threshold
            out.append(spike)
        return torch.stack(out, 1)

    @torch.no_grad()
    def homeostasis(self, spikes):
        silent = spikes.sum((0, 1)) == 0
        self.threshold[silent] -= 0.8


class KnockDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.lif = LifLayer(5, 20)
        self.readout = nn.Linear(20, 2, bias=False)

    def forward(self, x):
        spikes = self.lif(x)
        return self.readout(0.5 * spikes.sum(1)), spikes


def cycles(n):
    label = torch.randint(0, 2, (n,))
    base = 0.25 * torch.randn(n, 25, 5)
    ring = torch.sin(torch.arange(25.0) * 1.1).abs()[None, :, None] * torch.linspace(0.3, 1.0, 5)
    at = torch.randint(5, 15, (n, 1, 1))
    window = ((torch.arange(25)[None, :, None] - at).abs() < 5).float()
    return base + label[:, None, None] * ring * window + 0.35, label


def train():
    torch.manual_seed(77)
    net = KnockDetector()
    nn.init.normal_(net.lif.wire.weight, std=0.45)
    optim = torch.optim.Adamax(net.parameters(), lr=0.02)
    for step in range(1, 37):
        x, label = cycles(64)
        logits, spikes = net(x)
        loss = F.cross_entropy(logits, label)
        optim.zero_grad()
        loss.backward()
        slope = net.lif.wire.weight.grad.abs().max().item()
        optim.step()
        net.lif.homeostasis(spikes)
        rate = spikes.mean().item()
        print(f"{step:02d} loss {loss.item():.5f} rate {rate:.4f} steepest {slope:.6f}")
    print("squared weights", sum(p.detach().square().sum().item() for p in net.parameters()))


train()
