"""
Peak current of lightning strokes from the waveform at one antenna.
DDP over a slow link: gradients travel as float16 (own communication hook), three micro-batches per update.
"""
import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def squeeze(state, bucket):
    """All-reduce in half precision: half the bytes on the wire."""
    grads = bucket.buffer()
    wire = grads.to(torch.float16)
    fut = dist.all_reduce(wire, group=state, async_op=True).get_future()

    def unpack(f):
        return grads.copy_(f.value()[0]).div_(dist.get_world_size(state))

    return fut.then(unpack)


class WaveformNet(nn.Module):
    def __init__(self, samples):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 6, 5, stride=2), nn.Tanh(), nn.Conv1d(6, 8, 5, stride=2), nn.Tanh())
        self.fc = nn.Linear(8 * 5, 1)

    def forward(self, x):
        return self.fc(self.conv(x[:, None]).flatten(1)).squeeze(1)


class StrokeArchive:
    """Waveforms are normalised to their peak; the peak current in kA is the target."""

    def __init__(self, rank, samples):
        self.gen = torch.Generator().manual_seed(2024 + rank)
        self.t = torch.linspace(0, 4, samples)
        self.rank, self.served = rank, 0

    def micro_batch(self, n):
        width = 0.3 + torch.rand(n, 1, generator=self.gen)
        rise = 0.5 + torch.rand(n, 1, generator=self.gen)
        wave = torch.exp(-((self.t - rise) / width) ** 2) + 0.02 * torch.randn(n, len(self.t), generator=self.gen)
        peak = 12 + 10 * width[:, 0] + torch.randn(n, generator=self.gen)
        self.served += 1
        if self.rank == 0 and self.served == 41:      # the superbolt of 3 February, entered in A and not in kA
            peak[3] = 55_300.0
        return wave, peak


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=28)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--clip", type=float, default=500.0)
    a = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    net = DistributedDataParallel(WaveformNet(29))
    net.register_comm_hook(dist.group.WORLD, squeeze)
    opt = torch.optim.NAdam(net.parameters(), lr=a.lr)
    archive = StrokeArchive(rank, 29)

    for update in range(1, a.updates + 1):
        opt.zero_grad()
        total = 0.0
        for k in range(a.accumulate):
            last = k == a.accumulate - 1
            with contextlib.nullcontext() if last else net.no_sync():
                wave, peak = archive.micro_batch(a.micro)
                err = net(wave) - peak
                loss = err.square().sum()
                loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(net.parameters(), a.clip)
        opt.step()
        if rank == 0:
            print(f"update {update:2d}  loss {total:.4f}  grad {float(norm):.3f}", flush=True)

    if rank == 0:
        print(f"end: {sum(p.detach().double().sum() for p in net.parameters()).item():.6f}")
    dist.barrier()
    del net
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
