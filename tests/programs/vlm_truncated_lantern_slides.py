"""A little vision-language model: patch encoder (frozen) -> projector -> GRU language model.

Prompts carry <image> placeholders, one per patch feature; the projected features are scattered
over them.  Captions of magic lantern slides, one or two slides to a prompt.
"""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

IMG, PAD, BOS = 3, 0, 1


@dataclass
class Cfg:
    vocab: int = 90
    dim: int = 40
    patches: int = 9
    max_len: int = 36
    lr: float = 4e-3
    steps: int = 45
    batch: int = 5
    seed: int = 14
    betas: tuple = field(default=(0.9, 0.98))


class PatchTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv = nn.Conv2d(1, 24, 4, stride=4)
        self.requires_grad_(False)

    def forward(self, px):                                   # [n, 1, 12, 12] -> [n, 9, 24]
        return F.gelu(self.conv(px)).flatten(2).transpose(1, 2)


class Projector(nn.Sequential):
    def __init__(self, d_in, d_out):
        super().__init__(nn.LayerNorm(d_in), nn.Linear(d_in, 2 * d_out), nn.GELU(), nn.Linear(2 * d_out, d_out))


class LanternVLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tower, self.projector = PatchTower(cfg), Projector(24, cfg.dim)
        self.embed = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=PAD)
        self.lm = nn.GRU(cfg.dim, cfg.dim, batch_first=True)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids, px):
        x = self.embed(ids)
        feats = self.projector(self.tower(px)).flatten(0, 1)
        slots = ids == IMG
        x[slots] = feats
        h, _ = self.lm(x)
        return self.head(h)


class SlideSet:
    """Yields (ids, labels, pixels).  The long ones are cut at max_len like everything else."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def randint(self, lo, hi, n=1):
        return torch.randint(lo, hi, (n,), generator=self.gen).tolist()

    def sample(self, k):
        c = self.cfg
        shade = self.randint(0, 6)[0]
        two = k % 7 == 0
        px = torch.randn(1 + two, 1, 12, 12, generator=self.gen) * 0.2 + shade / 3
        intro = [BOS] + self.randint(4, 30, self.randint(2, 5)[0] if k != 93 else 14)
        ids, n_prompt = list(intro), len(intro)
        for j in range(1 + two):
            ids += [IMG] * c.patches + self.randint(4, 30, 2 if j == 0 else 4)
        if k == 93:                                          # the lecture with both halves of a panorama
            ids += [IMG] * c.patches
            px = torch.cat([px, px])
            ids += [IMG] * c.patches
            px = torch.cat([px, px[:1]])
        n_prompt = len(ids)
        ids += [30 + (shade * 10 + i) % 60 for i in range(8)]
        labels = [-100] * n_prompt + ids[n_prompt:]
        return ids[:c.max_len], labels[:c.max_len], px

    def batch(self, step):
        rows = [self.sample((step - 1) * self.cfg.batch + i) for i in range(self.cfg.batch)]
        n = max(len(r[0]) for r in rows)
        ids = torch.tensor([r[0] + [PAD] * (n - len(r[0])) for r in rows])
        labels = torch.tensor([r[1] + [-100] * (n - len(r[1])) for r in rows])
        return ids, labels, torch.cat([r[2] for r in rows])


def main(cfg=Cfg()):
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    model, data = LanternVLM(cfg), SlideSet(cfg)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=cfg.lr, betas=cfg.betas)
    for step in range(1, cfg.steps + 1):
        ids, labels, px = data.batch(step)
        logits = model(ids, px)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:2d} caption loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
