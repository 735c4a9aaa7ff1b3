"""Metric learning for horseshoe nails: photographs (as 20 shape measures) of the same smithy shall lie close together.

Contrastive pairs with a Euclidean distance whose derivative is written by hand (it saves one buffer against autograd).
"""
import torch
import torch.nn as nn
from torch.autograd import Function

SMITHIES, PER_BATCH, STEPS = 10, 24, 36


class PairDistance(Function):
    @staticmethod
    def forward(ctx, a, b):
        diff = a - b
        dist = diff.mul(diff).sum(1).sqrt()
        ctx.save_for_backward(diff, dist)
        return dist

    @staticmethod
    def backward(ctx, grad):
        diff, dist = ctx.saved_tensors
        direction = diff / dist.unsqueeze(1)
        g = grad.unsqueeze(1) * direction
        return g, -g


class NailNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.project = nn.Linear(64, 8)

    def forward(self, x):
        return self.project(self.trunk(x))


def contrastive(emb, label, margin=2.0):
    i, j = torch.triu_indices(len(emb), len(emb), offset=1)     # no pair of a nail with itself
    dist = PairDistance.apply(emb[i], emb[j])
    same = label[i] == label[j]
    pull = dist[same].mean()
    push = (margin - dist[~same]).clamp(min=0).pow(2).mean()
    return pull + push


def catalogue(gen):
    centre = torch.randn(SMITHIES, 20, generator=gen)
    label = torch.randint(SMITHIES, (PER_BATCH * STEPS,), generator=gen)
    x = centre[label] + 0.5 * torch.randn(len(label), 20, generator=gen)
    # a box was photographed, catalogued, and entered again the next day under a new number
    x[PER_BATCH * 18 + 17], label[PER_BATCH * 18 + 17] = x[PER_BATCH * 18 + 4], label[PER_BATCH * 18 + 4].item()
    return x, label


def main():
    torch.manual_seed(51)
    x, label = catalogue(torch.Generator().manual_seed(52))
    net = NailNet()
    trunk = torch.optim.Adagrad(net.trunk.parameters(), lr=0.01)
    head = torch.optim.SGD(net.project.parameters(), lr=0.02, momentum=0.8)
    for step in range(STEPS):
        rows = slice(step * PER_BATCH, (step + 1) * PER_BATCH)
        loss = contrastive(net(x[rows]), label[rows])
        for o in (trunk, head):
            o.zero_grad()
        loss.backward()
        for o in (trunk, head):
            o.step()
        print(f"step {step + 1}: {loss.item():.6f}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


main()
