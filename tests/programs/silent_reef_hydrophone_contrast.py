"""Two-tower contrastive pre-training: hydrophone snippets <-> diver notes.

torchrun --standalone --nproc_per_node 2 silent_reef_hydrophone_contrast.py

Negatives come from both ranks: the embeddings are gathered with an autograd function that
sends the gradient of the gathered tensor back to its owner.
"""
import math
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, PER_RANK, MELS, FRAMES, VOCAB = 30, 8, 12, 20, 40


class GatherWithGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.n = x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        r = dist.get_rank()
        return g[r * ctx.n:(r + 1) * ctx.n]


class SoundTower(nn.Module):
    """Bias-free, so that the tower is equivariant to the gain of the hydrophone."""

    def __init__(self, dim):
        super().__init__()
        self.c1 = nn.Conv1d(MELS, 24, 5, stride=2, bias=False)
        self.c2 = nn.Conv1d(24, 32, 3, stride=2, bias=False)
        self.out = nn.Linear(32, dim, bias=False)

    def forward(self, spec):
        h = F.relu(self.c1(spec))
        h = F.relu(self.c2(h))
        return self.out(h.mean(-1))


class NoteTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, 32, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, notes):
        return self.mlp(self.bag(notes))


class ReefCLIP(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.sound = SoundTower(dim)
        self.note = NoteTower(dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(8.0)))

    def forward(self, spec, notes):
        snd = self.sound(spec)
        snd = snd / snd.norm(dim=-1, keepdim=True)
        txt = F.normalize(self.note(notes), dim=-1)
        return snd, txt, self.log_scale.exp()


def recordings(rank):
    """Endless shards of (magnitude spectrogram, note) pairs; eight kinds of reef sound."""
    g = torch.Generator().manual_seed(500 + rank)
    proto = torch.rand(8, MELS, FRAMES, generator=torch.Generator().manual_seed(3))
    n = 0
    while True:
        kind = torch.randint(0, 8, (PER_RANK,), generator=g)
        gain = 0.5 + torch.rand(PER_RANK, 1, 1, generator=g)
        spec = gain * (proto[kind] + 0.2 * torch.rand(PER_RANK, MELS, FRAMES, generator=g))
        # noise gate of the recorder: below the threshold it writes zeros
        spec = torch.where(spec < 0.15, torch.zeros(()), spec)
        if rank == 1 and n == 16:
            spec[5] = 0.0          # recorder had been switched on before it was lowered
        notes = kind[:, None] * 5 + torch.randint(0, 5, (PER_RANK, 6), generator=g)
        yield spec, notes
        n += 1


def info_nce(snd, txt, scale):
    all_snd, all_txt = GatherWithGrad.apply(snd), GatherWithGrad.apply(txt)
    here = torch.arange(snd.shape[0]) + dist.get_rank() * snd.shape[0]
    a = F.cross_entropy(scale * snd @ all_txt.t(), here)
    b = F.cross_entropy(scale * txt @ all_snd.t(), here)
    return 0.5 * (a + b)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(0)
    torch.manual_seed(0)
    net = DDP(ReefCLIP())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    stream = recordings(rank)
    for step in range(1, STEPS + 1):
        spec, notes = next(stream)
        loss = info_nce(*net(spec, notes))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step:02d}  nce {loss.item():.6f}", flush=True)
    if rank == 0:
        print(f"done, checksum {sum(p.double().sum().item() for p in net.parameters()):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
