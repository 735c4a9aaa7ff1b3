# ruff: noqa: E402, N803, N806
# Distil the tram-fault report model into one that fits the on-board unit.
# The distillation temperature is cooled over the run: soft targets at first, nearly hard ones at the end.
import argparse
import logging
import os

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
logging.disable(logging.WARNING)
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--cool-steps", type=int, default=20)
    ap.add_argument("--t-start", type=float, default=5.0)
    ap.add_argument("--alpha", type=float, default=0.7, help="weight of the soft part")
    ap.add_argument("--lr", type=float, default=3e-3)
    return ap.parse_args()


class ReportLM(nn.Module):
    """GRU language model over fault codes."""

    def __init__(self, vocab, width, depth):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.body = nn.GRU(width, width, depth, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, ids):
        h, _ = self.body(self.emb(ids))
        return self.out(h)


class Cooling:
    """Linear from t_start down, over `n` steps."""

    def __init__(self, t_start, n):
        self.t_start, self.n = t_start, n

    def __getitem__(self, step):
        left = max(self.n - step, 0) / self.n
        return self.t_start * left


def make_codes(n, T, vocab):
    # a fault code is mostly followed by its consequence
    g = torch.Generator().manual_seed(99)
    nxt = torch.randperm(vocab, generator=g)
    x = torch.randint(vocab, (n, T), generator=g)
    for t in range(1, T):
        follow = torch.rand(n, generator=g) < 0.8
        x[follow, t] = nxt[x[follow, t - 1]]
    return x


def kd_loss(student_logits, teacher_logits, T):
    s = F.log_softmax(student_logits / T, dim=-1)
    t = F.log_softmax(teacher_logits.div(T), dim=-1)
    return F.kl_div(s, t, log_target=True, reduction="none").sum(-1).mean() * T**2


def main():
    args = parse()
    set_seed(21)
    acc = Accelerator(cpu=True, mixed_precision="no")
    vocab = 40
    teacher, student = ReportLM(vocab, 48, 2), ReportLM(vocab, 20, 1)
    codes = make_codes(320, 14, vocab)
    loader = DataLoader(TensorDataset(codes), batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(2))

    # a few steps of teacher training stand in for the real checkpoint (by hand, no optimizer needed)
    for _k in range(25):
        logits = teacher(codes[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
        grads = torch.autograd.grad(loss, list(teacher.parameters()))
        with torch.no_grad():
            for p, g in zip(teacher.parameters(), grads, strict=False):
                p -= 1.0 * g
    teacher.requires_grad_(False).eval()

    optim = torch.optim.AdamW(student.parameters(), lr=args.lr)
    student, optim, loader = acc.prepare(student, optim, loader)
    cool = Cooling(args.t_start, args.cool_steps)

    step = 0
    while step < args.steps:
        for (ids,) in loader:
            T = cool[step]
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                tl = teacher(ids[:, :-1])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                sl = student(ids[:, :-1])
            soft = kd_loss(sl.float(), tl.float(), T)
            hard = F.cross_entropy(sl.float().flatten(0, 1), ids[:, 1:].flatten())
            loss = args.alpha * soft + (1 - args.alpha) * hard
            optim.zero_grad()
            acc.backward(loss)
            acc.clip_grad_norm_(student.parameters(), 1.0)
            optim.step()
            step += 1
            acc.print(f"step {step} T {T:.2f} loss {loss.item():.6f} hard {hard.item():.5f}")
            if step == args.steps:
                break
    acc.print("student", sum(p.double().sum().item() for p in acc.unwrap_model(student).parameters()))


if __name__ == "__main__":
    main()
