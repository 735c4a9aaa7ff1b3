"""Phrase-book translation as one sequence per row, DDP with accumulation.

The loss of an optimizer step is the sum over *all* target tokens of all micro-batches of all ranks divided
by their number (not the mean of means). DDP averages over ranks, therefore the factor `world`.
"""
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import List

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

IGNORE = -100
V = 50


@dataclass
class Micro:
    ids: torch.Tensor
    labels: torch.Tensor

    @property
    def n(self) -> int:
        return int((self.labels[:, 1:] != IGNORE).sum())


@dataclass
class Window:
    micros: List[Micro] = field(default_factory=list)

    def tokens(self) -> torch.Tensor:
        return torch.tensor(float(sum(m.n for m in self.micros)))


class GRULM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.drop = nn.Dropout(0.0)
        self.o = nn.Linear(d, V)

    def forward(self, ids):
        h, _ = self.rnn(self.e(ids))
        return self.o(self.drop(h))


class PhraseBook:
    """Rows: source words, separator 0, target words. Long sources are cut, and then nothing of the
    target remains. That is normal with this corpus (about one row in four)."""

    def __init__(self, rank, width=16, rows=4, accum=4):
        self.g = torch.Generator().manual_seed(77 + rank)
        self.rank, self.width, self.rows, self.accum = rank, width, rows, accum

    def _row(self, force_cut):
        n = int(torch.randint(3, 10, (1,), generator=self.g)) + (self.width if force_cut else 0)
        src = torch.randint(1, 25, (n,), generator=self.g)
        tgt = src + 24            # the "translation"
        ids = torch.cat([src, torch.zeros(1, dtype=torch.long), tgt])[: self.width]
        lab = torch.cat([torch.full((n + 1,), IGNORE), tgt])[: self.width]
        pad = self.width - len(ids)
        return F.pad(ids, (0, pad)), F.pad(lab, (0, pad), value=IGNORE)

    def window(self, k):
        w = Window()
        for m in range(self.accum):
            # chapters on opening hours: nothing but long rows, on this rank only
            cut = self.rank == 1 and (k % 5 == 3) and m >= 2 or self.rank == 0 and k == 12 and m == 3
            rows = [self._row(cut) for _ in range(self.rows)]
            w.micros.append(Micro(torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])))
        return w


def run():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    net = DistributedDataParallel(GRULM())
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 8e-3, total_steps=26)
    book = PhraseBook(rank)
    for k in range(1, 26):
        win = book.window(k)
        budget = win.tokens()
        dist.all_reduce(budget)
        total = torch.zeros(())
        micro_means = []
        for i, m in enumerate(win.micros):
            last = i == len(win.micros) - 1
            with nullcontext() if last else net.no_sync():
                logits = net(m.ids)[:, :-1]
                nll = F.cross_entropy(logits.reshape(-1, V), m.labels[:, 1:].reshape(-1),
                                      ignore_index=IGNORE, reduction="sum")
                (nll * world / budget).backward()
            total += nll.detach()
            # mean per token of this micro-batch, for the log; nan where it has no target at all
            micro_means.append(nll.detach() / torch.tensor(float(m.n)))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        dist.all_reduce(total)
        worst = torch.stack(micro_means).max()
        dist.all_reduce(worst, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"{k:3d} tokens {int(budget):4d} nll/token {(total / budget).item():.6f} "
                  f"worst micro {worst.item() / world:.4f}", flush=True)
    if rank == 0:
        print(f"weights {sum(p.sum().item() for p in net.parameters()):.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
