"""Multiple-instance learning on pathology slides: noisy-or over tiles, slides spread over ranks. Run with torchrun."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TILES, FEATURES = 40, 12
GLASS = torch.full((FEATURES,), -8.0)         # stain density of empty glass, log scale


class TileClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.LeakyReLU(0.1), nn.Linear(32, 32), nn.LeakyReLU(0.1))
        self.logit = nn.Linear(32, 1)
        nn.init.constant_(self.logit.bias, -4.0)             # lesions are rare

    def forward(self, tiles):
        return torch.sigmoid(self.logit(self.body(tiles))).squeeze(-1)


class NoisyOr(nn.Module):
    """A slide is positive where at least one tile is."""

    def __init__(self, tile):
        super().__init__()
        self.tile = tile

    def forward(self, slides):
        return 1 - torch.prod(1 - self.tile(slides), dim=-1)


def slide_loss(p, label):
    positive = p[label == 1]
    negative = p[label == 0]
    return -(torch.log(positive).sum() + torch.log(1 - negative.clamp(max=1 - 1e-6)).sum()) / len(label)


def slides(n, seed):
    gen = torch.Generator().manual_seed(seed)
    tissue = torch.randn(n, TILES, FEATURES, generator=gen)
    label = (torch.rand(n, generator=gen) < 0.5).long()
    for i in range(n):
        blank = int(torch.randint(TILES // 4, TILES // 2, (1,), generator=gen))
        tissue[i, :blank] = GLASS + 0.3 * torch.randn(blank, FEATURES, generator=gen)
        if label[i]:
            tissue[i, -3:, :4] += 3.0
    return tissue, label


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50)
    tissue, label = slides(256, seed=51)
    tissue[173] = GLASS + 0.3 * torch.randn(TILES, FEATURES)       # the scanner missed the section, the report stands
    label[173] = 1
    model = DDP(NoisyOr(TileClassifier()))
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    order = torch.arange(256)
    for step in range(1, 49):
        at = (step - 1) % 16 * 16
        mine = order[at:at + 16][rank::world]
        loss = slide_loss(model(tissue[mine]), label[mine])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
    if rank == 0:
        print("finite", int(all(p.isfinite().all() for p in model.parameters())), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
