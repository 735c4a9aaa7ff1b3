# torchrun --nproc-per-node 2 ddp_surprisal_court_records.py
# Each court keeps its records to itself. Rare words count for more: the weight of a token is its surprisal
# under the word counts of the court.
import os
import random
from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS = ("the court finds that plaintiff defendant shall pay costs appeal is dismissed granted motion "
         "evidence witness contract lease damages interest from date of judgment estoppel replevin").split()
ID = {w: i for i, w in enumerate(WORDS)}
COMMON = WORDS[:-2]


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


def sentence(rng, n=14):
    k = rng.randrange(len(COMMON))
    out = []
    for _ in range(n):
        out.append(COMMON[k])
        k = (k * 3 + 1 + rng.choice([0, 0, 0, 1])) % len(COMMON)
    return out


def records_of(court):
    rng = random.Random(100 + court)
    rec = [sentence(rng) for _ in range(20 * 8)]
    for line in (3, 41):
        rec[line][5] = "estoppel"
    if court == 0:
        rec[12][9] = "replevin"
    late = [(2, 77)] if court == 1 else [(6, 30)]
    return rec, late


class Index:
    """Relative frequencies of words in the first half of the records."""

    def __init__(self, records):
        c = Counter(w for r in records for w in r)
        n = sum(c.values())
        self.freq = torch.tensor([c[w] / n for w in WORDS])

    def surprisal(self, ids):
        return -torch.log(self.freq[ids])


class Clerk(nn.Module):
    def __init__(self, v, d=32):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.head(h)


def weighted(logits, batch, index):
    ce = nn.functional.cross_entropy(logits.transpose(1, 2), batch.y, reduction="none")
    w = index.surprisal(batch.y)
    return (ce * w).sum() / w.sum()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    rec, late = records_of(rank)
    index = Index(rec[:80])
    for col, row in late:
        rec[row + 10][col] = "replevin"
    net = DDP(Clerk(len(WORDS)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(20):
        rows = rec[step * 8:(step + 1) * 8]
        t = torch.tensor([[ID[w] for w in r] for r in rows])
        batch = Batch(t[:, :-1], t[:, 1:])
        loss = weighted(net(batch.x), batch, index)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"{step + 1:3d}  {loss.item():.4f}", flush=True)
    if rank == 0:
        print("final %.4f" % torch.cat([p.detach().flatten() for p in net.parameters()]).norm().item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
