# Self-supervised embeddings of knotted carpet motifs (16x16 one-channel tiles).
# Momentum encoder, queue of keys, debiased loss with hard negatives; there is no label anywhere.
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    steps: int = 45
    batch: int = 48
    queue: int = 240
    dim: int = 24
    temperature: float = 0.25
    tau_plus: float = 0.04
    hardness: float = 0.6
    momentum: float = 0.9
    lr: float = 5e-4
    seed: int = 11


class Tiles:
    """Motifs are repeats of a few knots, weavers differ in direction and in the tension of the yarn."""

    def __init__(self, n_motifs, gen):
        self.gen = gen
        half = torch.rand(n_motifs, 1, 16, 8, generator=gen)
        self.motifs = torch.cat([half, half.flip(-1)], -1).round()

    def view(self, which):
        x = self.motifs[which]
        flip = torch.rand(len(which), 1, 1, 1, generator=self.gen) < 0.5
        x = torch.where(flip, x.flip(-2), x)
        gain = 0.8 + 0.4 * torch.rand(len(which), 1, 1, 1, generator=self.gen)
        return x * gain + 0.15 * torch.randn(x.shape, generator=self.gen)

    def pair(self, n):
        which = torch.randint(len(self.motifs), (n,), generator=self.gen)
        return self.view(which), self.view(which)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.GELU(),
                                  nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.GELU())
        self.proj = nn.Linear(32 * 16, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x).flatten(1)), dim=1)


class DebiasedHardLoss(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.t, self.tau, self.beta = cfg.temperature, cfg.tau_plus, cfg.hardness

    def forward(self, q, k, bank):
        pos = torch.exp((q * k).sum(1) / self.t)
        neg = torch.exp(q @ bank.t() / self.t)
        n = neg.shape[1]
        weight = neg.detach().pow(self.beta)
        weight = weight / weight.mean(1, keepdim=True)
        # among the n negatives a share tau are positives in disguise: take them out of the sum
        ng = ((weight * neg).sum(1) - self.tau * n * pos) / (1 - self.tau)
        share = pos / (pos + ng)
        return -torch.log(share).mean()


@torch.no_grad()
def follow(slow, fast, m):
    for a, b in zip(slow.parameters(), fast.parameters()):
        a.mul_(m).add_(b, alpha=1 - m)


def main(cfg=Cfg()):
    torch.manual_seed(cfg.seed)
    tiles = Tiles(60, torch.Generator().manual_seed(cfg.seed))
    fast, slow = Encoder(cfg.dim), Encoder(cfg.dim)
    slow.load_state_dict(fast.state_dict())
    slow.requires_grad_(False)
    criterion = DebiasedHardLoss(cfg)
    opt = torch.optim.AdamW(fast.parameters(), lr=cfg.lr, weight_decay=1e-3)

    bank = []
    while sum(map(len, bank)) < cfg.queue:
        bank.append(slow(tiles.pair(cfg.batch)[1]))
    bank = torch.cat(bank)[: cfg.queue]

    for step in range(cfg.steps):
        a, b = tiles.pair(cfg.batch)
        k = slow(b)
        loss = criterion(fast(a), k, bank)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        follow(slow, fast, cfg.momentum)
        bank = torch.cat([bank[cfg.batch:], k])
        print(f"{step + 1:02d} loss={loss.item():.6f}", flush=True)

    print("sum |w| = %.4f" % sum(p.detach().abs().sum().item() for p in fast.parameters()), flush=True)


if __name__ == "__main__":
    main()
