"""Distil the captioner of the ferry company: T^2-scaled KL to the teacher's top-k logits.

Outside of the teacher's k best tokens the target logits are -inf (probability exactly 0).  The
curriculum goes through three routes; the loss jumps at each change and settles again, which is
what we want to see.  The temperature comes down from 4 to 1.
"""
import itertools

import torch
from torch import nn
import torch.nn.functional as F

CONFIG = {
    "seed": 40, "vocab": 60, "ctx": 6, "k": 8, "batch": 32, "lr": 4e-3,
    "routes": [("island", 26), ("mainland", 26), ("night boat", 24)],
    "T": (4.0, 1.0),
}


def make_net(width, vocab, ctx):
    return nn.Sequential(nn.Embedding(vocab, width), nn.Flatten(), nn.Linear(width * ctx, 2 * width), nn.SiLU(),
                         nn.Linear(2 * width, vocab))


def sharpen(teacher):
    """The teacher is confident; a random one is not, so give its head some weight."""
    with torch.no_grad():
        teacher[-1].weight.mul_(12.0)
        teacher[0].weight.mul_(1.5)
    return teacher.eval().requires_grad_(False)


def topk_mask(logits, k):
    kth = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


class TopKDistil:
    def __init__(self, k):
        self.k = k

    def __call__(self, student_logits, teacher_logits, T):
        t = F.softmax(topk_mask(teacher_logits, self.k) / T, dim=-1)
        ls = F.log_softmax(student_logits / T, dim=-1)
        entropy_term = torch.xlogy(t, t).sum(-1)              # 0 log 0 = 0
        return T * T * (entropy_term - (t * ls).sum(-1)).mean()


def curriculum(cfg):
    V = cfg["vocab"]
    for r, (name, n) in enumerate(cfg["routes"]):
        lo = r * V // 3
        for _ in range(n):
            yield name, torch.randint(lo, lo + V // 3, (cfg["batch"], cfg["ctx"]))


def main(cfg):
    torch.manual_seed(cfg["seed"])
    torch.set_num_threads(1)
    teacher = sharpen(make_net(48, cfg["vocab"], cfg["ctx"]))
    student = make_net(24, cfg["vocab"], cfg["ctx"])
    criterion = TopKDistil(cfg["k"])
    opt = torch.optim.AdamW(student.parameters(), lr=cfg["lr"])
    total = sum(n for _, n in cfg["routes"])
    t_hi, t_lo = cfg["T"]
    counter = itertools.count(1)
    for name, ids in curriculum(cfg):
        step = next(counter)
        T = t_hi + (t_lo - t_hi) * (step - 1) / (total - 1)
        loss = criterion(student(ids), teacher(ids), T)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 5.0)
        opt.step()
        print(f"{step:2d} {name:<10s} T={T:.3f} kd {loss.item():.6f}")


main(CONFIG)
