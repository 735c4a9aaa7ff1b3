"""CLIP-style towers for gallery captions. The cluster job runs on 4 GPUs; this is the one-process
rehearsal: each 'rank' encodes its shard, all_gather is a python list, every rank has its own loss."""
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

WORLD, PER_RANK, STEPS = 4, 6, 24


@dataclass
class Shard:
    rank: int
    pictures: torch.Tensor
    captions: list = field(default_factory=list)

    def batch(self, step):
        lo = step * PER_RANK
        pics, caps = self.pictures[lo:lo + PER_RANK], self.captions[lo:lo + PER_RANK]
        keep = [i for i, c in enumerate(caps) if len(c) > 0]     # untitled works cannot be matched
        return pics[keep], [caps[i] for i in keep]


class PictureTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, d))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class CaptionTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.words = nn.EmbeddingBag(120, 48, mode="mean")
        self.proj = nn.Linear(48, d)

    def forward(self, caps):
        flat = torch.tensor([w for c in caps for w in c])
        offsets = torch.tensor([0] + [len(c) for c in caps[:-1]]).cumsum(0)
        return F.normalize(self.proj(self.words(flat, offsets)), dim=-1)


class Clip(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.pictures, self.captions = PictureTower(d), CaptionTower(d)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))


def all_gather(pieces, rank):
    """own piece with its graph, the others detached -- like dist.all_gather with the local one put back"""
    return torch.cat([p if r == rank else p.detach() for r, p in enumerate(pieces)])


def rank_loss(model, img, txt, rank):
    scale = model.logit_scale.exp().clamp(max=100.0)
    every_img, every_txt = all_gather(img, rank), all_gather(txt, rank)
    target = torch.arange(len(img[rank])) + rank * PER_RANK
    per_img = scale * img[rank] @ every_txt.T
    per_txt = scale * txt[rank] @ every_img.T
    half_img = F.cross_entropy(per_img, target)
    half_txt = F.cross_entropy(per_txt, target)
    return (half_img + half_txt) / 2


def museum():
    g = torch.Generator().manual_seed(1793)
    style = torch.randn(120, 40, generator=g)
    shards = []
    for rank in range(WORLD):
        caps = [torch.randint(0, 120, (int(torch.randint(2, 7, (1,), generator=g)),), generator=g).tolist()
                for _ in range(STEPS * PER_RANK)]
        pics = torch.stack([style[c].mean(0) for c in caps]) + 0.1 * torch.randn(len(caps), 40, generator=g)
        shards.append(Shard(rank, pics, caps))
    # "Untitled", 1961, after the stop words are gone
    shards[1].captions[15 * PER_RANK + 4] = []
    return shards


def main():
    torch.manual_seed(4)
    model, shards = Clip(), museum()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3)
    for step in range(STEPS):
        img, txt = [], []
        for s in shards:
            pics, caps = s.batch(step)
            img.append(model.pictures(pics))
            txt.append(model.captions(caps))
        loss = sum(rank_loss(model, img, txt, r) for r in range(WORLD)) / WORLD      # DDP averages
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step + 1:2d} loss {loss.item():.6f} scale {model.logit_scale.exp().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
