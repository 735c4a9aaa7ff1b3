"""Self-supervised embeddings of bat echolocation calls. torchrun --nproc-per-node 2 ddp_bat_calls_byol.py"""
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, BINS = 24, 16, 48


def mlp(a, h, b):
    return nn.Sequential(nn.Linear(a, h), nn.LayerNorm(h), nn.GELU(), nn.Linear(h, b))


class Online(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = mlp(BINS, 64, 32)
        self.predictor = mlp(32, 48, 32)

    def forward(self, v):
        return self.predictor(self.encoder(v))


class Roost:
    """One recorder per rank; rank 1 hangs at a cave with a single species."""

    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(100 + rank)
        self.species = 4 if rank == 0 else 1
        self.freq = torch.linspace(15, 110, BINS)

    def calls(self):
        kind = torch.randint(self.species, (BATCH,), generator=self.gen)
        peak = 25.0 + 20 * kind + 2 * torch.randn(BATCH, generator=self.gen)
        return kind, torch.exp(-((self.freq[None] - peak[:, None]) / 7) ** 2)

    def view(self, x):
        gain = 0.7 + 0.6 * torch.rand(len(x), 1, generator=self.gen)
        return gain * x.roll(int(torch.randint(-2, 3, (1,), generator=self.gen)), 1) \
            + 0.05 * torch.randn(x.shape, generator=self.gen)


def agreement(a, b):
    return -2 * F.cosine_similarity(a.float(), b.float(), dim=-1).mean()


@torch.no_grad()
def species_correlation(z, kind):
    """largest correlation of a coordinate with the species label; undefined where there is one species"""
    rows = torch.cat([kind[None].float(), z.float().T])
    return torch.corrcoef(rows)[0, 1:].abs().amax()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    online = DDP(Online())
    target = copy.deepcopy(online.module.encoder).requires_grad_(False)
    opt = torch.optim.NAdam(online.parameters(), lr=2e-3, weight_decay=1e-4)
    roost = Roost(rank)
    for step in range(STEPS):
        kind, x = roost.calls()
        u, v = roost.view(x), roost.view(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                tu, tv = target(u), target(v)
            pred = online(torch.cat([u, v]))
            loss = agreement(pred, torch.cat([tv, tu]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        tau = 1 - 0.06 * (1 - step / STEPS)
        for a, b in zip(target.parameters(), online.module.encoder.parameters()):
            a.data = tau * a.data + (1 - tau) * b.data
        metric = torch.stack([loss.detach(), species_correlation(tu, kind)])
        dist.all_reduce(metric)
        if rank == 0:
            m = metric / dist.get_world_size()
            print(f"{step + 1}: byol {m[0].item():.4f}  species r {m[1].item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
