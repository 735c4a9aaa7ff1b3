"""Instance segmentation of insect egg masses on vine leaves: query masks, dice + focal, greedy matching."""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Leaf:
    image: torch.Tensor
    masks: torch.Tensor      # (instances, h, w)


def photograph(gen, size=20):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    picture = 0.2 * torch.rand(size, size, generator=gen)
    spots = []
    for _ in range(int(torch.randint(1, 4, (1,), generator=gen))):
        cy, cx, r = (torch.rand(3, generator=gen) * torch.tensor([16.0, 16.0, 2.0]) + torch.tensor([2.0, 2.0, 1.0]))
        spot = ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).float()
        picture = picture + 0.6 * spot
        spots.append(spot)
    masks = torch.stack(spots)
    # annotators drop what is too small to be told apart from dust
    return Leaf(picture[None], masks[masks.sum((1, 2)) >= 4])


class QueryMasks(nn.Module):
    def __init__(self, queries=5, dim=12):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, dim, 5, padding=2), nn.ReLU(), nn.Conv2d(dim, dim, 5, padding=2))
        self.queries = nn.Parameter(torch.randn(queries, dim) * 0.3)
        self.bias = nn.Parameter(torch.full((queries, 1, 1), -1.0))

    def forward(self, images):
        n, _, h, w = images.shape
        gy = torch.linspace(-1, 1, h).view(1, 1, h, 1).expand(n, 1, h, w)
        gx = torch.linspace(-1, 1, w).view(1, 1, 1, w).expand(n, 1, h, w)
        feats = self.stem(torch.cat([images, gy, gx], 1))
        return torch.einsum("qd,ndhw->nqhw", self.queries, feats) + self.bias


def dice_loss(logits, target):
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum((-2, -1)) + 1) / (p.sum((-2, -1)) + target.sum((-2, -1)) + 1)


def focal_loss(logits, target, gamma=2.0):
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (bce * (1 - torch.exp(-bce)) ** gamma).mean((-2, -1))


def matching_cost(logits, target):
    return dice_loss(logits, target) + 5 * focal_loss(logits, target)


def match(logits, masks):
    with torch.no_grad():
        cost = torch.stack([matching_cost(logits, m.expand_as(logits)) for m in masks], 1)
    pairs = []
    for _ in range(min(cost.shape)):
        q, m = divmod(int(cost.argmin()), cost.shape[1])
        pairs.append((q, m))
        cost[q], cost[:, m] = float("inf"), float("inf")
    return pairs


def batch_loss(model, leaves):
    out = model(torch.stack([l.image for l in leaves]))
    losses = []
    for logits, leaf in zip(out, leaves):
        target = torch.zeros_like(logits)
        for q, m in match(logits, leaf.masks):
            target[q] = leaf.masks[m]
        losses.append((dice_loss(logits, target) * (target.sum((1, 2)) > 0)).sum() / len(leaf.masks)
                      + 5 * focal_loss(logits, target).mean())
    return torch.stack(losses).mean()


def train(steps=34, batch=6, seed=24):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    net = QueryMasks()
    opt = torch.optim.AdamW(net.parameters(), lr=6e-3)
    for step in range(1, steps + 1):
        leaves = [photograph(gen) for _ in range(batch)]
        loss = batch_loss(net, leaves)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        print(f"step {step} loss {loss.item():.4f} instances {sum(len(l.masks) for l in leaves)}")
    print("weights, squared:", sum(p.detach().square().sum().item() for p in net.parameters()))


train()
