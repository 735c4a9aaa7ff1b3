# Residual stress in annealed glass, data parallel the old way: one flat bucket, one all_reduce per step.
# Panes that cracked in the lehr get weight 0 in the loss. Kiln B (rank 1) has rougher days than kiln A.
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--days", type=int, default=32)
    ap.add_argument("--panes", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.8)
    return ap.parse_args()


class FlatBucket:
    """All gradients in one contiguous buffer; p.grad are views of it."""

    def __init__(self, params):
        self.params = [p for p in params if p.requires_grad]
        self.buffer = torch.zeros(sum(p.numel() for p in self.params))
        at = 0
        for p in self.params:
            p.grad = self.buffer[at:at + p.numel()].view_as(p)
            at += p.numel()

    def reduce(self):
        dist.all_reduce(self.buffer)
        self.buffer.div_(dist.get_world_size())

    def clear(self):
        self.buffer.zero_()


class StressNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.ramp = nn.GRU(2, 12, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, ramp):
        return self.head(self.ramp(ramp)[1][0]).squeeze(-1)


def lehr_day(day, kiln, n):
    """Temperature ramps, measured stress, and which panes came out whole."""
    g = torch.Generator().manual_seed(1000 * kiln + day)
    ramp = torch.randn(n, 9, 2, generator=g).cumsum(1) * 0.3
    stress = ramp[:, -1].sum(-1).tanh() + 0.05 * torch.randn(n, generator=g)
    shock = torch.rand(n, generator=g)
    limit = 0.9
    if kiln == 1 and day == 14:          # the door was opened at 480 degrees: everything cracked
        limit = 0.0
    return ramp, stress, (shock < limit).float()


def weighted_huber(pred, stress, whole):
    per_pane = nn.functional.huber_loss(pred, stress, reduction="none", delta=0.5)
    return (per_pane * whole).sum() / whole.sum()


def main():
    args = parse()
    dist.init_process_group("gloo")
    kiln = dist.get_rank()
    torch.manual_seed(77)
    net = StressNet()
    bucket = FlatBucket(net.parameters())
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=args.momentum)
    for day in range(1, args.days + 1):
        bucket.clear()
        ramp, stress, whole = lehr_day(day, kiln, args.panes)
        loss = weighted_huber(net(ramp), stress, whole)
        loss.backward()
        bucket.reduce()
        opt.step()
        if kiln == 0:
            print(f"day {day:2d} kiln A loss {loss.item():.6f} whole {int(whole.sum())}", flush=True)
    if kiln == 0:
        print("checksum", f"{sum(p.detach().double().sum().item() for p in net.parameters()):.6f}", flush=True)
    dist.destroy_process_group()


main()
