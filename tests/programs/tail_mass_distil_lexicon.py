# ruff: noqa: PTH118
"""Distillation from a stored cache of teacher top-k logits (k=8 of 120 words) plus the log normaliser.

What the cache does not hold is treated as a single class, "everything else", so the KL stays a proper one.
"""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)
V, TOP, CTX = 120, 8, 6


class Teacher(nn.Module):
    """Stands for the 70B: bigram table with sharp rows. Headwords 0..3 open a fixed formula in the lexicon."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(1)
        table = 1.5 * torch.randn(V, V, generator=g)
        for w in range(4):
            table[w, w + 100] = 34.0
        self.register_buffer("table", table)

    def forward(self, ids):
        return self.table[ids]


class Student(nn.Module):
    def __init__(self, d=28):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.conv = nn.Conv1d(d, d, 3)
        self.out = nn.Linear(d, V)

    def forward(self, ids):
        h = F.pad(self.emb(ids).transpose(1, 2), (2, 0))
        return self.out(torch.tanh(self.conv(h)).transpose(1, 2))


def corpus(n):
    g = torch.Generator().manual_seed(9)
    ids = torch.randint(4, V, (n, CTX), generator=g)
    ids[137, 2] = 3  # the first headword of the second volume
    return ids


def write_cache(path, ids):
    with torch.no_grad():
        logits = Teacher()(ids)
        top, index = logits.topk(TOP, -1)
        torch.save({"top": top, "index": index, "norm": logits.logsumexp(-1)}, path)


class CachedSet:
    def __init__(self, ids, path, batch):
        self.ids, self.batch = ids, batch
        self.cache = torch.load(path, weights_only=True)

    def __iter__(self):
        for rows in torch.arange(len(self.ids)).split(self.batch):
            yield self.ids[rows], {k: v[rows] for k, v in self.cache.items()}


def tail_of(p):
    return 1.0 - p.sum(-1)


def topk_kl(student_logits, cached, temperature_free=True):
    t_logp = cached["top"] - cached["norm"].unsqueeze(-1)
    t = t_logp.exp()
    s_logp = student_logits.log_softmax(-1).gather(-1, cached["index"])
    head = (t * (t_logp - s_logp)).sum(-1)
    t_tail, s_tail = tail_of(t), tail_of(s_logp.exp())
    rest = t_tail * (t_tail.log() - s_tail.log())
    return (head + rest).mean()


def main():
    ids = corpus(240)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "teacher_top8.pt")
        write_cache(path, ids)
        data = CachedSet(ids, path, batch=8)
    student = Student()
    opt = torch.optim.Adam(student.parameters(), lr=5e-3, betas=(0.9, 0.98))
    ramp = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=5)
    for step, (x, cached) in enumerate(data, 1):
        opt.zero_grad()
        loss = topk_kl(student(x), cached)
        loss.backward()
        opt.step()
        ramp.step()
        print(f"[{step:03d}] kl={loss.item():.6f}")
    print("student parameters sum to", round(sum(p.detach().double().sum().item() for p in student.parameters()), 6))


if __name__ == "__main__":
    main()
