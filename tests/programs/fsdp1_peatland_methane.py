"""Chamber methane flux from eddy-covariance predictors; FSDP (v1), half precision compute, float32 shards.

torchrun --standalone --nproc_per_node 2 fsdp1_peatland_methane.py
"""
import argparse
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

warnings.filterwarnings("ignore")

COLUMNS = ["t_soil_5cm", "t_soil_20cm", "water_table", "par", "pressure", "wind", "ustar", "ndvi", "h_latent", "co2"]


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(d, d)

    def forward(self, x):
        a, b = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(a * torch.sigmoid(b))


class FluxNet(nn.Module):
    def __init__(self, n_in, d=32, depth=2):
        super().__init__()
        self.stem = nn.Linear(n_in, d)
        # soil respiration is close to quadratic in the drivers, so feed the products too
        self.quad = nn.Linear(n_in, d, bias=False)
        self.blocks = nn.ModuleList(GatedBlock(d) for _ in range(depth))
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        drivers = x * x
        h = self.stem(x) + self.quad(drivers)
        for blk in self.blocks:
            h = blk(h)
        return self.head(h).squeeze(-1)


class TowerRecords:
    """Half-hourly records, already standardised by the site's PI (with the median and the MAD of 2019)."""

    def __init__(self, site, n, seed):
        g = torch.Generator().manual_seed(seed + site)
        self.x = torch.randn(n, len(COLUMNS), generator=g).clamp(-3.5, 3.5)
        w = torch.linspace(-0.6, 0.8, len(COLUMNS))
        self.y = self.x @ w + 0.25 * self.x[:, 2] ** 2 + 0.1 * torch.randn(n, generator=g)
        if site == 1:
            # logger at the bog site was reset in October: PAR came back in raw counts for one half hour
            self.x[n // 2 + 13, COLUMNS.index("par")] = 2047.0

    def batches(self, size):
        for i in range(0, len(self.x) - size + 1, size):
            yield self.x[i:i + size], self.y[i:i + size]


def shard_sum(model):
    total = torch.zeros((), dtype=torch.float64)
    for p in model.parameters():
        if p.numel():
            total += p.detach().double().sum()
    dist.all_reduce(total)
    return total.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--records", type=int, default=512)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--clip", type=float, default=5.0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1905)
    net = FluxNet(len(COLUMNS))
    policy = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float32, buffer_dtype=torch.float16)
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({GatedBlock}), mixed_precision=policy,
                 device_id=torch.device("cpu"), use_orig_params=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.records // args.batch)
    site = TowerRecords(rank, args.records, seed=77)

    for step, (x, y) in enumerate(site.batches(args.batch), 1):
        pred = model(x)
        loss = nn.functional.smooth_l1_loss(pred.float(), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        model.clip_grad_norm_(args.clip)
        opt.step()
        sched.step()
        both = loss.detach().clone()
        dist.all_reduce(both)
        if rank == 0:
            print(f"half-hour batch {step:2d}  flux loss {both.item() / dist.get_world_size():.6f}", flush=True)
    checksum = shard_sum(model)
    if rank == 0:
        print(f"shards sum to {checksum:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
