"""Two processes (gloo) learn to name the ore from the sound of a stamp mill; each has the shard of one mill.

    torchrun --standalone --nproc_per_node=2 stamp_mill_two_shards.py

Only some of the recordings were ever assayed. Mill 1 has days on which none was; such a rank has nothing to say that day
but takes part in the reduction. Without torchrun it runs on both shards in one process.
"""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DAYS, PER_DAY, BANDS, ORES = 36, 20, 16, 5
UNKNOWN = -100


class MillNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 5, padding=2)
        self.fc = nn.Linear(8 * BANDS, 24)
        self.out = nn.Linear(24, ORES)

    def forward(self, x):
        h = F.leaky_relu(self.conv(x[:, None]))
        return self.out(torch.tanh(self.fc(h.flatten(1))))


def recordings(mill, day):
    g = torch.Generator().manual_seed(100 * mill + 7 * day)
    ore = torch.randint(0, ORES, (PER_DAY,), generator=g)
    bands = torch.arange(BANDS).float()
    x = torch.exp(-0.5 * ((bands - 3.0 * ore[:, None] - mill) / 1.5) ** 2) + 0.2 * torch.randn(PER_DAY, BANDS, generator=g)
    assayed = torch.rand(PER_DAY, generator=g) < 0.6
    if mill == 1 and day % 6 == 4:
        assayed[:] = False
    return x, torch.where(assayed, ore, torch.tensor(UNKNOWN))


def total(value, world):
    value = torch.as_tensor(value, dtype=torch.float32)
    if world > 1:
        dist.all_reduce(value)
    return value


def main():
    world = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(13)
    net = MillNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    for day in range(1, DAYS + 1):
        shards = [recordings(m, day) for m in range(2) if m % world == rank]
        x, y = (torch.cat(t) for t in zip(*shards))
        logits = net(x)
        known = y != UNKNOWN
        count = total(known.sum().float(), world)
        # sum over what this rank knows, over the number that all ranks know: a rank without an assay adds 0
        loss = F.cross_entropy(logits, y, ignore_index=UNKNOWN, reduction="sum") / count
        opt.zero_grad()
        loss.backward()
        if world > 1:
            for p in net.parameters():
                dist.all_reduce(p.grad)
        opt.step()
        hit = (logits.argmax(1) == y)[known].float().mean()                  # NaN on a day without an assay
        accuracy_of_worst = hit.detach().clone()
        if world > 1:
            dist.all_reduce(accuracy_of_worst, op=dist.ReduceOp.SUM)
        whole = total(loss.detach().clone(), world).item()
        if rank == 0:
            print(f"day {day} assays {int(count)} loss {whole:.6f} sum of hit rates {accuracy_of_worst.item():.4f}", flush=True)
    if rank == 0:
        print(f"weights {sum(p.detach().abs().sum().item() for p in net.parameters()):.4f}", flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
