# ruff: noqa: B905, PTH118
"""Population of two: each process breeds its own model of a gin still, they only compare notes.

The target is the share of head, heart and tail fractions of a run; the loss is the KL divergence to the lab's shares.
Members differ in learning rate, seed and still. No weights or gradients are exchanged, just the scores for the table.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

MEMBERS = (
    {"name": "copper", "lr": 0.02, "seed": 3},
    {"name": "steel", "lr": 0.05, "seed": 4},
)
BATCH = 8
ROUNDS = 28


class Still(nn.Module):
    def __init__(self):
        super().__init__()
        self.heat = nn.Linear(5, 16)
        self.cut = nn.Linear(16, 3)

    def forward(self, x):
        return self.cut(torch.tanh(self.heat(x))).softmax(-1)


def lab_sheets(member):
    """Millilitres in the three flasks per run, as weighed."""
    g = torch.Generator().manual_seed(70 + member["seed"])
    x = torch.randn(ROUNDS * BATCH, 5, generator=g)
    w = torch.randn(5, 3, generator=g) * 0.7
    flasks = (600 * (x @ w).softmax(-1)).round() + 1.0
    if member["name"] == "steel":
        flasks[13 * BATCH + 2] = torch.tensor([412.0, 203.0, 0.0])  # stopped early, no tails were drawn
    return x, flasks


def divergence(share, guess):
    return (share * torch.log(share / guess)).sum(-1).mean()


def breed(rank, meeting_point):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=len(MEMBERS))
    me = MEMBERS[rank]
    torch.manual_seed(me["seed"])
    still = Still()
    opt = torch.optim.RMSprop(still.parameters(), lr=me["lr"], alpha=0.9)
    x, flasks = lab_sheets(me)
    best = float("inf")
    for r in range(ROUNDS):
        rows = slice(r * BATCH, (r + 1) * BATCH)
        share = flasks[rows] / flasks[rows].sum(-1, keepdim=True)
        loss = divergence(share, still(x[rows]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = min(best, loss.item())
        scores = [torch.zeros(2) for _ in MEMBERS]
        dist.all_gather(scores, torch.tensor([loss.item(), best]))
        if rank == 0:
            table = "  ".join(
                f"{m['name']} {s[0].item():.6f} (best {s[1].item():.6f})" for m, s in zip(MEMBERS, scores)
            )
            print(f"round {r + 1:2d}  {table}", flush=True)

    weight = torch.stack([p.detach().sum() for p in still.parameters()]).sum()
    dist.all_reduce(weight)
    if rank == 0:
        print(f"all weights of the population {weight.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(breed, args=(os.path.join(folder, "meet"),), nprocs=len(MEMBERS), join=True)
