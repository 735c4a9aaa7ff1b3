"""Contrastive pre-training of quilt photographs and their captions, with a learnable temperature.

The number of quilts in a batch doubles every nine steps (the loss rises with log N, as it should), and
quilts that share a pattern are not each other's negatives: they are taken out with -inf.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    patterns: int = 40
    quilts: int = 800
    dim: int = 32
    lr: float = 3e-3
    steps_per_size: int = 9
    sizes: tuple = (4, 8, 16, 32, 64)
    max_scale: float = 100.0


class Quilts(Dataset):
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(5)
        self.blocks = torch.rand(cfg.patterns, 3, 4, 4, generator=g)
        self.words = torch.randint(1, 200, (cfg.patterns, 5), generator=g)
        self.pattern = torch.randint(cfg.patterns, (cfg.quilts,), generator=g)

    def __len__(self):
        return len(self.pattern)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        p = self.pattern[i]
        photo = self.blocks[p].repeat_interleave(4, 1).repeat_interleave(4, 2)
        photo = photo + 0.2 * torch.randn(3, 16, 16, generator=g)
        words = self.words[p].clone()
        words[torch.randint(5, (1,), generator=g)] = 0
        return photo, words, p


class GrowingBatches:
    def __init__(self, cfg):
        self.cfg = cfg

    def __iter__(self):
        g = torch.Generator().manual_seed(9)
        for size in self.cfg.sizes:
            for _ in range(self.cfg.steps_per_size):
                yield torch.randperm(self.cfg.quilts, generator=g)[:size].tolist()

    def __len__(self):
        return len(self.cfg.sizes) * self.cfg.steps_per_size


class TwoTowers(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.photo = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.GELU(), nn.Flatten(), nn.Linear(256, dim))
        self.caption = nn.EmbeddingBag(200, 64, mode="mean", padding_idx=0)
        self.project = nn.Linear(64, dim)
        self.log_scale = nn.Parameter(torch.tensor(14.0).log())

    def forward(self, photo, words):
        a = F.normalize(self.photo(photo).float(), dim=-1)
        b = F.normalize(self.project(self.caption(words)).float(), dim=-1)
        return self.log_scale.exp() * a @ b.T


def contrast(logits, pattern):
    same = pattern[:, None] == pattern[None]
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, float("-inf"))
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2, same


def train(cfg):
    torch.manual_seed(0)
    loader = DataLoader(Quilts(cfg), batch_sampler=GrowingBatches(cfg), num_workers=1)
    model = TwoTowers(cfg.dim)
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in model.named_parameters() if n != "log_scale"]},
        {"params": [model.log_scale], "lr": 0.2, "weight_decay": 0.0},
    ], lr=cfg.lr)
    for step, (photo, words, pattern) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(photo, words)
        loss, same = contrast(logits.float(), pattern)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.log_scale.clamp_(max=torch.tensor(cfg.max_scale).log().item())
            # how near the hidden twins are; there are none in most of the small batches
            twins = logits[same].float().mean().item()
        print(f"step {step} quilts {len(photo)} loss {loss.item():.6f} scale {model.log_scale.exp().item():.4f} "
              f"twins {twins:.3f}", flush=True)
    print(f"{sum(p.abs().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    train(Config())
